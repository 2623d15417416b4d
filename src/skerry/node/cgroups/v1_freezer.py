"""Membership in the freezer hierarchy of v1: the best that a machine without the v2 tree offers.

It lists and freezes a cell and everything below it, but kills nothing by itself and tells of no changes:
killing is freeze, signal, thaw, and waiting is looking again. A frozen process dies only when it is thawed,
so a kill thaws its group; a leaf of a cell that was frozen as a whole dies when the cell is thawed.
"""

from __future__ import annotations

import contextlib

from skerry.node.cgroups import killing, waiting
from skerry.node.cgroups.hierarchies import ENTER_V1, Hierarchy


class V1Freezer:
    """Processes by group of the v1 freezer."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.hierarchy = hierarchy

    def prepare(self) -> None:
        self.hierarchy.prepare()
        self.hierarchy.check_has_no_processes()

    def make(self, place: str) -> None:
        self.hierarchy.make(place)

    def enter(self, place: str) -> tuple[int | None, tuple[int, ...]]:
        return None, (self.hierarchy.files.open_to_write(self.hierarchy.path(place, ENTER_V1)),)

    def kill(self, place: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # gone, with all that was in it
            self.freeze(place)
            try:
                killing.kill_all(lambda: self.hierarchy.pids(place))
            finally:
                for each in self._groups(place):
                    self.thaw(each)

    def _groups(self, place: str) -> list[str]:
        """The group and all below: a child frozen by itself stays so when its parent is thawed."""
        return [place, *(group for each in self.hierarchy.below(place) for group in self._groups(each))]

    async def emptied(self, place: str, *, within_s: float) -> bool:
        return await waiting.until(lambda: not self.hierarchy.pids(place), None, within_s=within_s)

    def freeze(self, place: str) -> None:
        self.hierarchy.write(place, "freezer.state", "FROZEN")

    def thaw(self, place: str) -> None:
        self.hierarchy.write(place, "freezer.state", "THAWED")

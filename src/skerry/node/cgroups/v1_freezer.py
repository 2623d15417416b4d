"""Membership in the v1 freezer hierarchy, for machines without the v2 tree.

It lists and freezes a cell and everything below it, but can neither kill nor notify: killing is freeze,
signal, thaw, and waiting is polling. A frozen process exits only when it is thawed, so a kill thaws its
group; a leaf of a cell that is frozen as a whole exits when the cell is thawed.
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

    def make(self, path: str) -> None:
        self.hierarchy.make(path)

    def enter(self, path: str) -> tuple[int | None, tuple[int, ...]]:
        return None, (self.hierarchy.files.open_to_write(self.hierarchy.path(path, ENTER_V1)),)

    def kill(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # removed, with everything in it
            self.freeze(path)
            try:
                killing.kill_all(lambda: self.hierarchy.pids(path))
            finally:
                for each in self._groups(path):
                    self.thaw(each)

    def _groups(self, path: str) -> list[str]:
        """The group and all below: a child that was frozen by itself stays frozen when its parent is
        thawed."""
        return [path, *(group for each in self.hierarchy.below(path) for group in self._groups(each))]

    async def emptied(self, path: str, *, within_s: float) -> bool:
        return await waiting.until(lambda: not self.hierarchy.pids(path), None, within_s=within_s)

    def freeze(self, path: str) -> None:
        self.hierarchy.write(path, "freezer.state", "FROZEN")

    def thaw(self, path: str) -> None:
        self.hierarchy.write(path, "freezer.state", "THAWED")

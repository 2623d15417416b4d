"""Freeing a cell with everything below it, within a time.

Once begun, it is finished or can be repeated: a mark on disk says so before the first process is asked to
end, and no new work is let into a marked cell. `Cells` holds the locks, so nothing else happens at or below
the cell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from skerry.model import errors
from skerry.model.ids import CellName
from skerry.node.cells import termination
from skerry.node.cells.executables import ExecutableSupervisor
from skerry.node.cells.state import CellDeps, CellEntry

_LEAST_S = 0.5  # for killing, also when asking has taken all the time there was
_SHARE = 0.5  # of what is left of the time, for asking


class CellTeardown:
    """`drop(home)` is told of each cell that is gone."""

    def __init__(
        self, means: CellDeps, executables: ExecutableSupervisor, drop: Callable[[CellEntry], None]
    ) -> None:
        self._means = means
        self._executables = executables
        self._drop = drop

    async def free(self, top: CellName, within: Sequence[CellEntry], deadline: float, grace_s: float) -> None:
        """Free the cell `top`; `within` are the homes of it and of all below. What runs is killed `grace_s`
        after it was asked, or earlier where that would be most of the time there is."""
        if not self._means.groups.exists(top):
            for home in _children_first(within):
                await self._end_rest(home, deadline)
                await self._remove(home)
            raise errors.NotFound(f"the group of cell {top!r} is gone from this host; the cell is forgotten")
        self._means.records.mark_freeing(top)
        for home in within:
            home.is_freeing = True
        self._means.reached("free.marked")
        stuck: set[int] = set()
        for _, level in groupby(_children_first(within), key=lambda home: home.name.count("/")):
            for pids in await asyncio.gather(*(self._free_one(home, deadline, grace_s) for home in level)):
                stuck.update(pids)
        if stuck:
            raise _stuck(top, stuck)

    async def _free_one(self, home: CellEntry, deadline: float, grace_s: float) -> Sequence[int]:
        """End and remove one cell whose children are gone; the pids that are in the way of it."""
        try:
            await self._end(home, deadline, grace_s)
        except termination.Unkillable as unkillable:
            return unkillable.pids
        await self._remove(home)
        return ()

    async def _end(self, home: CellEntry, deadline: float, grace_s: float) -> None:
        grace_s = min(grace_s, (deadline - self._means.clock.monotonic()) * _SHARE)
        # All at once: a cell of many stubborn executables takes the time of one.
        ends = await asyncio.gather(
            *(
                self._executables.end(home, known, grace_s, self._left(deadline))
                for known in home.executables.values()
            ),
            return_exceptions=True,
        )
        stuck: list[int] = []
        for end in ends:
            if isinstance(end, termination.Unkillable):
                stuck += end.pids
            elif end is not None:
                raise end
        if stuck:
            raise termination.Unkillable(stuck)
        self._means.reached("free.ended")
        await self._executables.settle_all(home)
        # The init, and whatever slipped away from its executable's group.
        await self._kill(home, deadline)
        self._means.reached("free.killed")

    async def _end_rest(self, home: CellEntry, deadline: float) -> None:
        """End what is left of a cell that lost some of its groups; its processes may be in none of them."""
        if home.init is not None:
            home.init.kill()
        try:
            await self._kill(home, deadline)
        except termination.Unkillable as stuck:
            raise _stuck(home.name, stuck.pids) from None

    async def _kill(self, home: CellEntry, deadline: float) -> None:
        means = self._means
        await termination.terminate_all(
            means.groups, home.name, None, kill_s=self._left(deadline), processes=means.processes
        )

    def _left(self, deadline: float) -> float:
        return max(_LEAST_S, deadline - self._means.clock.monotonic())

    async def _remove(self, home: CellEntry) -> None:
        await self._executables.inits.bury(home)
        self._executables.lose(home, home.executables.values())
        for known in list(home.executables.values()):
            self._executables.forget(home, known)
        self._means.groups.remove(home.name)
        self._means.reached("free.group")
        self._means.records.remove(home.name)
        self._drop(home)
        self._means.reached("free.removed")


def _stuck(cell: CellName, pids: Iterable[int]) -> errors.Unavailable:
    return errors.Unavailable(
        f"cell {cell!r} has processes that were killed and do not die: "
        f"{', '.join(map(str, sorted(pids)))}; free it again later"
    )


def _children_first(homes: Sequence[CellEntry]) -> list[CellEntry]:
    return sorted(homes, key=lambda home: (-home.name.count("/"), home.name))

"""Freeing a cell with everything below it, within a time.

Once begun, it is finished or can be repeated: a mark on disk says so before the first process is asked to
end, and no new work is let into a marked cell. `Cells` holds the locks, so nothing else happens at or below
the cell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby

from skerry.model import errors
from skerry.model.ids import CellName
from skerry.node.cells import stopping
from skerry.node.cells.executables import Executables
from skerry.node.cells.known import Home, Means

_LEAST_S = 0.5  # for killing, also when asking has taken all the time there was
_SHARE = 0.5  # of what is left of the time, for asking


class Freeing:
    """`drop(home)` is told of each cell that is gone."""

    def __init__(self, means: Means, executables: Executables, drop: Callable[[Home], None]) -> None:
        self._means = means
        self._executables = executables
        self._drop = drop

    async def free(self, top: CellName, within: Sequence[Home], deadline: float, grace_s: float) -> None:
        """Free the cell `top`; `within` are the homes of it and of all below. What runs is killed `grace_s`
        after it was asked, or earlier where that would be most of the time there is."""
        if not self._means.groups.exists(top):
            for home in _children_first(within):
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
            raise errors.Unavailable(
                f"cell {top!r} has processes that were killed and do not die: "
                f"{', '.join(map(str, sorted(stuck)))}; free it again later"
            )

    async def _free_one(self, home: Home, deadline: float, grace_s: float) -> Sequence[int]:
        """End and remove one cell whose children are gone; the pids that are in the way of it."""
        try:
            await self._end(home, deadline, grace_s)
        except stopping.Unkillable as unkillable:
            return unkillable.pids
        await self._remove(home)
        return ()

    async def _end(self, home: Home, deadline: float, grace_s: float) -> None:
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
            if isinstance(end, stopping.Unkillable):
                stuck += end.pids
            elif end is not None:
                raise end
        if stuck:
            raise stopping.Unkillable(stuck)
        self._means.reached("free.ended")
        await self._executables.settle_all(home)
        # The init, and whatever slipped away from its executable's group.
        await stopping.empty(
            self._means.groups,
            home.name,
            None,
            kill_s=self._left(deadline),
            processes=self._means.processes,
        )
        self._means.reached("free.killed")

    def _left(self, deadline: float) -> float:
        return max(_LEAST_S, deadline - self._means.clock.monotonic())

    async def _remove(self, home: Home) -> None:
        await self._executables.inits.bury(home)
        self._executables.lose(home, home.executables.values())
        for known in list(home.executables.values()):
            self._executables.forget(home, known)
        self._means.groups.remove(home.name)
        self._means.reached("free.group")
        self._means.records.remove(home.name)
        self._drop(home)
        self._means.reached("free.removed")


def _children_first(homes: Sequence[Home]) -> list[Home]:
    return sorted(homes, key=lambda home: (-home.name.count("/"), home.name))

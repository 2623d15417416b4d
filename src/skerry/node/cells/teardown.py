"""Frees a cell with everything below it, before a deadline.

Once begun, it is finished or can be repeated: a mark on disk is written before the first process gets a
signal, and nothing is started in a marked cell. `Cells` holds the locks, so nothing else happens at or below
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

_LEAST_S = 0.5  # for killing, also when the grace has used up the time
_SHARE = 0.5  # of the remaining time, at most, for the grace


class CellTeardown:
    """Frees cells. `drop(entry)` is called with each that is gone."""

    def __init__(
        self, deps: CellDeps, executables: ExecutableSupervisor, drop: Callable[[CellEntry], None]
    ) -> None:
        self._deps = deps
        self._executables = executables
        self._drop = drop

    async def free(self, top: CellName, within: Sequence[CellEntry], deadline: float, grace_s: float) -> None:
        """Free the cell `top`; `within` are the entries of it and of all below. What runs is killed after
        `grace_s`, or earlier where that would be most of the time until the deadline."""
        if not self._deps.groups.exists(top):
            for entry in _children_first(within):
                await self._end_ungrouped(entry, deadline)
                await self._remove(entry)
            raise errors.NotFound(
                f"the group of cell {top!r} no longer exists on this host; the cell was removed"
            )
        self._deps.records.mark_freeing(top)
        for entry in within:
            entry.is_freeing = True
        self._deps.failpoint("free.marked")
        stuck: set[int] = set()
        for _, level in groupby(_children_first(within), key=lambda entry: entry.name.count("/")):
            for pids in await asyncio.gather(*(self._free_one(entry, deadline, grace_s) for entry in level)):
                stuck.update(pids)
        if stuck:
            raise _stuck(top, stuck)

    async def _free_one(self, entry: CellEntry, deadline: float, grace_s: float) -> Sequence[int]:
        """End and remove one cell whose children are gone; returns the pids that prevent it."""
        try:
            await self._end(entry, deadline, grace_s)
        except termination.Unkillable as unkillable:
            return unkillable.pids
        await self._remove(entry)
        return ()

    async def _end(self, entry: CellEntry, deadline: float, grace_s: float) -> None:
        grace_s = min(grace_s, (deadline - self._deps.clock.monotonic()) * _SHARE)
        if grace_s > 0:
            await self._end_executables(entry, deadline, grace_s)
        for executable in entry.running():
            executable.was_killed = True
        self._deps.failpoint("free.ended")
        # The init, and processes that left their executable's group; without a grace, everything: nobody
        # needs the exit records that the init would write.
        await self._kill(entry, deadline)
        self._deps.failpoint("free.killed")

    async def _end_executables(self, entry: CellEntry, deadline: float, grace_s: float) -> None:
        # Concurrently: a cell of many executables that ignore SIGTERM takes the time of one.
        ends = await asyncio.gather(
            *(
                self._executables.end(entry, executable, grace_s, self._remaining_s(deadline))
                for executable in entry.executables.values()
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
        await self._executables.wait_for_exits(entry)

    async def _end_ungrouped(self, entry: CellEntry, deadline: float) -> None:
        """End what is left of a cell that lost some of its groups; its processes may be in none of them."""
        if entry.init is not None:
            entry.init.kill()
        try:
            await self._kill(entry, deadline)
        except termination.Unkillable as stuck:
            raise _stuck(entry.name, stuck.pids) from None

    async def _kill(self, entry: CellEntry, deadline: float) -> None:
        deps = self._deps
        await termination.terminate_all(
            deps.groups, entry.name, None, kill_s=self._remaining_s(deadline), processes=deps.processes
        )

    def _remaining_s(self, deadline: float) -> float:
        return max(_LEAST_S, deadline - self._deps.clock.monotonic())

    async def _remove(self, entry: CellEntry) -> None:
        await self._executables.inits.discard_dead(entry)
        self._executables.mark_lost(entry, entry.executables.values())
        for executable in list(entry.executables.values()):
            self._executables.forget(entry, executable)
        self._deps.groups.remove(entry.name)
        self._deps.failpoint("free.group")
        self._deps.records.remove(entry.name)
        self._drop(entry)
        self._deps.failpoint("free.removed")


def _stuck(cell: CellName, pids: Iterable[int]) -> errors.Unavailable:
    return errors.Unavailable(
        f"cell {cell!r} has processes that were killed and do not exit: "
        f"{', '.join(map(str, sorted(pids)))}; free it again later"
    )


def _children_first(entries: Sequence[CellEntry]) -> list[CellEntry]:
    return sorted(entries, key=lambda entry: (-entry.name.count("/"), entry.name))

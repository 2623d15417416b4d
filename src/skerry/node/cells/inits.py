"""The init of each cell: made when something is first started in the cell, then followed until it ends.

The launcher makes inits and an init runs executables; both are reached through `skerry.node.launcher.client`.
Here is when one is made, what is remembered of it, and who is told of what it reports. An init that dies
takes its executables along; the next start makes a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

import structlog

from skerry.kit import tasks
from skerry.model import errors
from skerry.node.cells import cpu_quotas
from skerry.node.cells.init_pool import InitPool
from skerry.node.cells.records import InitRecord
from skerry.node.cells.state import CellDeps, CellEntry
from skerry.node.cgroups.protocol import INIT_LEAF
from skerry.node.launcher.client import InitClient, InitSpec, LauncherClient, ProcessExit

log = structlog.get_logger(__name__)

_KILL_S = 5.0
_PATIENCE_S = {True: 0.02, False: 0.1}  # a program starts in less, and a container mostly


class InitSupervisor:
    """Makes, keeps and follows them. `on_exit(home, exited)` is told when an executable has ended, and
    `on_death(home, init)` when an init has."""

    def __init__(
        self,
        deps: CellDeps,
        on_exit: Callable[[CellEntry, ProcessExit], None],
        on_death: Callable[[CellEntry, InitClient], None],
    ) -> None:
        self._deps = deps
        self._on_exit = on_exit
        self._on_death = on_death
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # By whether they isolate processes: those of containers do not, and a node may have no container.
        self._spares = {
            isolates: InitPool(
                deps.launcher,
                self._spec("spare", isolates, is_spare=True),
                deps.groups.spare_entrance,
                deps.settings.spare_inits,
                patience_s=_PATIENCE_S[isolates],
                only_after_use=not isolates,
            )
            for isolates in (True, False)
        }

    async def run(self) -> None:
        """Keep spares ready, until listening to an init has failed for a reason that is a fault of ours."""
        filling = [asyncio.create_task(each.run(), name="spare inits") for each in self._spares.values()]
        try:
            await asyncio.wait({*filling, self._failure}, return_when=asyncio.FIRST_EXCEPTION)
            for done in (*filling, self._failure):
                if done.done():
                    done.result()
        finally:
            await tasks.cancel_and_wait(filling)

    def spares(self, *, isolating: bool) -> int:
        """How many are ready for cells that isolate processes, or for those that do not."""
        return self._spares[isolating].count

    async def of(self, entry: CellEntry) -> InitClient:
        """The cell's init, made now if it has none."""
        async with entry.making:
            if entry.init is None:
                cell = entry.record.cell
                spec = self._spec(_host_name(entry), cell.isolates_processes, cell.isolates_network)
                spares = None if cell.isolates_network else self._spares[cell.isolates_processes]
                self.keep(entry, await self._make(entry, self._deps.launcher, spec, spares))
            assert entry.init is not None
            return entry.init

    async def prepare(self, entry: CellEntry, maker: LauncherClient, network: int | None) -> None:
        """Have the cell's init made now, by another launcher than the cells' own."""
        async with entry.making:
            if entry.init is not None:
                raise errors.FailedPrecondition(f"cell {entry.name!r} has its init already")
            spec = self._spec(_host_name(entry), isolates_processes=True, isolates_network=True)
            spec = replace(spec, network=network)
            self.keep(entry, await self._make(entry, maker, spec))

    def keep(self, entry: CellEntry, init: InitClient) -> None:
        """From now on `init` is the cell's, and is listened to."""
        entry.init = init
        entry.follower = asyncio.create_task(self._follow(entry, init), name=f"init of {entry.name}")

    async def let_go(self, entry: CellEntry) -> None:
        """Listen no more; the init itself is left as it is."""
        follower, entry.follower = entry.follower, None
        init, entry.init = entry.init, None
        if follower is not None:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
        if init is not None:
            init.close()

    async def bury(self, entry: CellEntry) -> None:
        """Listen until the init, which was killed, is gone, and then no more."""
        if entry.init is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KILL_S):
                    await entry.init.ended()
        await self.let_go(entry)

    async def end(self, entry: CellEntry) -> None:
        """Kill the init of a cell in which nothing runs; the next start makes another."""
        async with entry.making:
            await self.clear(entry)
            await self.bury(entry)
            self._deps.records.set_init(entry.name, None)

    async def close(self) -> None:
        self._failure.cancel()
        await asyncio.gather(*(each.close() for each in self._spares.values()))

    async def clear(self, entry: CellEntry) -> None:
        """Kill what is left in the group of an init that is not, or no longer, the cell's, and remove it.

        Nothing is ever put into a group that was killed: since 6.14 the kernel may take a process that is
        born into one, long after, for one that the killing missed.
        """
        groups = self._deps.groups
        if groups.pids(entry.name, INIT_LEAF):
            groups.kill(entry.name, INIT_LEAF)
            if not await groups.emptied(entry.name, INIT_LEAF, within_s=_KILL_S):
                pids = ", ".join(map(str, groups.pids(entry.name, INIT_LEAF)))
                raise errors.Unavailable(
                    f"the last init of cell {entry.name!r} does not die (process {pids})"
                )
        groups.remove_leaf(entry.name, INIT_LEAF)

    async def _make(
        self, entry: CellEntry, maker: LauncherClient, spec: InitSpec, spares: InitPool | None = None
    ) -> InitClient:
        """One of `spares`, if they have one, or else a new one like `spec` by `maker`."""
        deps = self._deps
        if entry.had_init:
            await self.clear(entry)
        entry.had_init = True
        init = spares.take() if spares is not None else None
        is_slowed = cpu_quotas.slows_starts(entry.record.cell.limits)
        try:
            if init is not None:
                with deps.groups.spare_way(entry.name, outside_quota=is_slowed) as way:
                    # Recorded while it still ends with the launcher: it is never in a cell unknown.
                    self._record(entry, init)
                    init.enter(spec.host_name if spec.isolates_processes else "", way)
            else:
                deps.groups.add_leaf(entry.name, INIT_LEAF)
                deps.reached("init.group")
                with deps.groups.entrance(entry.name, INIT_LEAF, outside_quota=is_slowed) as entrance:
                    init = await maker.make_init(spec, entrance)
                deps.reached("init.made")
                self._record(entry, init)
        except BaseException:
            if init is not None:
                init.kill()
                init.close()
            with contextlib.suppress(errors.Unavailable):  # why it failed matters more
                await self.clear(entry)
            raise
        return init

    def _record(self, entry: CellEntry, init: InitClient) -> None:
        self._deps.records.set_init(entry.name, InitRecord(init.pid, init.start_time, init.control_fd))
        self._deps.reached("init.recorded")

    def _spec(
        self,
        host_name: str,
        isolates_processes: bool,
        isolates_network: bool = False,
        *,
        is_spare: bool = False,
    ) -> InitSpec:
        return InitSpec(
            host_name=host_name,
            isolates_processes=isolates_processes,
            isolates_network=isolates_network,
            tmp_mb=self._deps.settings.tmp_mb,
            is_spare=is_spare,
        )

    async def _follow(self, entry: CellEntry, init: InitClient) -> None:
        try:
            async for exited in init.exits():
                self._on_exit(entry, exited)
            if entry.init is init:
                entry.init = None
                log.info("init.ended", cell=entry.name, pid=init.pid)
                self._on_death(entry, init)
                init.close()
        except Exception as error:  # noqa: BLE001 - whoever runs us is told, and decides
            if not self._failure.done():
                self._failure.set_exception(error)


def _host_name(entry: CellEntry) -> str:
    return entry.name.rpartition("/")[2]

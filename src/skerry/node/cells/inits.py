"""The init of each cell: created at the first start in the cell, then followed until it ends.

The launcher creates inits and an init runs executables; `skerry.node.launcher.client` talks to both. This
module decides when one is created, stores its record, and passes its reports on. The executables of an init
that dies end with it; the next start creates a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from skerry.kit import tasks
from skerry.model import errors
from skerry.node.cells import cpu_quotas
from skerry.node.cells.init_pool import InitPool
from skerry.node.cells.records import InitRecord
from skerry.node.cells.state import CellDeps, CellEntry
from skerry.node.cgroups.protocol import INIT_LEAF, CgroupEntryFds
from skerry.node.launcher.cell_inits import CellInit
from skerry.node.launcher.client import InitClient, LauncherClient
from skerry.node.launcher.specs import InitSpec, ProcessExit, StartedProcess, StartSpec
from skerry.node.launcher.worker_inits import WorkerGroups, WorkerLaunch

log = structlog.get_logger(__name__)

_KILL_S = 5.0
_REFILL_DELAY_S = {True: 0.02, False: 0.1}  # longer than most starts of a program, and of a container


class WorkerSurroundings(NamedTuple):
    """What a worker has in its cell."""

    network: int | None  # descriptor of the network namespace; None: an empty one
    mounts: Sequence[tuple[int, str]]  # detached ones, and their places
    logs: Callable[[], Path]  # the folder of its logs, made at its first output


class InitSupervisor:
    """Creates and follows inits. `on_exit(entry, exited)` is called when an executable has ended,
    `on_death(entry, init)` when an init has."""

    def __init__(
        self,
        deps: CellDeps,
        on_exit: Callable[[CellEntry, ProcessExit], None],
        on_death: Callable[[CellEntry, CellInit], None],
    ) -> None:
        self._deps = deps
        self._on_exit = on_exit
        self._on_death = on_death
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # By whether they isolate processes: those of containers do not, and a node may run no containers.
        self._pools = {
            isolates: InitPool(
                deps.launcher,
                self._spec("spare", isolates, is_spare=True),
                deps.groups.pool_entry,
                deps.settings.spare_inits,
                refill_delay_s=_REFILL_DELAY_S[isolates],
                only_after_use=not isolates,
            )
            for isolates in (True, False)
        }

    async def run(self) -> None:
        """Keep the pools filled, until following an init fails because of a bug."""
        filling = [asyncio.create_task(each.run(), name="spare inits") for each in self._pools.values()]
        try:
            await asyncio.wait({*filling, self._failure}, return_when=asyncio.FIRST_EXCEPTION)
            for done in (*filling, self._failure):
                if done.done():
                    done.result()
        finally:
            await tasks.cancel_and_wait(filling)

    def prestarted(self, *, isolating: bool) -> int:
        """Number of prestarted inits for cells that isolate processes, or for others."""
        return self._pools[isolating].count

    async def of(self, entry: CellEntry) -> CellInit:
        """The cell's init, created now if it has none."""
        async with entry.making:
            if entry.init is None:
                cell = entry.record.cell
                # With the user of the node it would be an admin wherever a connection tells who somebody is.
                isolates_network = cell.isolates_network or (
                    cell.isolates_processes and self._deps.launcher.view.users == 1
                )
                spec = self._spec(_host_name(entry), cell.isolates_processes, isolates_network)
                prestarted = None if isolates_network else self._pools[cell.isolates_processes]
                self.attach(entry, await self._make(entry, self._deps.launcher, spec, prestarted))
            assert entry.init is not None
            return entry.init

    async def prepare(self, entry: CellEntry, launcher: LauncherClient, network: int | None) -> None:
        """Create the cell's init now, with another launcher than that of other cells."""
        async with entry.making:
            if entry.init is not None:
                raise errors.FailedPrecondition(f"cell {entry.name!r} has its init already")
            spec = self._spec(_host_name(entry), isolates_processes=True, isolates_network=True)
            self.attach(entry, await self._make(entry, launcher, replace(spec, network=network)))

    async def launch(
        self,
        entry: CellEntry,
        launcher: LauncherClient,
        worker: StartSpec,
        leaf: str,
        around: WorkerSurroundings,
    ) -> tuple[CellInit, StartedProcess]:
        """Create the cell's init, which only waits, with what is `around` the worker, and start that in
        `leaf`. No later agent needs a record of them: it removes the cell. What is left after a failure is
        removed with the cell."""
        groups = self._deps.groups
        spec = self._spec(_host_name(entry), isolates_processes=True, isolates_network=True)
        async with entry.making:
            entry.had_init = True
            groups.add_leaf(entry.name, INIT_LEAF)
            groups.add_leaf(entry.name, leaf)
            self._deps.failpoint("init.group")

            def enter() -> CgroupEntryFds:
                return groups.entry(entry.name, INIT_LEAF)

            with enter() as own, groups.entry(entry.name, leaf, from_within=True) as inner:
                init, started = await launcher.launch_worker(
                    WorkerLaunch(replace(spec, network=around.network), worker, around.logs, around.mounts),
                    WorkerGroups(own, inner, enter),
                )
            self.attach(entry, init)
            self._deps.failpoint("init.made")
        return init, started

    def attach(self, entry: CellEntry, init: CellInit) -> None:
        """Set the cell's init and follow it."""
        entry.init = init
        entry.follower = asyncio.create_task(self._follow(entry, init), name=f"init of {entry.name}")

    async def stop_following(self, entry: CellEntry) -> None:
        """Stop following; the init stays."""
        follower, entry.follower = entry.follower, None
        init, entry.init = entry.init, None
        if follower is not None:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
        if init is not None:
            init.close()

    async def discard_dead(self, entry: CellEntry) -> None:
        """Follow the init, which was killed, until it has ended."""
        if entry.init is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KILL_S):
                    await entry.init.ended()
        await self.stop_following(entry)

    async def end(self, entry: CellEntry) -> None:
        """Kill the init of a cell in which nothing runs; the next start creates another."""
        async with entry.making:
            await self.clear(entry)
            await self.discard_dead(entry)
            self._deps.records.set_init(entry.name, None)

    async def close(self) -> None:
        self._failure.cancel()
        await asyncio.gather(*(each.close() for each in self._pools.values()))

    async def clear(self, entry: CellEntry) -> None:
        """Kill what is left in the group of an init that is not, or no longer, the cell's, and remove it.

        A killed group is never reused: since 6.14 the kernel may kill a process that is forked into one much
        later.
        """
        groups = self._deps.groups
        if groups.pids(entry.name, INIT_LEAF):
            groups.kill(entry.name, INIT_LEAF)
            if not await groups.emptied(entry.name, INIT_LEAF, within_s=_KILL_S):
                pids = ", ".join(map(str, groups.pids(entry.name, INIT_LEAF)))
                raise errors.Unavailable(
                    f"the last init of cell {entry.name!r} was killed and does not exit (process {pids})"
                )
        groups.remove_leaf(entry.name, INIT_LEAF)

    async def _make(
        self, entry: CellEntry, launcher: LauncherClient, spec: InitSpec, pool: InitPool | None = None
    ) -> InitClient:
        """One of `pool`, if there is one, or else a new one with `spec` from `launcher`."""
        deps = self._deps
        if entry.had_init:
            await self.clear(entry)
        entry.had_init = True
        init = pool.take() if pool is not None else None
        is_slowed = cpu_quotas.slows_starts(entry.record.cell.limits)
        try:
            if init is not None:
                with deps.groups.entry_from_pool(entry.name, outside_quota=is_slowed) as entry_fds:
                    # Recorded while it still ends with the launcher: an init in a cell always has a record.
                    self._record(entry, init)
                    init.enter(spec.host_name if spec.isolates_processes else "", entry_fds)
            else:
                deps.groups.add_leaf(entry.name, INIT_LEAF)
                deps.failpoint("init.group")
                with deps.groups.entry(entry.name, INIT_LEAF, outside_quota=is_slowed) as entry_fds:
                    init = await launcher.make_init(spec, entry_fds)
                deps.failpoint("init.made")
                self._record(entry, init)
        except BaseException:
            if init is not None:
                init.kill()
                init.close()
            with contextlib.suppress(errors.Unavailable):  # the first error matters more
                await self.clear(entry)
            raise
        return init

    def _record(self, entry: CellEntry, init: InitClient) -> None:
        self._deps.records.set_init(entry.name, InitRecord(init.pid, init.start_time, init.control_fd))
        self._deps.failpoint("init.recorded")

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

    async def _follow(self, entry: CellEntry, init: CellInit) -> None:
        try:
            async for exited in init.exits():
                self._on_exit(entry, exited)
            if entry.init is init:
                entry.init = None
                log.info("init.ended", cell=entry.name, pid=init.pid)
                self._on_death(entry, init)
                init.close()
        except Exception as error:  # noqa: BLE001 - the caller gets it, and decides
            if not self._failure.done():
                self._failure.set_exception(error)


def _host_name(entry: CellEntry) -> str:
    return entry.name.rpartition("/")[2]

"""The cells of this node: allocate, free, start, stop, and what is known of each.

What `skerry.wire` calls, and the only door: it finds the cell, takes the locks, and has the work done to its
end even if the caller goes away meanwhile. Limits and killing are `skerry.node.cgroups`', processes are the
launcher's. A cell that another part of the node made for itself has an owner, and only that part, which says
so, starts, stops and frees in it; clients of the contracts say nothing, and cannot say its name. Cells
outlive the agent: `open` takes over what an earlier one left, `close` leaves everything running. Groups may
be removed from outside: `run` sees that, and `ensure` makes such a cell again. Nothing here knows a
contract's spelling or its codes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import structlog
from msgspec import structs

from skerry.kit.clock import Clock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.cells import (
    Cell,
    CellLimits,
    CellOwner,
    CellUsage,
    Executable,
    ExecutableState,
    ExitStatus,
    OutputChannel,
    RuntimeCommand,
    Sandbox,
    is_within,
    own_name,
    parse_name,
    upwards,
)
from skerry.model.ids import CellName, ExecutableName
from skerry.model.settings import NodeSettings
from skerry.node.cells import adoption
from skerry.node.cells.cpu_quotas import CpuQuotas, QuotaLift
from skerry.node.cells.executables import ExecutableSupervisor, StartOptions, WorkerOptions
from skerry.node.cells.locks import HeldPathLocks, PathLocks
from skerry.node.cells.processes import HostProcesses
from skerry.node.cells.records import CellRecord, CellRecords, boot_id
from skerry.node.cells.state import CellDeps, CellEntry, CellView, ExecutableEntry
from skerry.node.cells.teardown import CellTeardown
from skerry.node.cells.uids import UidAllocator
from skerry.node.cgroups.protocol import INIT_LEAF, Cgroups
from skerry.node.launcher.child.cell_root import HostView
from skerry.node.launcher.client import LauncherClient
from skerry.node.logs.readers import RingReader

log = structlog.get_logger(__name__)

T = TypeVar("T")

_CLOSE_S = 3.0
_LOOK_S = 5.0  # between two looks at whether the groups of cells are there
_CROWD = 64  # cells that are looked at before others have a turn
_OWNED: Final = {
    CellOwner.CONTAINER: "belongs to a container; use `skerry container`, or `skerry stop` for an instance",
    CellOwner.CONTRACT: "belongs to a contract of the market: only its buyer runs and reads anything in it",
    CellOwner.FUNCTIONS: "belongs to the workers of functions; use `skerry fn`",
}


class Cells:
    """Every cell of this node."""

    def __init__(self, deps: CellDeps, boot: str) -> None:
        self._deps = deps
        self._boot = boot
        self._entries: dict[CellName, CellEntry] = {}
        self._uids = UidAllocator(deps.settings.first_uid, deps.settings.max_cells)
        self._locks = PathLocks("cells")
        self._executables = ExecutableSupervisor(deps)
        self._quotas = CpuQuotas(deps.groups, deps.clock)
        self._freeing = CellTeardown(deps, self._executables, self._drop)

    @classmethod
    async def open(
        cls,
        folder: Path,
        cgroups: Cgroups,
        launcher: LauncherClient,
        settings: NodeSettings,
        clock: Clock,
        *,
        boot: str | None = None,
        processes: HostProcesses | None = None,
        reached: Callable[[str], None] = lambda step: None,
    ) -> Cells:
        """Take over what is in `folder` and in the groups. What cells see of the host is the launcher's
        view."""
        deps = CellDeps(
            groups=cgroups,
            launcher=launcher,
            records=CellRecords(folder),
            settings=settings,
            clock=clock,
            processes=processes or HostProcesses(),
            reached=reached,
        )
        boot = boot_id() if boot is None else boot
        cells = cls(deps, boot)
        try:
            await adoption.adopt(deps, cells._executables, boot, cells._keep)
        except BaseException:
            await cells.close()
            raise
        return cells

    @property
    def limits_in_v2(self) -> bool:
        """True if the limits of cells are held by cgroup v2."""
        return self._deps.groups.limits_in_v2

    @property
    def view(self) -> HostView:
        """What cells see of the host."""
        return self._deps.launcher.view

    @property
    def cgroups_kind(self) -> str:
        """How limits are held here: `unified`, `hybrid` or `legacy`."""
        return self._deps.groups.kind

    def spares(self, *, isolating: bool = True) -> int:
        """How many first starts, in cells that isolate processes or in others, would not wait for an init."""
        return self._executables.inits.spares(isolating=isolating)

    async def allocate(self, cell: Cell) -> None:
        """Make a cell. Raises AlreadyExists, NotFound (an ancestor), FailedPrecondition, ResourcesExhausted,
        Invalid."""
        self._check_new(cell)
        held = await self._hold(_ancestors(cell.name), cell.name)
        await held.finish(self._allocate(cell))

    async def _allocate(self, cell: Cell) -> None:
        self._check_new(cell)
        deps = self._deps
        self._quotas.put_on_above(cell.name)
        uid = self._uids.take()
        try:
            try:
                deps.groups.create(cell.name, cell.limits)
            except errors.AlreadyExists:  # not with us, or it would be known
                raise errors.FailedPrecondition(
                    f"the cgroup of cell {cell.name!r} exists on this host and is not ours; remove it first"
                ) from None
            try:
                deps.reached("allocate.group")
                record = CellRecord(cell, uid, self._boot, deps.clock.now(), is_marked=True)
                deps.records.add_cell(record)
                deps.reached("allocate.recorded")
            except BaseException:
                deps.records.remove(cell.name)
                deps.groups.remove(cell.name)
                raise
        except BaseException:
            self._uids.give_back(uid)
            raise
        self._entries[cell.name] = CellEntry(record)
        log.info("cell.allocated", cell=cell.name, uid=uid)

    async def ensure(self, cell: Cell) -> bool:
        """Have this very cell, whole. If somebody removed its groups, or freeing it was begun, what is left
        of it goes, with what is below, and it is made again. True if it was made. Raises as `allocate` and
        `free` do, AlreadyExists if another cell has its name."""
        if self._is_here(cell):
            return False
        held = await self._hold(_ancestors(cell.name), cell.name)
        return await held.finish(self._ensure(cell))

    async def _ensure(self, cell: Cell) -> bool:
        if self._is_here(cell):
            return False
        if cell.name in self._entries:
            log.warning("cell.mended", cell=cell.name)
            deadline = self._deps.clock.monotonic() + self._deps.settings.free_timeout_s
            with contextlib.suppress(errors.NotFound):  # its groups are gone, and now it is forgotten
                await self._freeing.free(cell.name, self._within(cell.name), deadline, 0.0)
        await self._allocate(cell)
        return True

    def _is_here(self, cell: Cell) -> bool:
        entry = self._entries.get(cell.name)
        if entry is None:
            return False
        if entry.record.cell != cell:
            raise errors.AlreadyExists(f"another cell is called {cell.name!r}; free that first")
        return self.is_whole(cell.name)

    def is_whole(self, name: CellName) -> bool:
        """True if the cell is here, with its groups, and is not being freed."""
        entry = self._entries.get(name)
        return entry is not None and not entry.is_freeing and self._deps.groups.exists(name)

    def own(self, path: str) -> CellName:
        """What the cell is called that a part of the node knows as `path`: it may have been made by a version
        that did not mark the names of its own cells."""
        unmarked = self._entries.get(CellName(path))
        is_ours = unmarked is not None and unmarked.record.cell.owner is not None
        return CellName(path) if is_ours else own_name(path)

    def claim(self, cell: Cell, owner: CellOwner) -> None:
        """From now on `cell`, which a version that knew no owners made, belongs to `owner`. Nothing if this
        very cell is not here. Raises OSError."""
        entry = self._entries.get(cell.name)
        if entry is None or entry.record.is_marked or entry.record.cell != cell or cell.owner is not None:
            return
        record = structs.replace(entry.record, cell=structs.replace(cell, owner=owner))
        self._deps.records.change_cell(record)
        entry.record = record

    def _check_new(self, cell: Cell) -> None:
        name = cell.name
        for ancestor in _ancestors(name):
            if ancestor not in self._entries:
                raise errors.NotFound(f"there is no cell {ancestor!r} to allocate {name!r} in")
            self._check_stays(self._entries[ancestor])
            if cell.owner is None:
                _check_owner(self._entries[ancestor], None)
        if name in self._entries:
            raise errors.AlreadyExists(f"cell {name!r} exists already")

    async def free(
        self, name: CellName, *, grace_s: float | None = None, owner: CellOwner | None = None
    ) -> None:
        """End everything in the cell and below it, children first, and remove it: asked first, killed after
        `grace_s`. Raises NotFound, FailedPrecondition (it, or for a client one below it, is not the
        `owner`'s), Unavailable."""
        self._check_free(name, owner)
        grace_s = self._deps.settings.stop_grace_s if grace_s is None else max(0.0, grace_s)
        deadline = self._deps.clock.monotonic() + self._deps.settings.free_timeout_s
        for entry in self._within(name):  # a stop that is under way must not take its time now
            for known in entry.executables.values():
                self._executables.hurry(known, grace_s)
        try:
            async with asyncio.timeout(self._deps.settings.free_timeout_s):
                held = await self._hold(_ancestors(name), name)
        except TimeoutError:
            raise errors.Unavailable(
                f"cell {name!r} is busy with another call; free it again later"
            ) from None
        await held.finish(self._free(name, deadline, grace_s, owner))

    def _check_free(self, name: CellName, owner: CellOwner | None) -> None:
        _check_owner(self._entry(name), owner)
        if owner is None:
            for entry in self._within(name):
                _check_owner(entry, None)

    async def _free(self, name: CellName, deadline: float, grace_s: float, owner: CellOwner | None) -> None:
        self._check_free(name, owner)
        await self._freeing.free(name, self._within(name), deadline, grace_s)
        log.info("cell.freed", cell=name)

    async def change_limits(self, name: CellName, limits: CellLimits) -> None:
        """Hold the cell to those of `limits` that are given from now on; the others stay. Raises NotFound,
        FailedPrecondition, Invalid (what is in the cell may use more already)."""
        self._entry(name)
        held = await self._hold(_ancestors(name), name)
        await held.finish(self._change_limits(name, limits))

    async def _change_limits(self, name: CellName, limits: CellLimits) -> None:
        entry = self._entry(name)
        self._check_stays(entry)
        self._quotas.put_on_above(name)
        self._deps.groups.change_limits(name, limits)
        given = {key: value for key, value in structs.asdict(limits).items() if value not in (None, "")}
        cell = structs.replace(entry.record.cell, limits=structs.replace(entry.record.cell.limits, **given))
        entry.record = structs.replace(entry.record, cell=cell)
        self._deps.records.change_cell(entry.record)

    def _keep(self, entry: CellEntry) -> None:
        self._entries[entry.name] = entry
        self._uids.claim(entry.record.uid)

    def _drop(self, entry: CellEntry) -> None:
        del self._entries[entry.name]
        self._quotas.forget(entry.name)
        self._uids.give_back(entry.record.uid)

    async def start(self, executable: Executable, sandbox: Sandbox | None = None) -> ExecutableState:
        """Start it, for a client; it runs when this returns. Raises Invalid (the name of a cell of our own),
        NotFound, AlreadyExists, FailedPrecondition, Internal."""
        parse_name(executable.cell)
        _check_owner(self._entry(executable.cell), None)
        return await self._begin(executable, StartOptions(sandbox or Sandbox()))

    async def start_container(
        self,
        executable: Executable,
        runtime: Callable[[str], RuntimeCommand],
        release: Callable[[], Awaitable[None]] | None = None,
    ) -> ExecutableState:
        """Have an OCI runtime start it, in a cell that does not isolate processes itself.

        `runtime` is given the path of the cgroup that the runtime is to make, and gives its command. With
        `release` that command does all but begin the program, which `release` does; only then is the cell's
        cpu quota off while the runtime works.
        """
        if self._entry(executable.cell).record.cell.isolates_processes:
            raise errors.FailedPrecondition(
                f"cell {executable.cell!r} isolates processes itself; a runtime does that"
            )
        return await self._begin(executable, StartOptions(runtime=runtime, release=release))

    async def start_trusted(
        self, executable: Executable, arguments: tuple[str, ...], streams: tuple[int, int, int]
    ) -> ExecutableState:
        """Run a command of ours as root and unconfined, but to the cell's limits. `streams` are descriptors,
        which stay the caller's, for its input, output and error; nothing of these is kept."""
        return await self._begin(executable, StartOptions(trusted=arguments, streams=streams))

    async def prepare(self, name: CellName, maker: LauncherClient, *, network: int | None = None) -> None:
        """Have the cell's init made now, by `maker`, so that a worker can be a fork of it.

        The cell sees what those of `maker` see, and has `network`, the descriptor of a namespace that stays
        the caller's, or an empty one. Raises NotFound, FailedPrecondition, Internal, TimedOut, Unavailable.
        """
        held = await self._hold_executable(name, ExecutableName(""))
        await held.finish(self._prepare(name, maker, network))

    async def _prepare(self, name: CellName, maker: LauncherClient, network: int | None) -> None:
        entry = self._entry(name)
        self._check_stays(entry)
        await self._executables.inits.prepare(entry, maker, network)

    async def mount(self, name: CellName, detached: int, place: str) -> None:
        """Put a mount that is nowhere yet at `place` of a cell that was prepared. Raises NotFound,
        FailedPrecondition, Internal, TimedOut, Unavailable."""
        init = self._entry(name).init
        if init is None:
            raise errors.FailedPrecondition(f"cell {name!r} has no init; prepare it first")
        await init.mount(detached, place)

    async def start_worker(
        self, executable: Executable, worker: WorkerOptions, sandbox: Sandbox | None = None
    ) -> ExecutableState:
        """Start what serves a function, in a cell that was prepared."""
        return await self._begin(executable, StartOptions(sandbox or Sandbox(), worker=worker))

    async def _begin(self, executable: Executable, options: StartOptions) -> ExecutableState:
        self._check_stays(self._entry(executable.cell))
        held = await self._hold_executable(executable.cell, executable.name)
        return await held.finish(self._start(executable, options))

    async def _start(self, executable: Executable, options: StartOptions) -> ExecutableState:
        entry = self._entry(executable.cell)
        self._check_stays(entry)
        with self._quotas.starting(entry, self._lift(entry, options)) as put_quota_on:
            known = await self._executables.start(entry, executable, options, put_quota_on)
        log.info("executable.started", cell=entry.name, executable=executable.name, pid=known.started.pid)
        return known.state()

    def _lift(self, entry: CellEntry, options: StartOptions) -> QuotaLift:
        if options.release is not None:
            return QuotaLift.WHILE_EMPTY
        is_slowed = options.is_slowed_by(entry.record.cell.limits)
        # Where the init can leave the group of the quota for its work, nothing is lifted.
        return QuotaLift.RATIONED if is_slowed and not self._deps.groups.has_way_out else QuotaLift.NEVER

    async def stop(
        self,
        cell: CellName,
        name: ExecutableName,
        *,
        grace_s: float | None = None,
        owner: CellOwner | None = None,
    ) -> ExitStatus:
        """End it and forget it: asked first, killed after `grace_s`. Raises NotFound, FailedPrecondition (the
        cell is not the `owner`'s), Unavailable."""
        _check_owner(self._entry(cell), owner)
        grace_s = self._deps.settings.stop_grace_s if grace_s is None else max(0.0, grace_s)
        self._executables.hurry(self._known(cell, name), grace_s)  # before waiting for who stops it now
        held = await self._hold_executable(cell, name)
        return await held.finish(self._stop(cell, name, grace_s))

    async def _stop(self, cell: CellName, name: ExecutableName, grace_s: float) -> ExitStatus:
        known = self._known(cell, name)
        outcome = await self._executables.stop(self._entry(cell), known, grace_s)
        log.info("executable.stopped", cell=cell, executable=name)
        return outcome

    def signal(self, cell: CellName, name: ExecutableName, number: int) -> None:
        """Send a signal to its main process. Raises NotFound if it has ended."""
        self._executables.signal(self._entry(cell), self._known(cell, name), number)

    async def kill(self, cell: CellName, name: ExecutableName) -> ExitStatus:
        """End every process of it at once; it stays known, with its output. Raises NotFound, Unavailable."""
        self._executables.hurry(self._known(cell, name), 0.0)
        held = await self._hold_executable(cell, name)
        return await held.finish(self._executables.kill(self._entry(cell), self._known(cell, name)))

    def is_idle(self, cell: Cell) -> bool:
        """True if this very cell is here, and has an init for which there is nothing to do."""
        entry = self._entries.get(cell.name)
        return entry is not None and entry.record.cell == cell and self._is_idle(entry)

    def _is_idle(self, entry: CellEntry) -> bool:
        return (
            entry.init is not None
            and not entry.running()
            # Children that outlived it may still write, and the init keeps that.
            and not any(self._deps.groups.pids(entry.name, each.leaf) for each in entry.executables.values())
            # What the disk has refused so far, the init records later.
            and all(self._deps.records.exit(entry.name, each.number) for each in entry.executables.values())
        )

    async def rest(self, name: CellName) -> None:
        """End the init of a cell that is idle. What has ended in it stays known, with its output, and the
        next start makes an init anew. Raises NotFound, Unavailable."""
        self._entry(name)
        held = await self._hold(_ancestors(name), name)
        await held.finish(self._rest(name))

    async def _rest(self, name: CellName) -> None:
        entry = self._entry(name)
        if self._is_idle(entry):
            await self._executables.inits.end(entry)
            self._executables.lose(entry, entry.executables.values())
            log.info("cell.rests", cell=name)

    def list(self) -> list[CellView]:
        """Every cell, parents before children."""
        return [self._entries[name].view() for name in sorted(self._entries)]

    def get(self, name: CellName) -> CellView:
        return self._entry(name).view()

    def executable(self, cell: CellName, name: ExecutableName) -> ExecutableState:
        return self._known(cell, name).state()

    def by_pid(self, pid: int) -> ExecutableState:
        """The executable whose process the node sees, or saw, under `pid`."""
        known = self._executables.by_pid(pid)
        if known is None:
            raise errors.NotFound(f"process {pid} is no executable of a cell")
        return known.state()

    async def wait(self, cell: CellName, name: ExecutableName) -> ExitStatus:
        """How it ended, once it has."""
        return await asyncio.shield(self._known(cell, name).exit)

    def logs(
        self,
        cell: CellName,
        name: ExecutableName,
        stream: OutputChannel,
        *,
        owner: CellOwner | None = None,
    ) -> RingReader:
        """What it has written to `stream`, and writes. Of what runs for a contract no client reads that."""
        known = self._known(cell, name)
        if owner is None:
            for entry in filter(None, map(self._entries.get, upwards(cell))):
                if entry.record.cell.owner is CellOwner.CONTRACT:
                    _check_owner(entry, None)
        folder = self._deps.records.folder(cell, known.number)
        # What it printed is kept before its end is told. A child that outlives it may hold the stream open.
        return RingReader(folder, stream.value, ended=lambda: known.has_ended)

    def pids(self, name: CellName) -> Sequence[int]:
        """The processes of its executables; neither its init nor what is in cells below it."""
        groups = self._deps.groups
        leaves = [leaf for leaf in groups.leaves(self._entry(name).name) if leaf != INIT_LEAF]
        return [pid for leaf in leaves for pid in groups.pids(name, leaf)]

    def usage(self, name: CellName) -> CellUsage:
        """What the cell has used, with everything in it."""
        return self._deps.groups.usage(self._entry(name).name)

    async def run(self) -> None:
        """Keep inits ready for new cells, and see ends that nobody told of; raise if listening to those of
        cells fails. For ever, otherwise."""
        looking = [
            asyncio.create_task(self._executables.settle_missing(self._entries.values)),
            asyncio.create_task(self._look_for_groups()),
        ]
        try:
            await self._executables.inits.run()
        finally:
            await cancel_and_wait(looking)

    async def _look_for_groups(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.end_ungrouped()

    async def end_ungrouped(self) -> None:
        """End what runs in cells whose groups somebody removed: nothing holds it to limits any more, and it
        could not be ended by its cell."""
        for number, entry in enumerate(list(self._entries.values()), start=1):
            if entry.init is not None and not entry.is_freeing and not self._deps.groups.exists(entry.name):
                log.warning("cell.ungrouped", cell=entry.name)
                entry.init.kill()
            if number % _CROWD == 0:
                await asyncio.sleep(0)

    async def close(self) -> None:
        """The agent ends; the cells go on. What is being done is given a moment, and else is left half done:
        the next agent finishes or undoes it."""
        await self._locks.close(_CLOSE_S)
        for entry in self._entries.values():
            await self._executables.inits.let_go(entry)
        await self._executables.inits.close()

    def _entry(self, name: CellName) -> CellEntry:
        entry = self._entries.get(name)
        if entry is None:
            raise errors.NotFound(f"there is no cell {name!r}")
        return entry

    def _within(self, name: CellName) -> Sequence[CellEntry]:
        return [entry for entry in self._entries.values() if is_within(entry.name, name)]

    def _known(self, cell: CellName, name: ExecutableName) -> ExecutableEntry:
        known = self._entry(cell).executables.get(name)
        if known is None:
            raise errors.NotFound(f"cell {cell!r} has no executable {name!r}")
        return known

    def _check_stays(self, entry: CellEntry) -> None:
        if entry.is_freeing:
            raise errors.FailedPrecondition(
                f"cell {entry.name!r} was to be freed and could not be; free it again"
            )

    async def _hold(self, shared: Iterable[Hashable], alone: Hashable) -> HeldPathLocks:
        return await self._locks.hold(list(shared), alone)

    async def _hold_executable(self, cell: CellName, name: ExecutableName) -> HeldPathLocks:
        return await self._hold([*_ancestors(cell), cell], (cell, name))


def _check_owner(entry: CellEntry, owner: CellOwner | None) -> None:
    """Cells that nobody owns are open to all; those of earlier versions have no owner."""
    if entry.record.cell.owner in (None, owner):
        return
    raise errors.FailedPrecondition(f"cell {entry.name!r} {_OWNED[entry.record.cell.owner]}")


def _ancestors(name: CellName) -> list[CellName]:
    """From the top down, without `name` itself."""
    return [*upwards(name)][:0:-1]

"""The cells of this node: allocate, free, start, stop, list.

The entry point for `skerry.wire`: it finds the cell, takes the locks, and runs the work to completion even if
the caller disconnects. `skerry.node.cgroups` handles limits and killing, the launcher processes. A cell that
a part of the node created for itself has an owner, and only that part, which passes its `owner`, starts,
stops and frees in it; clients of the contracts cannot name such a cell. Cells outlive the agent: `open`
adopts what an earlier one left, `close` leaves everything running. Groups may be removed from outside: `run`
detects that, and `ensure` creates such a cell again. Nothing here knows a contract's spelling or codes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
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
from skerry.node import host
from skerry.node.cells import adoption, uids
from skerry.node.cells.cpu_quotas import CpuQuotas, QuotaLift
from skerry.node.cells.executables import (
    ExecutableSupervisor,
    StartOptions,
    WorkerOptions,
    WorkerStart,
)
from skerry.node.cells.locks import PathLockGuard, PathLocks
from skerry.node.cells.output_folders import OutputFolders
from skerry.node.cells.processes import HostProcesses
from skerry.node.cells.records import CellRecord, CellRecords
from skerry.node.cells.state import CellDeps, CellEntry, CellView, ExecutableEntry
from skerry.node.cells.teardown import CellTeardown
from skerry.node.cgroups.protocol import INIT_LEAF, Cgroups
from skerry.node.launcher.child.cell_root import HostView
from skerry.node.launcher.client import LauncherClient
from skerry.node.logs.readers import RingReader

log = structlog.get_logger(__name__)

T = TypeVar("T")

_CLOSE_S = 3.0
_CHECK_GROUPS_S = 5.0  # between two checks that the groups of cells exist
_CHECK_BATCH = 64  # cells to check before other tasks run
_OWNED: Final = {
    CellOwner.CONTAINER: "belongs to a container; use `skerry container`, or `skerry stop` for an instance",
    CellOwner.CONTRACT: "belongs to a contract of the market: only its buyer may run or read anything in it",
    CellOwner.FUNCTIONS: "belongs to the workers of functions; use `skerry fn`",
}


class Cells:
    """All cells of this node."""

    def __init__(self, deps: CellDeps, boot: str) -> None:
        self._deps = deps
        self._boot = boot
        self._entries: dict[CellName, CellEntry] = {}
        settings, users = deps.settings, deps.launcher.view.users
        self._uids = uids.allocator(settings.first_uid, settings.max_cells, users, os.geteuid())
        self._locks = PathLocks("cells")
        self._executables = ExecutableSupervisor(deps)
        self._quotas = CpuQuotas(deps.groups, deps.clock)
        self.output_folders = OutputFolders(self._entries, deps.records)  # of all executables
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
        failpoint: Callable[[str], None] = lambda step: None,
    ) -> Cells:
        """Adopt what is in `folder` and in the groups. The launcher defines what cells see of the host."""
        deps = CellDeps(
            groups=cgroups,
            launcher=launcher,
            records=CellRecords(folder),
            settings=settings,
            clock=clock,
            processes=processes or HostProcesses(),
            failpoint=failpoint,
        )
        boot = host.boot_id() if boot is None else boot
        cells = cls(deps, boot)
        try:
            await adoption.adopt(deps, cells._executables, boot, cells._add)
        except BaseException:
            await cells.close()
            raise
        return cells

    @property
    def limits_in_v2(self) -> bool:
        """True if cgroup v2 enforces the limits of cells."""
        return self._deps.groups.limits_in_v2

    @property
    def view(self) -> HostView:
        """The part of the host's file system that cells see."""
        return self._deps.launcher.view

    @property
    def cgroups_kind(self) -> str:
        """Which cgroups enforce limits here: `unified`, `hybrid` or `legacy`."""
        return self._deps.groups.kind

    def prestarted_inits(self, *, isolating: bool = True) -> int:
        """Number of prestarted inits for cells that isolate processes, or for others."""
        return self._executables.inits.prestarted(isolating=isolating)

    async def allocate(self, cell: Cell) -> None:
        """Create a cell.

        Raises AlreadyExists, NotFound (an ancestor), FailedPrecondition, ResourcesExhausted, Invalid.
        """
        self._check_new(cell)
        locks = await self._lock(_ancestors(cell.name), cell.name)
        await locks.finish(self._allocate(cell))

    async def _allocate(self, cell: Cell, *, is_recorded: bool = True) -> None:
        self._check_new(cell)
        deps = self._deps
        self._quotas.restore_ancestors(cell.name)
        uid = self._uids.allocate()
        try:
            try:
                deps.groups.create(cell.name, cell.limits)
            except errors.AlreadyExists:  # not one of ours, which would be known
                raise errors.FailedPrecondition(
                    f"the cgroup of cell {cell.name!r} exists on this host and is not ours; remove it first"
                ) from None
            try:
                deps.failpoint("allocate.group")
                if not is_recorded:
                    deps.records.exclude(cell.name)
                record = CellRecord(cell, uid, self._boot, deps.clock.now(), is_marked=True)
                deps.records.add_cell(record)
                deps.failpoint("allocate.recorded")
            except BaseException:
                deps.records.remove(cell.name)
                deps.groups.remove(cell.name)
                raise
        except BaseException:
            self._uids.release(uid)
            raise
        self._entries[cell.name] = CellEntry(record)
        log.info("cell.allocated", cell=cell.name, uid=uid)

    async def ensure(self, cell: Cell) -> bool:
        """Make sure that exactly this cell exists, complete. If its groups were removed, or freeing it was
        begun, the rest of it is removed, with its children, and it is created again. True if it was created.
        Raises as `allocate` and `free` do, AlreadyExists if another cell has its name."""
        if self._is_here(cell):
            return False
        locks = await self._lock(_ancestors(cell.name), cell.name)
        return await locks.finish(self._ensure(cell))

    async def _ensure(self, cell: Cell) -> bool:
        if self._is_here(cell):
            return False
        if cell.name in self._entries:
            log.warning("cell.mended", cell=cell.name)
            deadline = self._deps.clock.monotonic() + self._deps.settings.free_timeout_s
            with contextlib.suppress(errors.NotFound):  # its groups are gone, and now its record
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
        """True if the cell exists, with its groups, and is not being freed."""
        entry = self._entries.get(name)
        return entry is not None and not entry.is_freeing and self._deps.groups.exists(name)

    def own_cell_name(self, path: str) -> CellName:
        """The name of the cell that a part of the node calls `path`: versions before owners did not mark the
        names of their own cells."""
        unmarked = self._entries.get(CellName(path))
        is_unmarked_own = unmarked is not None and unmarked.record.cell.owner is not None
        return CellName(path) if is_unmarked_own else own_name(path)

    def claim(self, cell: Cell, owner: CellOwner) -> None:
        """Set the owner of `cell`, which a version without owners created. Does nothing if exactly this cell
        does not exist. Raises OSError."""
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
        """Stop everything in the cell and below it, children first, and remove it: SIGTERM, then SIGKILL
        after `grace_s`. Raises NotFound, FailedPrecondition (it, or for a client one below it, has another
        `owner`), Unavailable."""
        self._check_free(name, owner)
        grace_s = self._deps.settings.stop_grace_s if grace_s is None else max(0.0, grace_s)
        deadline = self._deps.clock.monotonic() + self._deps.settings.free_timeout_s
        for entry in self._within(name):  # a stop in progress must not use its whole grace now
            for executable in entry.executables.values():
                self._executables.shorten_grace(executable, grace_s)
        try:
            async with asyncio.timeout(self._deps.settings.free_timeout_s):
                locks = await self._lock(_ancestors(name), name)
        except TimeoutError:
            raise errors.Unavailable(
                f"cell {name!r} is busy with another request; free it again later"
            ) from None
        await locks.finish(self._free(name, deadline, grace_s, owner))

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
        """Set those of `limits` that are given; the others stay. Raises NotFound, FailedPrecondition, Invalid
        (the cell may use more already)."""
        self._entry(name)
        locks = await self._lock(_ancestors(name), name)
        await locks.finish(self._change_limits(name, limits))

    async def _change_limits(self, name: CellName, limits: CellLimits) -> None:
        entry = self._entry(name)
        self._check_stays(entry)
        self._quotas.restore_ancestors(name)
        self._deps.groups.change_limits(name, limits)
        changes = {key: value for key, value in structs.asdict(limits).items() if value not in (None, "")}
        cell = structs.replace(entry.record.cell, limits=structs.replace(entry.record.cell.limits, **changes))
        entry.record = structs.replace(entry.record, cell=cell)
        self._deps.records.change_cell(entry.record)

    def _add(self, entry: CellEntry) -> None:
        self._entries[entry.name] = entry
        self._uids.claim(entry.record.uid)

    def _drop(self, entry: CellEntry) -> None:
        del self._entries[entry.name]
        self._quotas.forget(entry.name)
        self._uids.release(entry.record.uid)

    async def start(self, executable: Executable, sandbox: Sandbox | None = None) -> ExecutableState:
        """Start it, for a client; it is running on return. Raises Invalid (an internal cell), NotFound,
        AlreadyExists, FailedPrecondition, Internal."""
        parse_name(executable.cell)
        _check_owner(self._entry(executable.cell), None)
        return await self._lock_and_start(executable, StartOptions(sandbox or Sandbox()))

    async def start_container(
        self,
        executable: Executable,
        runtime: Callable[[str], RuntimeCommand],
        release: Callable[[], Awaitable[None]] | None = None,
    ) -> ExecutableState:
        """Start a container with an OCI runtime, in a cell that does not isolate processes itself.

        `runtime` takes the path of the cgroup that the runtime is to create, and returns its command. With
        `release`, that command does everything but start the program, which `release` does; only then is the
        cell's cpu quota lifted while the runtime works.
        """
        if self._entry(executable.cell).record.cell.isolates_processes:
            raise errors.FailedPrecondition(
                f"cell {executable.cell!r} isolates processes itself; a runtime does that"
            )
        return await self._lock_and_start(executable, StartOptions(runtime=runtime, release=release))

    def enters_mounts(self, name: CellName) -> bool:
        """Whether a runtime that is started in the cell may have `RuntimeMounts`. Raises NotFound."""
        return (init := self._entry(name).init) is None or init.enters_mounts

    async def start_trusted(
        self, executable: Executable, arguments: tuple[str, ...], streams: tuple[int, int, int]
    ) -> ExecutableState:
        """Run a command of Skerry's own as root, confined only by the cell's limits. `streams` are its stdin,
        stdout and stderr, descriptors that the caller owns; their data is not stored."""
        return await self._lock_and_start(executable, StartOptions(trusted=arguments, streams=streams))

    async def prepare(self, name: CellName, maker: LauncherClient, *, network: int | None = None) -> None:
        """Create the cell's init now, by `maker`, so that a worker can be started in it.

        The cell gets the host view of `maker`, and `network`, the descriptor of a namespace that the caller
        owns, or an empty one. Raises NotFound, FailedPrecondition, Internal, TimedOut, Unavailable.
        """
        locks = await self._lock_executable(name, ExecutableName(""))
        await locks.finish(self._prepare(name, maker, network))

    async def _prepare(self, name: CellName, maker: LauncherClient, network: int | None) -> None:
        entry = self._entry(name)
        self._check_stays(entry)
        await self._executables.inits.prepare(entry, maker, network)

    async def launch_worker(self, cell: Cell, worker: WorkerStart) -> None:
        """Create a cell that the next agent removes, with its init and its worker.

        Raises as `allocate` and `prepare` do. What a failure leaves is removed by `free`.
        """
        self._check_new(cell)
        locks = await self._lock(_ancestors(cell.name), cell.name)
        await locks.finish(self._launch_worker(cell, worker))

    async def _launch_worker(self, cell: Cell, worker: WorkerStart) -> None:
        await self._allocate(cell, is_recorded=False)
        await self._executables.launch(self._entries[cell.name], worker)

    def is_prepared(self, name: CellName) -> bool:
        """True if something can be mounted and started in this cell."""
        entry = self._entries.get(name)
        return entry is not None and entry.init is not None and entry.init.is_usable

    async def mount(self, name: CellName, detached: int, path: str) -> None:
        """Attach a detached mount at `path` of a prepared cell. Raises NotFound, FailedPrecondition,
        Internal, TimedOut, Unavailable."""
        init = self._entry(name).init
        if init is None:
            raise errors.FailedPrecondition(f"cell {name!r} has no init; prepare it first")
        await init.mount(detached, path)

    async def start_worker(
        self, executable: Executable, worker: WorkerOptions, sandbox: Sandbox | None = None
    ) -> ExecutableState:
        """Start a worker of a function, in a prepared cell."""
        return await self._lock_and_start(executable, StartOptions(sandbox or Sandbox(), worker=worker))

    async def _lock_and_start(self, executable: Executable, options: StartOptions) -> ExecutableState:
        self._check_stays(self._entry(executable.cell))
        locks = await self._lock_executable(executable.cell, executable.name)
        return await locks.finish(self._start(executable, options))

    async def _start(self, executable: Executable, options: StartOptions) -> ExecutableState:
        entry = self._entry(executable.cell)
        self._check_stays(entry)
        with self._quotas.lift_for_start(entry, self._lift(entry, options)) as restore_quota:
            started = await self._executables.start(entry, executable, options, restore_quota)
        log.info("executable.started", cell=entry.name, executable=executable.name, pid=started.started.pid)
        return started.state()

    def _lift(self, entry: CellEntry, options: StartOptions) -> QuotaLift:
        if options.release is not None:
            return QuotaLift.WHILE_EMPTY
        is_slowed = options.is_slowed_by(entry.record.cell.limits)
        # Where the init can work outside the quota's group, nothing is lifted.
        return (
            QuotaLift.RATIONED if is_slowed and not self._deps.groups.can_leave_cpu_quota else QuotaLift.NEVER
        )

    async def stop(
        self,
        cell: CellName,
        name: ExecutableName,
        *,
        grace_s: float | None = None,
        owner: CellOwner | None = None,
        keeps_logs: bool = False,
    ) -> ExitStatus:
        """Stop it and remove its records: SIGTERM, then SIGKILL after `grace_s`. `keeps_logs`: they become
        those of the previous run. Raises NotFound, FailedPrecondition (the cell has another `owner`),
        Unavailable."""
        _check_owner(self._entry(cell), owner)
        grace_s = self._deps.settings.stop_grace_s if grace_s is None else max(0.0, grace_s)
        self._executables.shorten_grace(
            self._find_executable(cell, name), grace_s
        )  # before waiting for a stop in progress
        locks = await self._lock_executable(cell, name)
        return await locks.finish(self._stop(cell, name, grace_s, keeps_logs=keeps_logs))

    async def _stop(
        self, cell: CellName, name: ExecutableName, grace_s: float, *, keeps_logs: bool
    ) -> ExitStatus:
        executable = self._find_executable(cell, name)
        outcome = await self._executables.stop(self._entry(cell), executable, grace_s, keeps_logs=keeps_logs)
        log.info("executable.stopped", cell=cell, executable=name)
        return outcome

    def signal(self, cell: CellName, name: ExecutableName, number: int) -> None:
        """Send a signal to its main process. Raises NotFound if it has ended."""
        self._executables.signal(self._entry(cell), self._find_executable(cell, name), number)

    async def kill(self, cell: CellName, name: ExecutableName) -> ExitStatus:
        """Kill every process of it at once; its record and logs stay. Raises NotFound, Unavailable."""
        self._executables.shorten_grace(self._find_executable(cell, name), 0.0)
        locks = await self._lock_executable(cell, name)
        return await locks.finish(
            self._executables.kill(self._entry(cell), self._find_executable(cell, name))
        )

    def is_idle(self, cell: Cell) -> bool:
        """True if exactly this cell exists, and its init has nothing to do."""
        entry = self._entries.get(cell.name)
        return entry is not None and entry.record.cell == cell and self._is_idle(entry)

    def _is_idle(self, entry: CellEntry) -> bool:
        return (
            entry.init is not None
            and not entry.running()
            # Children that outlived it may still write, and the init stores that.
            and not any(self._deps.groups.pids(entry.name, each.leaf) for each in entry.executables.values())
            # The init retries exit records that the disk refused.
            and all(self._deps.records.exit(entry.name, each.number) for each in entry.executables.values())
        )

    async def end_idle_init(self, name: CellName) -> None:
        """End the init of an idle cell. Ended executables and their logs stay, and the next start creates
        another init. Raises NotFound, Unavailable."""
        self._entry(name)
        locks = await self._lock(_ancestors(name), name)
        await locks.finish(self._end_idle_init(name))

    async def _end_idle_init(self, name: CellName) -> None:
        entry = self._entry(name)
        if self._is_idle(entry):
            await self._executables.inits.end(entry)
            self._executables.mark_lost(entry, entry.executables.values())
            log.info("cell.rests", cell=name)

    def list(self) -> list[CellView]:
        """Every cell, parents before children."""
        return [self._entries[name].view() for name in sorted(self._entries)]

    def get(self, name: CellName) -> CellView:
        return self._entry(name).view()

    def executable(self, cell: CellName, name: ExecutableName) -> ExecutableState:
        return self._find_executable(cell, name).state()

    def by_pid(self, pid: int) -> ExecutableState:
        """The executable with this pid on the node, running or ended."""
        executable = self._executables.by_pid(pid)
        if executable is None:
            raise errors.NotFound(f"process {pid} is not an executable of a cell")
        return executable.state()

    async def wait(self, cell: CellName, name: ExecutableName) -> ExitStatus:
        """Wait for its exit status."""
        return await asyncio.shield(self._find_executable(cell, name).exit)

    def logs(
        self,
        cell: CellName,
        name: ExecutableName,
        stream: OutputChannel,
        *,
        owner: CellOwner | None = None,
    ) -> RingReader:
        """Logs of its `stream`. Clients may not read those of a contract."""
        executable = self._find_executable(cell, name)
        if owner is None:
            for entry in filter(None, map(self._entries.get, upwards(cell))):
                if entry.record.cell.owner is CellOwner.CONTRACT:
                    _check_owner(entry, None)
        folder = self._deps.records.folder(cell, executable.number)
        # Its output is stored before its exit is reported. A child that outlives it may keep the stream open.
        return RingReader(folder, stream.value, ended=lambda: executable.has_ended)

    def previous_logs(self, cell: CellName, stream: OutputChannel) -> RingReader:
        """Logs of the run whose records a `stop` kept. Raises NotFound if there is none."""
        folder = self._deps.records.previous(self._entry(cell).name)
        if not folder.exists():
            raise errors.NotFound(f"cell {cell!r} has no previous run")
        return RingReader(folder, stream.value, ended=lambda: True)

    def pids(self, name: CellName) -> Sequence[int]:
        """The processes of its executables, without its init and child cells."""
        groups = self._deps.groups
        leaves = [leaf for leaf in groups.leaves(self._entry(name).name) if leaf != INIT_LEAF]
        return [pid for leaf in leaves for pid in groups.pids(name, leaf)]

    def usage(self, name: CellName) -> CellUsage:
        """Usage of the cell, including everything in it."""
        return self._deps.groups.usage(self._entry(name).name)

    async def run(self) -> None:
        """Keep inits prestarted and detect missed exits. Runs for ever; raises if following an init fails."""
        checks = [
            asyncio.create_task(self._executables.detect_missed_exits(self._entries.values)),
            asyncio.create_task(self._check_groups_forever()),
        ]
        try:
            await self._executables.inits.run()
        finally:
            await cancel_and_wait(checks)

    async def _check_groups_forever(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_GROUPS_S)
            await self.end_ungrouped()

    async def end_ungrouped(self) -> None:
        """Kill what runs in cells whose groups were removed: it has no limits, and could not be killed by its
        cell."""
        for number, entry in enumerate(list(self._entries.values()), start=1):
            if entry.init is not None and not entry.is_freeing and not self._deps.groups.exists(entry.name):
                log.warning("cell.ungrouped", cell=entry.name)
                entry.init.kill()
            if number % _CHECK_BATCH == 0:
                await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop the agent's part; the cells keep running. Work in progress gets a short time to finish; the
        next agent finishes or undoes the rest."""
        await self._locks.close(_CLOSE_S)
        for entry in self._entries.values():
            await self._executables.inits.stop_following(entry)
        await self._executables.inits.close()

    def _entry(self, name: CellName) -> CellEntry:
        entry = self._entries.get(name)
        if entry is None:
            raise errors.NotFound(f"there is no cell {name!r}")
        return entry

    def _within(self, name: CellName) -> Sequence[CellEntry]:
        return [entry for entry in self._entries.values() if is_within(entry.name, name)]

    def _find_executable(self, cell: CellName, name: ExecutableName) -> ExecutableEntry:
        executable = self._entry(cell).executables.get(name)
        if executable is None:
            raise errors.NotFound(f"cell {cell!r} has no executable {name!r}")
        return executable

    def _check_stays(self, entry: CellEntry) -> None:
        if entry.is_freeing:
            raise errors.FailedPrecondition(f"cell {entry.name!r} was not freed completely; free it again")

    async def _lock(self, shared: Iterable[Hashable], exclusive: Hashable) -> PathLockGuard:
        return await self._locks.lock(list(shared), exclusive)

    async def _lock_executable(self, cell: CellName, name: ExecutableName) -> PathLockGuard:
        return await self._lock([*_ancestors(cell), cell], (cell, name))


def _check_owner(entry: CellEntry, owner: CellOwner | None) -> None:
    """Cells without an owner are open to all; those of earlier versions have none."""
    if entry.record.cell.owner in (None, owner):
        return
    raise errors.FailedPrecondition(f"cell {entry.name!r} {_OWNED[entry.record.cell.owner]}")


def _ancestors(name: CellName) -> list[CellName]:
    """From the top down, without `name` itself."""
    return [*upwards(name)][:0:-1]

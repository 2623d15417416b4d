"""Starts, watches and stops executables in a cell.

`Cells` has found the cell and holds the locks; `InitSupervisor` provides the cell's init. A start is
acknowledged by its record: until that is written, a failed start is undone, by the next agent if this one
dies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.cells import CellLimits, Executable, ExitStatus, OutputChannel, RuntimeCommand, Sandbox
from skerry.node.cells import cpu_quotas, termination
from skerry.node.cells.inits import InitSupervisor, WorkerSurroundings
from skerry.node.cells.records import ExitRecord, ProcessRecord
from skerry.node.cells.state import (
    CellDeps,
    CellEntry,
    ExecutableEntry,
    exit_of,
    leaf_of,
    may_be_oom,
    with_oom_verdict,
)
from skerry.node.launcher.cell_inits import CellInit
from skerry.node.launcher.client import LauncherClient
from skerry.node.launcher.specs import ProcessExit, RuntimeFailed, StartSpec
from skerry.node.logs.readers import LogRecord, RingReader

log = structlog.get_logger(__name__)

_KILL_S = 10.0  # a killed process that is not stuck in the kernel is gone long before
_REPORT_S = 5.0  # so is the time from the exit of a process to its init's record of it
_SIGKILL = 9
UNKNOWN_EXIT = "its exit status is unknown, since its exit record could not be written (is the disk full?)"
_RUNTIME_S = 60.0  # a machine that starts many containers at once is slow at each
_MAX_ERROR_BYTES = 500  # of a runtime's error output


class WorkerOptions(msgspec.Struct, frozen=True):
    """Options of an executable that is a function worker."""

    socket: int  # its end of the worker channel, which it has as descriptor 3
    log_bytes: int  # stored of each stream
    logs: Path | None = None  # folder of its logs; `launch` is told of it otherwise
    is_fork: bool = False  # a fork of the launcher that created its cell's init, instead of a program


class WorkerStart(NamedTuple):
    """A worker that is a fork of `launcher`."""

    launcher: LauncherClient
    spec: Executable
    options: WorkerOptions
    around: WorkerSurroundings


class StartOptions(msgspec.Struct, frozen=True):
    """How an executable is run; by default its command in a sandbox."""

    sandbox: Sandbox = msgspec.field(default_factory=Sandbox)
    # Makes the runtime's command from the path of the container's group.
    runtime: Callable[[str], RuntimeCommand] | None = None
    release: Callable[[], Awaitable[None]] | None = None  # starts the program that the runtime has prepared
    trusted: tuple[str, ...] = ()
    streams: tuple[int, ...] = ()
    worker: WorkerOptions | None = None

    def is_slowed_by(self, limits: CellLimits) -> bool:
        """True if it is a program, and the quota of a cell with these limits would slow down its start."""
        is_program = self.runtime is None and self.worker is None and not self.trusted
        return is_program and cpu_quotas.slows_starts(limits)


class ExecutableSupervisor:
    """Runs executables in cells; their state is in the `CellEntry` of each cell."""

    def __init__(self, deps: CellDeps) -> None:
        self._deps = deps
        self.inits = InitSupervisor(deps, self._on_exit, self._on_death)
        self._by_pid: dict[int, ExecutableEntry] = {}

    def by_pid(self, pid: int) -> ExecutableEntry | None:
        return self._by_pid.get(pid)

    async def start(
        self,
        entry: CellEntry,
        spec: Executable,
        options: StartOptions,
        restore_quota: Callable[[], None] | None,
    ) -> ExecutableEntry:
        """`restore_quota`, if the quota of the cell is lifted, is called before the program begins."""
        if spec.name in entry.executables:
            raise errors.AlreadyExists(
                f"cell {entry.name!r} has an executable {spec.name!r}; stop that, or choose another name"
            )
        init = await self.inits.of(entry)
        number = entry.number()
        try:
            started = await self._start(entry, spec, options, number, init, restore_quota)
        except BaseException:
            await self.undo(entry, number)
            raise
        return self._welcome(entry, ExecutableEntry(spec, number, started, init), init)

    async def launch(self, entry: CellEntry, start: WorkerStart) -> ExecutableEntry:
        """Start a worker together with the init of its new cell. What is left after a failure is removed with
        the cell."""
        spec, options = start.spec, start.options
        number, at = entry.number(), self._deps.clock.now()
        worker = StartSpec(
            key=str(number),
            command=spec.command,
            sandbox=Sandbox(),
            uid=entry.record.uid,
            gid=entry.record.uid,
            log_bytes=options.log_bytes,
            socket=options.socket,
            is_fork=True,
        )
        init, started = await self.inits.launch(entry, start.launcher, worker, leaf_of(number), start.around)
        started.close()
        record = ProcessRecord(pid=started.pid, at=at)
        return self._welcome(entry, ExecutableEntry(spec, number, record, init), init)

    def _welcome(self, entry: CellEntry, executable: ExecutableEntry, init: CellInit) -> ExecutableEntry:
        """It runs, or has ended already."""
        self.add(entry, executable)
        if entry.init is not init:
            self._on_death(entry, init)  # it died just now, and is not followed any more
        self.check_exit_record(entry, executable)
        if (exited := entry.early_exit) is not None and exited.key == str(executable.number):
            self._on_exit(entry, exited)
        return executable

    async def _start(
        self,
        entry: CellEntry,
        spec: Executable,
        options: StartOptions,
        number: int,
        init: CellInit,
        restore_quota: Callable[[], None] | None,
    ) -> ProcessRecord:
        deps, leaf = self._deps, leaf_of(number)
        # The record comes before the group, so that a group is always found by its record.
        folder = deps.records.add_executable(spec, number)
        deps.failpoint("start.folder")
        deps.groups.add_leaf(entry.name, leaf)
        deps.failpoint("start.group")
        is_first = number == 1 and not init.starts_within  # in a cell that nobody can have adopted
        ooms = 0 if is_first else deps.groups.oom_kills(entry.name, leaf)
        request = StartSpec(
            key=str(number),
            command=spec.command,
            sandbox=options.sandbox,
            uid=entry.record.uid,
            gid=entry.record.uid,
            log_bytes=deps.settings.log_bytes,
            runtime=options.runtime and options.runtime(deps.groups.runtime_group(entry.name, leaf)),
            trusted=options.trusted,
            streams=options.streams,
        )
        if (worker := options.worker) is not None:
            request = replace(
                request,
                socket=worker.socket,
                logs=worker.logs,
                log_bytes=worker.log_bytes,
                is_fork=worker.is_fork,
            )

        def prepared() -> None:
            deps.failpoint("start.waits")
            if restore_quota is not None:
                restore_quota()
            deps.failpoint("start.prepared")

        at = deps.clock.now()  # now: when the reply arrives it may have ended already
        is_slowed = options.is_slowed_by(entry.record.cell.limits)
        with deps.groups.entry(
            entry.name, leaf, from_within=init.starts_within, outside_quota=is_slowed
        ) as entry_fds:
            try:
                if options.runtime is None:
                    before_exec = None if restore_quota is None else prepared
                    started = await init.start(request, folder, entry_fds, before_exec=before_exec)
                else:
                    started = await init.start(request, folder, entry_fds, within_s=_RUNTIME_S)
            except RuntimeFailed as failed:
                raise errors.FailedPrecondition(  # most often because of the spec
                    f"the container runtime failed to start {spec.name!r} (code {failed.code}): "
                    f"{_last_error_line(folder) or 'it gave no reason'}"
                ) from failed
            except errors.Unavailable as error:
                raise errors.Unavailable(
                    f"the init of cell {entry.name!r} died just now; start {spec.name!r} again",
                    detail=error.message,
                ) from error
        started.close()
        if options.release is not None:
            prepared()
            await options.release()
        deps.failpoint("start.running")
        record = ProcessRecord(pid=started.pid, at=at, ooms=ooms)
        deps.records.set_started(entry.name, number, record)
        deps.failpoint("start.recorded")
        return record

    def add(self, entry: CellEntry, executable: ExecutableEntry) -> None:
        entry.executables[executable.spec.name] = executable
        entry.last_number = max(entry.last_number, executable.number)
        self._by_pid[executable.started.pid] = executable

    async def undo(self, entry: CellEntry, number: int) -> None:
        """Undo a start that was not acknowledged."""
        deps, leaf = self._deps, leaf_of(number)
        try:
            await termination.terminate_all(
                deps.groups, entry.name, leaf, kill_s=_KILL_S, processes=deps.processes
            )
            deps.groups.remove_leaf(entry.name, leaf)
        except (termination.Unkillable, errors.SkerryError, OSError) as error:
            # The record stays with the group, so that free and the next agent find it.
            log.warning("start.not_undone", cell=entry.name, number=number, error=str(error))
            return
        deps.records.remove(entry.name, number)

    def shorten_grace(self, executable: ExecutableEntry, grace_s: float) -> None:
        """If it is being stopped, kill it in `grace_s` at the latest."""
        if executable.kill_at is not None:
            executable.kill_at = min(executable.kill_at, self._deps.clock.monotonic() + grace_s)

    async def kill(self, entry: CellEntry, executable: ExecutableEntry, grace_s: float = 0.0) -> ExitStatus:
        """End it with all its children; its record stays."""
        try:
            await self.end(entry, executable, grace_s, _KILL_S)
        except termination.Unkillable as stuck:
            raise errors.Unavailable(
                f"processes of executable {executable.spec.name!r} were killed and do not exit: "
                f"{', '.join(map(str, stuck.pids))}; stop it again later"
            ) from None
        return await self._report(entry, executable)

    def signal(self, entry: CellEntry, executable: ExecutableEntry, number: int) -> None:
        """Send a signal to its main process. Raises NotFound if that has ended."""
        if executable.has_ended or not self._deps.processes.signal(
            executable.started.pid, number, lambda: self._deps.groups.pids(entry.name, executable.leaf)
        ):
            raise errors.NotFound(f"executable {executable.spec.name!r} has ended")

    async def stop(
        self, entry: CellEntry, executable: ExecutableEntry, grace_s: float, *, keeps_logs: bool = False
    ) -> ExitStatus:
        """End it with all its children, then remove its records, or with `keeps_logs` keep them as those of
        the previous run."""
        outcome = await self.kill(entry, executable, grace_s)
        self._deps.failpoint("stop.ended")
        self._deps.groups.remove_leaf(entry.name, executable.leaf)
        self._deps.failpoint("stop.group")
        self.forget(entry, executable)
        if keeps_logs:
            self._deps.records.keep_as_previous(entry.name, executable.number)
        else:
            self._deps.records.remove(entry.name, executable.number)
        self._deps.failpoint("stop.removed")
        return outcome

    async def end(self, entry: CellEntry, executable: ExecutableEntry, grace_s: float, kill_s: float) -> None:
        """End every process of it, also those that outlived its main process. Raises `Unkillable`."""
        executable.kill_at = self._deps.clock.monotonic() + grace_s

        def grace() -> float:
            assert executable.kill_at is not None
            return executable.kill_at - self._deps.clock.monotonic()

        def mark() -> None:
            executable.was_killed = True

        try:
            await termination.terminate_all(
                self._deps.groups,
                entry.name,
                executable.leaf,
                kill_s=kill_s,
                processes=self._deps.processes,
                grace=grace,
                on_kill=mark,
            )
        finally:
            executable.kill_at = None

    async def _report(self, entry: CellEntry, executable: ExecutableEntry) -> ExitStatus:
        """Its exit status, now that no process of it is left."""
        try:
            async with asyncio.timeout(_REPORT_S):
                return await asyncio.shield(executable.exit)
        except TimeoutError:
            self._set_unknown_exit(entry, executable)
        return executable.exit.result()

    async def detect_missed_exits(self, entries: Callable[[], Iterable[CellEntry]]) -> None:
        """Detect exits that neither a record nor an init reports: an earlier agent received the report and
        could not store it. Inits were asked to repeat reports, and get the time for that."""
        await asyncio.sleep(_REPORT_S)
        for entry in list(entries()):
            for executable in entry.running():
                if executable.started.pid not in self._deps.groups.pids(entry.name, executable.leaf):
                    self._set_unknown_exit(entry, executable)

    def _set_unknown_exit(self, entry: CellEntry, executable: ExecutableEntry) -> None:
        self.check_exit_record(entry, executable)
        if not executable.exit.done():
            log.warning("exit.unknown", cell=entry.name, executable=executable.spec.name)
            executable.exit.set_result(ExitStatus(at=self._deps.clock.now()))

    async def wait_for_exits(self, entry: CellEntry) -> None:
        """Wait a limited time for the init to report exits."""
        ends = [executable.exit for executable in entry.running()]
        if ends:
            await asyncio.wait(ends, timeout=_REPORT_S)

    def forget(self, entry: CellEntry, executable: ExecutableEntry) -> None:
        entry.executables.pop(executable.spec.name, None)
        if self._by_pid.get(executable.started.pid) is executable:
            del self._by_pid[executable.started.pid]

    def set_exit_status(
        self, entry: CellEntry, executable: ExecutableEntry, record: ExitRecord, *, is_recorded: bool = True
    ) -> None:
        """Set its exit status and wake all waiters. Unless `is_recorded`, the disk has refused the init's
        record of it."""
        if executable.exit.done():
            if executable.exit.result().is_known:
                return
            executable.exit = asyncio.get_running_loop().create_future()  # the record came late
        resolved = self._resolve_oom(entry, executable, record)
        if resolved.oom:
            self._exclude_oom_kill(entry, executable)
        if may_be_oom(resolved) or not is_recorded:  # the next agent could not determine it
            self._store_exit(entry, executable, resolved)
        executable.exit.set_result(exit_of(resolved))
        log.info(
            "executable.ended",
            cell=entry.name,
            executable=executable.spec.name,
            code=resolved.code,
            signal=resolved.signal,
            oom=resolved.oom,
        )

    def _resolve_oom(self, entry: CellEntry, executable: ExecutableEntry, record: ExitRecord) -> ExitRecord:
        return with_oom_verdict(record, executable, lambda: self._ooms(entry, executable))

    def _ooms(self, entry: CellEntry, executable: ExecutableEntry) -> int:
        try:
            return self._deps.groups.oom_kills(entry.name, executable.leaf)
        except (errors.SkerryError, OSError):  # somebody removed the group: unknown
            return 0

    def _exclude_oom_kill(self, entry: CellEntry, victim: ExecutableEntry) -> None:
        """Count an OOM kill for one executable only, of those that share a counter."""
        for executable in entry.running():
            if executable is victim:
                continue
            ooms = self._ooms(entry, executable)
            if ooms != executable.started.ooms:
                executable.started = started = msgspec.structs.replace(executable.started, ooms=ooms)
                with self._best_effort(entry, executable):
                    self._deps.records.change_started(entry.name, executable.number, started)

    def _store_exit(self, entry: CellEntry, executable: ExecutableEntry, record: ExitRecord) -> None:
        with self._best_effort(entry, executable):
            self._deps.records.set_exit(entry.name, executable.number, record)

    @contextlib.contextmanager
    def _best_effort(self, entry: CellEntry, executable: ExecutableEntry) -> Iterator[None]:
        """For a write that only the next agent needs: the exit is reported also if the disk refuses it."""
        try:
            yield
        except OSError as error:
            log.warning(
                "exit.not_recorded", cell=entry.name, executable=executable.spec.name, error=str(error)
            )

    def check_exit_record(self, entry: CellEntry, executable: ExecutableEntry) -> None:
        """Read its exit record, if there is one."""
        record = self._deps.records.exit(entry.name, executable.number)
        if record is not None:
            self.set_exit_status(entry, executable, record)

    def _on_exit(self, entry: CellEntry, exited: ProcessExit) -> None:
        executable = entry.by_number(int(exited.key))
        if executable is None:
            entry.early_exit = exited
            return
        self.check_exit_record(entry, executable)
        # The disk refused the init's record. An older report is of another executable that had this number.
        if (
            not (executable.exit.done() and executable.exit.result().is_known)
            and exited.at >= executable.started.at
        ):
            record = ExitRecord(exited.at, exited.code, exited.signal)
            self.set_exit_status(entry, executable, record, is_recorded=False)

    def _on_death(self, entry: CellEntry, init: CellInit) -> None:
        died = [executable for executable in entry.executables.values() if executable.init is init]
        for executable in died:
            self.check_exit_record(entry, executable)  # the init may have written it just before it died
        self.mark_lost(entry, died)

    def mark_lost(self, entry: CellEntry, died: Iterable[ExecutableEntry]) -> None:
        """Their init is dead, and they with it; those that share the host's pid namespace are killed now."""
        ends: list[tuple[ExecutableEntry, ExitRecord]] = []
        for executable in died:
            executable.init = None
            if not executable.has_ended:
                self._deps.groups.kill(entry.name, executable.leaf)
                record = ExitRecord(at=self._deps.clock.now(), signal=_SIGKILL)
                ends.append((executable, self._resolve_oom(entry, executable, record)))
        # All verdicts come before any exit is set: the OOM kill of the init killed each of them.
        for executable, record in ends:
            self.set_exit_status(entry, executable, record)


def _last_error_line(folder: Path) -> str:
    """The last line that a runtime wrote to its stderr."""
    items = RingReader(folder, OutputChannel.STDERR.value, ended=lambda: True).read()
    output = b"".join(item.data for item in items if isinstance(item, LogRecord))
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1][-_MAX_ERROR_BYTES:] if lines else ""

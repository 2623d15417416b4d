"""Starting, watching and stopping executables in a cell.

`Cells` has found the cell and holds the locks; `InitSupervisor` brings the cell's init. A start is
acknowledged by its record: until that is written, everything it did is undone if it fails, or by the next
agent if this one dies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import structlog

from skerry.model import errors
from skerry.model.cells import CellLimits, Executable, ExitStatus, OutputChannel, RuntimeCommand, Sandbox
from skerry.node.cells import cpu_quotas, termination
from skerry.node.cells.inits import InitSupervisor
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
from skerry.node.launcher.client import InitClient, ProcessExit, RuntimeFailed, StartSpec
from skerry.node.logs.readers import LogRecord, RingReader

log = structlog.get_logger(__name__)

_KILL_S = 10.0  # a process that was killed and is not held by the kernel is gone long before
_REPORT_S = 5.0  # so is the time from the end of a process to its init's record of it
_SIGKILL = 9
UNKNOWN_EXIT = (
    "it has ended; how is not known, since its exit record could not be written (is the disk full?)"
)
_RUNTIME_S = 60.0  # a machine that starts many containers at once is slow at each
_TOLD_BYTES = 500  # of what a runtime said when it failed


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What an executable that works for a function has besides."""

    socket: int  # its end of a conversation, which it has as descriptor 3
    logs: Path  # where its output is kept
    log_bytes: int  # kept of each stream
    is_fork: bool = False  # of the launcher that made its cell's init, instead of a program


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How an executable is run; by default its command in a sandbox."""

    sandbox: Sandbox = field(default_factory=Sandbox)
    # Makes the runtime's command when the group for the container is known.
    runtime: Callable[[str], RuntimeCommand] | None = None
    release: Callable[[], Awaitable[None]] | None = None  # begins the program that the runtime has prepared
    trusted: tuple[str, ...] = ()
    streams: tuple[int, ...] = ()
    worker: WorkerOptions | None = None

    def is_slowed_by(self, limits: CellLimits) -> bool:
        """True if it is a program, and the quota of a cell with these limits would slow its start."""
        is_program = self.runtime is None and self.worker is None and not self.trusted
        return is_program and cpu_quotas.slows_starts(limits)


class ExecutableSupervisor:
    """What runs in cells; all state is in the `CellEntry` of each cell."""

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
        put_quota_on: Callable[[], None] | None,
    ) -> ExecutableEntry:
        """`put_quota_on`, if the quota of the cell is lifted, is called before the program begins."""
        if spec.name in entry.executables:
            raise errors.AlreadyExists(
                f"cell {entry.name!r} has an executable {spec.name!r}; stop that, or choose another name"
            )
        init = await self.inits.of(entry)
        number = entry.number()
        try:
            started = await self._start(entry, spec, options, number, init, put_quota_on)
        except BaseException:
            await self.undo(entry, number)
            raise
        known = ExecutableEntry(spec, number, started, init)
        self.add(entry, known)
        if entry.init is not init:
            self._on_death(entry, init)  # it died as this began: nobody else will tell
        self.look(entry, known)  # it may have ended before anybody here knew it
        return known

    async def _start(
        self,
        entry: CellEntry,
        spec: Executable,
        options: StartOptions,
        number: int,
        init: InitClient,
        put_quota_on: Callable[[], None] | None,
    ) -> ProcessRecord:
        deps, leaf = self._deps, leaf_of(number)
        # The record is there before the group, so that a group can always be found by its record.
        folder = deps.records.add_executable(spec, number)
        deps.reached("start.folder")
        deps.groups.add_leaf(entry.name, leaf)
        deps.reached("start.group")
        ooms = deps.groups.oom_kills(entry.name, leaf)
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
            deps.reached("start.waits")
            if put_quota_on is not None:
                put_quota_on()
            deps.reached("start.prepared")

        at = deps.clock.now()  # now, since by the time we are told it may have ended already
        is_slowed = options.is_slowed_by(entry.record.cell.limits)
        with deps.groups.entrance(entry.name, leaf, from_within=True, outside_quota=is_slowed) as entrance:
            try:
                if options.runtime is None:
                    before_exec = None if put_quota_on is None else prepared
                    started = await init.start(request, folder, entrance, before_exec=before_exec)
                else:
                    started = await init.start(request, folder, entrance, within_s=_RUNTIME_S)
            except RuntimeFailed as failed:
                raise errors.FailedPrecondition(  # most often for what it was asked to run
                    f"the container runtime failed to start {spec.name!r} (code {failed.code}): "
                    f"{_last_words(folder) or 'it did not say why'}"
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
        deps.reached("start.running")
        record = ProcessRecord(pid=started.pid, at=at, ooms=ooms)
        deps.records.set_started(entry.name, number, record)
        deps.reached("start.recorded")
        return record

    def add(self, entry: CellEntry, known: ExecutableEntry) -> None:
        entry.executables[known.spec.name] = known
        entry.last_number = max(entry.last_number, known.number)
        self._by_pid[known.started.pid] = known

    async def undo(self, entry: CellEntry, number: int) -> None:
        """Leave nothing of a start that nobody was told of."""
        deps, leaf = self._deps, leaf_of(number)
        try:
            await termination.terminate_all(
                deps.groups, entry.name, leaf, kill_s=_KILL_S, processes=deps.processes
            )
            deps.groups.remove_leaf(entry.name, leaf)
        except (termination.Unkillable, errors.SkerryError, OSError) as error:
            # The group keeps its record, so that Free and the next agent find it.
            log.warning("start.not_undone", cell=entry.name, number=number, error=str(error))
            return
        deps.records.remove(entry.name, number)

    def hurry(self, known: ExecutableEntry, grace_s: float) -> None:
        """If somebody is ending it, it is killed `grace_s` from now at the latest."""
        if known.killed_from is not None:
            known.killed_from = min(known.killed_from, self._deps.clock.monotonic() + grace_s)

    async def kill(self, entry: CellEntry, known: ExecutableEntry, grace_s: float = 0.0) -> ExitStatus:
        """End it with all its children; it stays known."""
        try:
            await self.end(entry, known, grace_s, _KILL_S)
        except termination.Unkillable as stuck:
            raise errors.Unavailable(
                f"processes of executable {known.spec.name!r} were killed and do not die: "
                f"{', '.join(map(str, stuck.pids))}; stop it again later"
            ) from None
        return await self._report(entry, known)

    def signal(self, entry: CellEntry, known: ExecutableEntry, number: int) -> None:
        """Send a signal to its main process. Raises NotFound if that has ended."""
        if known.has_ended or not self._deps.processes.signal(
            known.started.pid, number, lambda: self._deps.groups.pids(entry.name, known.leaf)
        ):
            raise errors.NotFound(f"executable {known.spec.name!r} has ended")

    async def stop(self, entry: CellEntry, known: ExecutableEntry, grace_s: float) -> ExitStatus:
        """End it with all its children, then forget it."""
        outcome = await self.kill(entry, known, grace_s)
        self._deps.reached("stop.ended")
        self._deps.groups.remove_leaf(entry.name, known.leaf)
        self._deps.reached("stop.group")
        self.forget(entry, known)
        self._deps.records.remove(entry.name, known.number)
        self._deps.reached("stop.removed")
        return outcome

    async def end(self, entry: CellEntry, known: ExecutableEntry, grace_s: float, kill_s: float) -> None:
        """End every process of it, also those that outlived its main process. Raises `Unkillable`."""
        known.killed_from = self._deps.clock.monotonic() + grace_s

        def grace() -> float:
            assert known.killed_from is not None
            return known.killed_from - self._deps.clock.monotonic()

        def mark() -> None:
            known.was_killed = True

        try:
            await termination.terminate_all(
                self._deps.groups,
                entry.name,
                known.leaf,
                kill_s=kill_s,
                processes=self._deps.processes,
                grace=grace,
                on_kill=mark,
            )
        finally:
            known.killed_from = None

    async def _report(self, entry: CellEntry, known: ExecutableEntry) -> ExitStatus:
        """How it ended, now that no process of it is left."""
        try:
            async with asyncio.timeout(_REPORT_S):
                return await asyncio.shield(known.exit)
        except TimeoutError:
            self._settle_unreported(entry, known)
        return known.exit.result()

    async def settle_missing(self, entries: Callable[[], Iterable[CellEntry]]) -> None:
        """See the ends that neither a record nor an init tells of: what an agent before this one heard, and
        could not write down. Inits were asked to repeat them, and have the time for that."""
        await asyncio.sleep(_REPORT_S)
        for entry in list(entries()):
            for known in entry.running():
                if known.started.pid not in self._deps.groups.pids(entry.name, known.leaf):
                    self._settle_unreported(entry, known)

    def _settle_unreported(self, entry: CellEntry, known: ExecutableEntry) -> None:
        self.look(entry, known)
        if not known.exit.done():
            log.warning("exit.unknown", cell=entry.name, executable=known.spec.name)
            known.exit.set_result(ExitStatus(at=self._deps.clock.now()))

    async def settle_all(self, entry: CellEntry) -> None:
        """Give the init time to report the ends of what has ended."""
        ends = [known.exit for known in entry.running()]
        if ends:
            await asyncio.wait(ends, timeout=_REPORT_S)

    def forget(self, entry: CellEntry, known: ExecutableEntry) -> None:
        entry.executables.pop(known.spec.name, None)
        if self._by_pid.get(known.started.pid) is known:
            del self._by_pid[known.started.pid]

    def settle(
        self, entry: CellEntry, known: ExecutableEntry, record: ExitRecord, *, is_recorded: bool = True
    ) -> None:
        """It has ended like this: everybody who waits is told. If it is not `is_recorded`, the disk has
        refused the init's record of it."""
        if known.exit.done():
            if known.exit.result().is_known:
                return
            known.exit = asyncio.get_running_loop().create_future()  # the record came late
        judged = self._judge(entry, known, record)
        if judged.oom:
            self._count_no_more(entry, known)
        if may_be_oom(judged) or not is_recorded:  # the next agent could not tell any more
            self._write_down(entry, known, judged)
        known.exit.set_result(exit_of(judged))
        log.info(
            "executable.ended",
            cell=entry.name,
            executable=known.spec.name,
            code=judged.code,
            signal=judged.signal,
            oom=judged.oom,
        )

    def _judge(self, entry: CellEntry, known: ExecutableEntry, record: ExitRecord) -> ExitRecord:
        return with_oom_verdict(record, known, lambda: self._ooms(entry, known))

    def _ooms(self, entry: CellEntry, known: ExecutableEntry) -> int:
        try:
            return self._deps.groups.oom_kills(entry.name, known.leaf)
        except (errors.SkerryError, OSError):  # somebody removed the group: nothing can be told
            return 0

    def _count_no_more(self, entry: CellEntry, victim: ExecutableEntry) -> None:
        """A kill that was put down to one executable is not put down to another that is counted with it."""
        for known in entry.running():
            if known is victim:
                continue
            ooms = self._ooms(entry, known)
            if ooms != known.started.ooms:
                known.started = started = msgspec.structs.replace(known.started, ooms=ooms)
                with self._optional(entry, known):
                    self._deps.records.change_started(entry.name, known.number, started)

    def _write_down(self, entry: CellEntry, known: ExecutableEntry, record: ExitRecord) -> None:
        with self._optional(entry, known):
            self._deps.records.set_exit(entry.name, known.number, record)

    @contextlib.contextmanager
    def _optional(self, entry: CellEntry, known: ExecutableEntry) -> Iterator[None]:
        """A write that only the next agent would miss: an end is told also if the disk refuses it."""
        try:
            yield
        except OSError as error:
            log.warning("exit.not_recorded", cell=entry.name, executable=known.spec.name, error=str(error))

    def look(self, entry: CellEntry, known: ExecutableEntry) -> None:
        """See whether its end is on record."""
        record = self._deps.records.exit(entry.name, known.number)
        if record is not None:
            self.settle(entry, known, record)

    def _on_exit(self, entry: CellEntry, exited: ProcessExit) -> None:
        known = entry.by_number(int(exited.key))
        if known is None:
            return
        self.look(entry, known)
        # The disk refused the init's record. A number may have been another's before: its end is older.
        if not (known.exit.done() and known.exit.result().is_known) and exited.at >= known.started.at:
            record = ExitRecord(exited.at, exited.code, exited.signal)
            self.settle(entry, known, record, is_recorded=False)

    def _on_death(self, entry: CellEntry, init: InitClient) -> None:
        died = [known for known in entry.executables.values() if known.init is init]
        for known in died:
            self.look(entry, known)  # the last thing that the init did may have been to write it down
        self.lose(entry, died)

    def lose(self, entry: CellEntry, died: Iterable[ExecutableEntry]) -> None:
        """Their init is dead, and they with it; what shares its processes with the host is killed now."""
        ends: list[tuple[ExecutableEntry, ExitRecord]] = []
        for known in died:
            known.init = None
            if not known.has_ended:
                self._deps.groups.kill(entry.name, known.leaf)
                record = ExitRecord(at=self._deps.clock.now(), signal=_SIGKILL)
                ends.append((known, self._judge(entry, known, record)))
        # All are judged before any is settled: what killed the init for memory killed each of them.
        for known, record in ends:
            self.settle(entry, known, record)


def _last_words(folder: Path) -> str:
    """The last line that a runtime wrote to its standard error."""
    items = RingReader(folder, OutputChannel.STDERR.value, ended=lambda: True).read()
    said = b"".join(item.data for item in items if isinstance(item, LogRecord))
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1][-_TOLD_BYTES:] if lines else ""

"""Starting, watching and stopping executables in a cell.

`Cells` has found the cell and holds the locks; `Inits` brings the cell's init. A start is acknowledged by its
record: until that is written, everything it did is undone if it fails, or by the next agent if this one dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import structlog

from skerry.model import errors
from skerry.model.cells import Executable, Exit, Runtime, Sandbox, Stream
from skerry.node.cells import stopping
from skerry.node.cells.inits import Inits
from skerry.node.cells.known import Home, Known, Means, exit_of, judge, leaf_of, may_be_oom
from skerry.node.cells.records import ExitRecord, StartedRecord
from skerry.node.launching import InitHandle, RuntimeFailed, StartSpec
from skerry.node.logs.readers import Record, RingReader

log = structlog.get_logger(__name__)

_KILL_S = 10.0  # a process that was killed and is not held by the kernel is gone long before
_REPORT_S = 5.0  # so is the time from the end of a process to its init's record of it
_SIGKILL = 9
_RUNTIME_S = 60.0  # a machine that starts many containers at once is slow at each
_TOLD_BYTES = 500  # of what a runtime said when it failed


@dataclass(frozen=True, slots=True)
class Worker:
    """What an executable that works for a function has besides."""

    socket: int  # its end of a conversation, which it has as descriptor 3
    logs: Path  # where its output is kept
    log_bytes: int  # kept of each stream
    is_fork: bool = False  # of the launcher that made its cell's init, instead of a program


@dataclass(frozen=True, slots=True)
class Manner:
    """How an executable is run; by default its command in a sandbox."""

    sandbox: Sandbox = field(default_factory=Sandbox)
    # Makes the runtime's command when the group for the container is known.
    runtime: Callable[[str], Runtime] | None = None
    trusted: tuple[str, ...] = ()
    streams: tuple[int, ...] = ()
    worker: Worker | None = None


class Executables:
    """What runs in cells; all state is in the `Home` of each cell."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self.inits = Inits(means, self._on_exit, self._on_death)
        self._by_pid: dict[int, Known] = {}

    def by_pid(self, pid: int) -> Known | None:
        return self._by_pid.get(pid)

    async def start(self, home: Home, spec: Executable, manner: Manner) -> Known:
        if spec.name in home.executables:
            raise errors.AlreadyExists(
                f"cell {home.name!r} has an executable {spec.name!r}; stop that, or choose another name"
            )
        init = await self.inits.of(home)
        number = home.number()
        try:
            started = await self._start(home, spec, manner, number, init)
        except BaseException:
            await self.undo(home, number)
            raise
        known = Known(spec, number, started, init)
        self.add(home, known)
        if home.init is not init:
            self._on_death(home, init)  # it died as this began: nobody else will tell
        self.look(home, known)  # it may have ended before anybody here knew it
        return known

    async def _start(
        self, home: Home, spec: Executable, manner: Manner, number: int, init: InitHandle
    ) -> StartedRecord:
        means, leaf = self._means, leaf_of(number)
        # The record is there before the group, so that a group can always be found by its record.
        folder = means.records.add_executable(spec, number)
        means.reached("start.folder")
        means.groups.add_leaf(home.name, leaf)
        means.reached("start.group")
        ooms = means.groups.oom_kills(home.name, leaf)
        request = StartSpec(
            key=str(number),
            command=spec.command,
            sandbox=manner.sandbox,
            uid=home.record.uid,
            gid=home.record.uid,
            log_bytes=means.settings.log_bytes,
            runtime=manner.runtime and manner.runtime(means.groups.runtime_group(home.name, leaf)),
            trusted=manner.trusted,
            streams=manner.streams,
        )
        if (worker := manner.worker) is not None:
            request = replace(
                request,
                socket=worker.socket,
                logs=worker.logs,
                log_bytes=worker.log_bytes,
                is_fork=worker.is_fork,
            )
        at = means.clock.now()  # now, since by the time we are told it may have ended already
        with means.groups.entrance(home.name, leaf, from_within=True) as entrance:
            try:
                if manner.runtime is None:
                    started = await init.start(request, folder, entrance)
                else:
                    started = await init.start(request, folder, entrance, within_s=_RUNTIME_S)
            except RuntimeFailed as failed:
                raise errors.Refused(  # most often for what it was asked to run
                    f"the container runtime failed to start {spec.name!r} (code {failed.code}): "
                    f"{_last_words(folder) or 'it did not say why'}"
                ) from failed
            except errors.Unavailable as error:
                raise errors.Unavailable(
                    f"the init of cell {home.name!r} died just now; start {spec.name!r} again",
                    detail=error.message,
                ) from error
        started.close()
        means.reached("start.running")
        record = StartedRecord(pid=started.pid, at=at, ooms=ooms)
        means.records.set_started(home.name, number, record)
        means.reached("start.recorded")
        return record

    def add(self, home: Home, known: Known) -> None:
        home.executables[known.spec.name] = known
        home.last_number = max(home.last_number, known.number)
        self._by_pid[known.started.pid] = known

    async def undo(self, home: Home, number: int) -> None:
        """Leave nothing of a start that nobody was told of."""
        means, leaf = self._means, leaf_of(number)
        try:
            await stopping.empty(means.groups, home.name, leaf, kill_s=_KILL_S, processes=means.processes)
            means.groups.remove_leaf(home.name, leaf)
        except (stopping.Unkillable, errors.SkerryError, OSError) as error:
            # The group keeps its record, so that Free and the next agent find it.
            log.warning("start.not_undone", cell=home.name, number=number, error=str(error))
            return
        means.records.remove(home.name, number)

    def hurry(self, known: Known, grace_s: float) -> None:
        """If somebody is ending it, it is killed `grace_s` from now at the latest."""
        if known.killed_from is not None:
            known.killed_from = min(known.killed_from, self._means.clock.monotonic() + grace_s)

    async def kill(self, home: Home, known: Known, grace_s: float = 0.0) -> Exit:
        """End it with all its children; it stays known."""
        try:
            await self.end(home, known, grace_s, _KILL_S)
        except stopping.Unkillable as stuck:
            raise errors.Unavailable(
                f"processes of executable {known.spec.name!r} were killed and do not die: "
                f"{', '.join(map(str, stuck.pids))}; stop it again later"
            ) from None
        return await self._report(home, known)

    def signal(self, home: Home, known: Known, number: int) -> None:
        """Send a signal to its main process. Raises NotFound if that has ended."""
        if known.has_ended or not self._means.processes.signal(
            known.started.pid, number, lambda: self._means.groups.pids(home.name, known.leaf)
        ):
            raise errors.NotFound(f"executable {known.spec.name!r} has ended")

    async def stop(self, home: Home, known: Known, grace_s: float) -> Exit:
        """End it with all its children, then forget it."""
        outcome = await self.kill(home, known, grace_s)
        self._means.reached("stop.ended")
        self._means.groups.remove_leaf(home.name, known.leaf)
        self._means.reached("stop.group")
        self.forget(home, known)
        self._means.records.remove(home.name, known.number)
        self._means.reached("stop.removed")
        return outcome

    async def end(self, home: Home, known: Known, grace_s: float, kill_s: float) -> None:
        """End every process of it, also those that outlived its main process. Raises `Unkillable`."""
        known.killed_from = self._means.clock.monotonic() + grace_s

        def grace() -> float:
            assert known.killed_from is not None
            return known.killed_from - self._means.clock.monotonic()

        def mark() -> None:
            known.was_killed = True

        try:
            await stopping.empty(
                self._means.groups,
                home.name,
                known.leaf,
                kill_s=kill_s,
                processes=self._means.processes,
                grace=grace,
                on_kill=mark,
            )
        finally:
            known.killed_from = None

    async def _report(self, home: Home, known: Known) -> Exit:
        """How it ended, now that no process of it is left."""
        try:
            async with asyncio.timeout(_REPORT_S):
                return await asyncio.shield(known.exit)
        except TimeoutError:
            self.look(home, known)
        if known.exit.done():
            return known.exit.result()
        raise errors.Unavailable(
            f"the init of cell {home.name!r} does not report how {known.spec.name!r} ended; free the cell"
        )

    async def settle_all(self, home: Home) -> None:
        """Give the init time to report the ends of what has ended."""
        ends = [known.exit for known in home.running()]
        if ends:
            await asyncio.wait(ends, timeout=_REPORT_S)

    def forget(self, home: Home, known: Known) -> None:
        home.executables.pop(known.spec.name, None)
        if self._by_pid.get(known.started.pid) is known:
            del self._by_pid[known.started.pid]

    def settle(self, home: Home, known: Known, record: ExitRecord) -> None:
        """It has ended like this: everybody who waits is told."""
        if known.exit.done():
            return
        judged = self._judge(home, known, record)
        if judged.oom:
            self._count_no_more(home, known)
        if may_be_oom(judged):  # the next agent could not tell any more
            self._write_down(home, known, judged)
        known.exit.set_result(exit_of(judged))
        log.info(
            "executable.ended",
            cell=home.name,
            executable=known.spec.name,
            code=judged.code,
            signal=judged.signal,
            oom=judged.oom,
        )

    def _judge(self, home: Home, known: Known, record: ExitRecord) -> ExitRecord:
        return judge(record, known, lambda: self._ooms(home, known))

    def _ooms(self, home: Home, known: Known) -> int:
        try:
            return self._means.groups.oom_kills(home.name, known.leaf)
        except (errors.SkerryError, OSError):  # somebody removed the group: nothing can be told
            return 0

    def _count_no_more(self, home: Home, victim: Known) -> None:
        """A kill that was put down to one executable is not put down to another that is counted with it."""
        for known in home.running():
            if known is victim:
                continue
            ooms = self._ooms(home, known)
            if ooms != known.started.ooms:
                known.started = msgspec.structs.replace(known.started, ooms=ooms)
                self._means.records.change_started(home.name, known.number, known.started)

    def _write_down(self, home: Home, known: Known, record: ExitRecord) -> None:
        try:
            self._means.records.set_exit(home.name, known.number, record)
        except OSError as error:  # only the next agent would miss it
            log.warning("exit.not_recorded", cell=home.name, executable=known.spec.name, error=str(error))

    def look(self, home: Home, known: Known) -> None:
        """See whether its end is on record."""
        record = self._means.records.exit(home.name, known.number)
        if record is not None:
            self.settle(home, known, record)

    def _on_exit(self, home: Home, key: str) -> None:
        known = home.by_number(int(key))
        if known is not None:
            self.look(home, known)

    def _on_death(self, home: Home, init: InitHandle) -> None:
        died = [known for known in home.executables.values() if known.init is init]
        for known in died:
            self.look(home, known)  # the last thing that the init did may have been to write it down
        self.lose(home, died)

    def lose(self, home: Home, died: Iterable[Known]) -> None:
        """Their init is dead, and they with it; what shares its processes with the host is killed now."""
        ends: list[tuple[Known, ExitRecord]] = []
        for known in died:
            known.init = None
            if not known.has_ended:
                self._means.groups.kill(home.name, known.leaf)
                record = ExitRecord(at=self._means.clock.now(), signal=_SIGKILL)
                ends.append((known, self._judge(home, known, record)))
        # All are judged before any is settled: what killed the init for memory killed each of them.
        for known, record in ends:
            self.settle(home, known, record)


def _last_words(folder: Path) -> str:
    """The last line that a runtime wrote to its standard error."""
    items = RingReader(folder, Stream.STDERR.value, ended=lambda: True).read()
    said = b"".join(item.data for item in items if isinstance(item, Record))
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1][-_TOLD_BYTES:] if lines else ""

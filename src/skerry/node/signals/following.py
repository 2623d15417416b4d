"""Distributes traced signals to followers: of one cell, or of the whole machine.

`skerry.wire.aurae` follows; `skerry.node.signals.tracing` reads the kernel's trace, which is open only while
there are followers. A signal belongs to a cell if it was sent to a process of one of the cell's executables,
or to a descendant of one; the cell's init and child cells do not count. A process is often gone when the
signal that killed it is read, so processes are also identified by their parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from skerry.model import errors
from skerry.model.cells import ExecutableState
from skerry.model.ids import CellName
from skerry.node.signals.tracing import ForkRecord, LostRecords, SignalRecord, Trace, TraceRecord

_MOST_FORKS: Final = 65_536  # to remember
_MAX_REMEMBERED: Final = 65_536  # processes that a follower remembers to be in its cell, or not
_MOST_UNREAD: Final = 10_000  # signals that a follower may lag behind
_CHECK_S: Final = 1.0  # between two checks that the cell of a follower exists
_JUST_ENDED_S: Final = 5.0  # an executable that ended more recently may still get the signal that ended it


class SignalSent(msgspec.Struct, frozen=True):
    """A signal to a process, by its pid on the node."""

    number: int
    pid: int


class CellProcesses(Protocol):
    """The part of `skerry.node.cells` that is used here."""

    def pids(self, name: CellName) -> Sequence[int]: ...

    def by_pid(self, pid: int) -> ExecutableState: ...


class OpenTrace(Protocol):
    """The part of `Trace` that is used here."""

    def close(self) -> None: ...


class Lineage:
    """Parents of recently forked processes."""

    def __init__(self, most: int = _MOST_FORKS) -> None:
        self._most = most
        self._parents: OrderedDict[int, tuple[int, int]] = OrderedDict()  # by thread: its process, its parent

    def add(self, fork: ForkRecord) -> None:
        self._parents.pop(fork.thread, None)
        self._parents[fork.thread] = (fork.pid, fork.parent)
        if len(self._parents) > self._most:
            self._parents.popitem(last=False)

    def process_of(self, thread: int) -> int:
        """The process of a thread; the thread's own id if neither forks nor the kernel know it."""
        if (fork := self._parents.get(thread)) is not None:
            return fork[0]
        return _thread_group(thread) or thread

    def upwards(self, pid: int) -> Iterator[int]:
        """`pid` and its ancestors, as far as known."""
        visited: set[int] = set()
        while pid not in visited:
            visited.add(pid)
            yield pid
            pid = self._parents.get(pid, (pid, pid))[1]


class SignalSource:
    """The signals of this machine."""

    def __init__(
        self,
        cells: CellProcesses,
        open_trace: Callable[[Callable[[list[TraceRecord]], None]], OpenTrace] = Trace.open,
        *,
        now: Callable[[], float] = time.time,
        most_unread: int = _MOST_UNREAD,
        check_s: float = _CHECK_S,
    ) -> None:
        self._cells = cells
        self._open_trace = open_trace
        self._now = now
        self._most_unread = most_unread
        self._check_s = check_s
        self._followers: set[Follower] = set()
        self._trace: OpenTrace | None = None
        self._lineage = Lineage()

    @contextlib.contextmanager
    def follow(self, cell: CellName | None = None) -> Iterator[Follower]:
        """From now on: signals of `cell`, or all. Raises NotFound, Unavailable."""
        if self._trace is None:
            self._lineage = Lineage()
            self._trace = self._open_trace(self._on_records)
        with contextlib.ExitStack() as undo:
            undo.callback(self._close_unused)
            # Only after the trace has started, so that no fork is missed between this list and the first
            # record.
            members = None if cell is None else _Members(self._cells, cell, self._now)
            follower = Follower(members, self._most_unread, self._check_s)
            self._followers.add(follower)
            undo.callback(self._followers.discard, follower)
            yield follower

    def _close_unused(self) -> None:
        if not self._followers and self._trace is not None:
            self._trace.close()
            self._trace = None

    def _on_records(self, records: list[TraceRecord]) -> None:
        for record in records:
            if isinstance(record, ForkRecord):
                self._lineage.add(record)
            for follower in self._followers:
                follower.handle(record, self._lineage)


class Follower:
    """One follower; iterate to get signals. Ends with its cell, and raises Overloaded if it was too slow: no
    signal is dropped silently."""

    def __init__(self, members: _Members | None, most_unread: int, check_s: float) -> None:
        self._members = members
        self._most_unread = most_unread
        self._check_s = check_s
        self._unread: deque[SignalSent] = deque()
        self._lost_count = 0
        self._woken = asyncio.Event()

    def handle(self, record: TraceRecord, lineage: Lineage) -> None:
        if isinstance(record, ForkRecord):
            if self._members is not None:
                self._members.forget(record.thread)
            return
        if isinstance(record, LostRecords):
            self._lost_count += record.missing
        else:
            self._take(record, lineage)
        self._woken.set()

    def _take(self, record: SignalRecord, lineage: Lineage) -> None:
        pid = lineage.process_of(record.thread)
        if self._lost_count or (self._members is not None and not self._members.has(pid, lineage)):
            return
        if len(self._unread) >= self._most_unread:
            self._lost_count = 1
            return
        self._unread.append(SignalSent(record.number, pid))

    async def __aiter__(self) -> AsyncIterator[SignalSent]:
        while True:
            while self._unread:
                yield self._unread.popleft()
            if self._lost_count:
                raise errors.Overloaded(
                    "signals arrived faster than they were read, and some were lost; follow again"
                )
            self._woken.clear()
            try:
                async with asyncio.timeout(None if self._members is None else self._check_s):
                    await self._woken.wait()
            except TimeoutError:
                assert self._members is not None
                if not self._members.has_cell():
                    return


class _Members:
    """The processes of one cell."""

    def __init__(self, cells: CellProcesses, cell: CellName, now: Callable[[], float]) -> None:
        self._cells = cells
        self._cell = cell
        self._now = now
        self._inside = set(cells.pids(cell))
        self._outside: set[int] = set()

    def has_cell(self) -> bool:
        with contextlib.suppress(OSError):  # one of its groups is just being removed
            try:
                self._cells.pids(self._cell)
            except errors.NotFound:
                return False
        return True

    def forget(self, pid: int) -> None:
        """The pid belongs to another process from now on."""
        self._inside.discard(pid)
        self._outside.discard(pid)

    def has(self, pid: int, lineage: Lineage) -> bool:
        if pid in self._outside:
            return False
        if any(each in self._inside or self._is_executable(each) for each in lineage.upwards(pid)):
            self._inside.add(pid)
            return True
        if len(self._inside) + len(self._outside) > _MAX_REMEMBERED:  # most have ended long ago
            self._inside, self._outside = set(self._listed()), set()
        is_inside = pid in self._listed()
        (self._inside if is_inside else self._outside).add(pid)
        return is_inside

    def _is_executable(self, pid: int) -> bool:
        try:
            state = self._cells.by_pid(pid)
        except errors.NotFound:
            return False
        return state.cell == self._cell and (
            state.exit is None or self._now() - state.exit.at < _JUST_ENDED_S
        )

    def _listed(self) -> Sequence[int]:
        try:
            return self._cells.pids(self._cell)
        except (errors.NotFound, OSError):  # the cell, or one of its groups, is just being removed
            return ()


def _thread_group(thread: int) -> int:
    """The process of a living thread, or 0."""
    try:
        status = Path(f"/proc/{thread}/status").read_bytes()
    except OSError:
        return 0
    return next((int(line[5:]) for line in status.splitlines() if line.startswith(b"Tgid:")), 0)

"""Reads the kernel's tracepoint `signal:signal_generate` through perf events: one buffer per processor.

`skerry.node.signals.following` opens a `Trace` while there are followers. A trace also has forks, by which
processes of a cell are identified after their end. Nothing is changed on the host: the events are descriptors
of this process, and tracefs is read through a detached mount. Records are decoded by pure functions; records
that the kernel dropped because a buffer was full are counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import mmap
import os
import platform
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from skerry.model import errors

_TRACEPOINT: Final = "events/signal/signal_generate"
_TRACEFS: Final = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_HOST_PIDS: Final = 0xEFFFFFFC  # inode of the initial pid namespace, whose pids tracepoints report

_PERF_EVENT_OPEN: Final = {"x86_64": 298, "aarch64": 241}
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # on every architecture
_FSOPEN_CLOEXEC: Final = 1
_FSCONFIG_CMD_CREATE: Final = 6
_FSMOUNT_CLOEXEC: Final = 1
_PERF_FLAG_FD_CLOEXEC: Final = 8

# struct perf_event_attr, in its first published size.
_ATTRIBUTES: Final = struct.Struct("=IIQQQQQIIQ")
_PERF_TYPE_TRACEPOINT: Final = 2
_PERF_SAMPLE_TIME: Final = 1 << 2
_PERF_SAMPLE_RAW: Final = 1 << 10
_WITH_TASKS: Final = 1 << 13  # report forks and exits, too
_TIME_ON_ALL: Final = 1 << 18

_PAGES: Final = 64  # of a buffer, after its control page; a power of two
_HEAD: Final = 1024  # in the control page: the kernel's write position, followed by our read position
_COUNTER: Final = struct.Struct("@Q")  # native, so that it is read and written atomically

_HEADER: Final = struct.Struct("=IHH")  # kind, flags, size with this header
_LOST, _FORK, _SAMPLE = 2, 7, 9
_LOST_BODY: Final = struct.Struct("=QQ")  # which event, how many
_FORK_BODY: Final = struct.Struct("=IIIIQ")  # pid, parent, thread, parent's thread, time
_SAMPLE_BODY: Final = struct.Struct("=QI")  # time, size of the rest
_NUMBER: Final = struct.Struct("=i")
_FIELD: Final = re.compile(r"field:[^;]*\b(\w+)(?:\[\d+\])?;\s*offset:(\d+);")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class SignalRecord(NamedTuple):
    """A signal was sent to the thread `thread`."""

    time: int
    number: int
    thread: int


class ForkRecord(NamedTuple):
    """`thread` of process `pid` was created by process `parent`; for a new thread both processes are the
    same."""

    time: int
    thread: int
    pid: int
    parent: int


class LostRecords(NamedTuple):
    """The buffer was full: number of missing records."""

    time: int
    missing: int


TraceRecord = SignalRecord | ForkRecord | LostRecords


class SignalFormat(msgspec.Struct, frozen=True):
    """Number and layout of the tracepoint in this kernel."""

    number: int
    signal_at: int
    thread_at: int


def parse_format(number: str, text: str) -> SignalFormat:
    """From the files `id` and `format` of the tracepoint."""
    offsets = {name: int(offset) for name, offset in _FIELD.findall(text)}
    try:
        return SignalFormat(int(number), offsets["sig"], offsets["pid"])
    except (KeyError, ValueError) as error:
        raise errors.Unavailable(
            "signals cannot be observed: this kernel has an unknown format for them", detail=repr(error)
        ) from error


def decode(data: bytes, layout: SignalFormat) -> Iterator[TraceRecord]:
    """The records in `data`, which begins and ends with complete ones; other kinds are skipped."""
    at = 0
    while at + _HEADER.size <= len(data):
        kind, _, size = _HEADER.unpack_from(data, at)
        if size < _HEADER.size:
            return
        body = at + _HEADER.size
        if kind == _SAMPLE:
            time, _ = _SAMPLE_BODY.unpack_from(data, body)
            raw = body + _SAMPLE_BODY.size
            (number,) = _NUMBER.unpack_from(data, raw + layout.signal_at)
            (thread,) = _NUMBER.unpack_from(data, raw + layout.thread_at)
            yield SignalRecord(time, number, thread)
        elif kind == _FORK:
            pid, parent, thread, _, time = _FORK_BODY.unpack_from(data, body)
            yield ForkRecord(time, thread, pid, parent)
        elif kind == _LOST:
            _, missing = _LOST_BODY.unpack_from(data, body)
            yield LostRecords(0, missing)
        at += size


class Trace:
    """Traces all processors until `close`; `on_records` is called in the event loop with records in order of
    time."""

    def __init__(self, layout: SignalFormat, on_records: Callable[[list[TraceRecord]], None]) -> None:
        self._layout = layout
        self._on_records = on_records
        self._buffers: list[_Buffer] = []
        self._loop = asyncio.get_running_loop()

    @classmethod
    def open(cls, on_records: Callable[[list[TraceRecord]], None]) -> Trace:
        """Raises Unavailable, with the reason, where signals cannot be observed."""
        trace = cls(read_format(), on_records)
        try:
            for cpu in _processors():
                trace._add(cpu)
        except OSError as error:
            trace.close()
            raise errors.Unavailable(
                f"signals cannot be observed: the kernel refuses perf events: {error.strerror}",
                detail=repr(error),
            ) from error
        return trace

    def _add(self, cpu: int) -> None:
        descriptor = _open_event(self._layout.number, cpu)
        try:
            buffer = _Buffer(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._buffers.append(buffer)
        self._loop.add_reader(descriptor, self._drain)

    def _drain(self) -> None:
        """Read all buffers, whichever has new data: a fork on one explains a signal on another."""
        found = [record for buffer in self._buffers for record in decode(buffer.take(), self._layout)]
        if found:
            self._on_records(sorted(found, key=lambda record: record.time))

    def close(self) -> None:
        while self._buffers:
            buffer = self._buffers.pop()
            self._loop.remove_reader(buffer.descriptor)
            buffer.close()


class _Buffer:
    """The buffer of one processor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._size = _PAGES * mmap.PAGESIZE
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE + self._size)

    def take(self) -> bytes:
        """All new data; its space is the kernel's again."""
        (head,) = _COUNTER.unpack_from(self._memory, _HEAD)
        (tail,) = _COUNTER.unpack_from(self._memory, _HEAD + _COUNTER.size)
        begin, end = tail % self._size, head % self._size
        first = mmap.PAGESIZE
        if head == tail:
            return b""
        if begin < end:
            data = self._memory[first + begin : first + end]
        else:
            data = self._memory[first + begin : first + self._size] + self._memory[first : first + end]
        _COUNTER.pack_into(self._memory, _HEAD + _COUNTER.size, head)
        return data

    def close(self) -> None:
        self._memory.close()
        os.close(self.descriptor)


def read_format() -> SignalFormat:
    """Raises Unavailable where the tracepoint does not exist, or where its pids are not ours."""
    if os.stat("/proc/self/ns/pid").st_ino != _HOST_PIDS:
        raise errors.Unavailable(
            "signals cannot be observed: Skerry runs in a pid namespace, but the kernel reports host pids"
        )
    try:
        with _tracefs() as folder:
            files = [_read(folder, f"{_TRACEPOINT}/{name}") for name in ("id", "format")]
    except OSError as error:
        raise errors.Unavailable(
            f"signals cannot be observed: this kernel has no tracepoint for them, or it cannot be read: "
            f"{error.strerror}",
            detail=repr(error),
        ) from error
    return parse_format(*files)


@contextlib.contextmanager
def _tracefs() -> Iterator[int]:
    """The folder of tracefs, where it is mounted or else as a detached mount."""
    mounted = next((path for path in _TRACEFS if Path(path, _TRACEPOINT).exists()), None)
    folder = _detached_tracefs() if mounted is None else os.open(mounted, os.O_PATH | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def _detached_tracefs() -> int:
    context = _syscall(_FSOPEN, ctypes.c_char_p(b"tracefs"), _FSOPEN_CLOEXEC)
    try:
        _syscall(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        return _syscall(_FSMOUNT, context, _FSMOUNT_CLOEXEC, 0)
    finally:
        os.close(context)


def _read(folder: int, path: str) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), encoding="ascii") as file:
        return file.read()


def _processors() -> list[int]:
    """The online processors, from a list such as `0-3,6`."""
    spans = [
        span.split("-") for span in Path("/sys/devices/system/cpu/online").read_text().strip().split(",")
    ]
    return [cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)]


def _open_event(tracepoint: int, cpu: int) -> int:
    """Every hit of `tracepoint` on `cpu`, by any process."""
    attributes = _ATTRIBUTES.pack(
        _PERF_TYPE_TRACEPOINT,
        _ATTRIBUTES.size,
        tracepoint,
        1,  # period: each one
        _PERF_SAMPLE_TIME | _PERF_SAMPLE_RAW,
        0,
        _WITH_TASKS | _TIME_ON_ALL,
        1,  # wake-up: at each
        0,
        0,
    )
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        raise errors.Unavailable(f"signals cannot be observed on {platform.machine()}")
    return _syscall(number, ctypes.c_char_p(attributes), -1, cpu, -1, _PERF_FLAG_FD_CLOEXEC)


def _syscall(number: int, *arguments: int | ctypes.c_char_p | None) -> int:
    converted = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *converted))
    if result < 0:
        failure = ctypes.get_errno()
        raise OSError(failure, os.strerror(failure))
    return result

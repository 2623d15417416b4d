"""Captures the output of a Python function per call, and writes it on for the logs.

Every call has a `CallOutput`, found by context: threads and tasks of a call print into the same one, and into
none once the call is over, so that output never appears in the next call. Direct writes to the descriptors,
by other programs or by C, are in the logs only. Standard library only; `python_worker` installs this in a
worker.
"""

from __future__ import annotations

import io
import os
import sys
from collections import deque
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final

_MOST_UNWRITTEN: Final = 64  # pieces of an unterminated line
_LARGE: Final = 4096
_CUT: Final = b"\n... output cut after %d bytes; the rest is in the logs of the function\n"


class CallOutput:
    """Output of one call; usable from any of its threads, without a lock that a fork could copy."""

    __slots__ = ("_is_open", "_most", "_size", "_stored", "_unwritten")

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._stored: list[bytes] = []
        self._unwritten: deque[tuple[int, bytes]] = deque()
        self._is_open = True

    def add(self, descriptor: int, data: bytes) -> None:
        """Store `data` up to the limit, and write it to `descriptor` by whole lines."""
        if self._is_open and self._size <= self._most:
            self._stored.append(data[: self._most + 1 - self._size])
            self._size += len(data)
        self._unwritten.append((descriptor, data))
        if b"\n" in data or len(data) > _LARGE or len(self._unwritten) > _MOST_UNWRITTEN:
            self.flush()

    def flush(self) -> None:
        lines: dict[int, list[bytes]] = {}
        while self._unwritten:
            try:
                descriptor, data = self._unwritten.popleft()
            except IndexError:
                break  # another thread was faster
            lines.setdefault(descriptor, []).append(data)
        for descriptor, parts in lines.items():
            _write(descriptor, b"".join(parts))

    def end(self) -> bytes:
        """All stored output, as UTF-8. Later output is written on and not stored."""
        self._is_open = False
        self.flush()
        if not self._stored:
            return b""
        stored = b"".join(self._stored)
        self._stored = []
        if len(stored) <= self._most:
            return stored
        return stored[: self._most].decode("utf-8", "ignore").encode() + _CUT % self._most


_outside: Final = CallOutput(0)  # output outside of calls
current: ContextVar[CallOutput] = ContextVar("output", default=_outside)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        pass  # the function has closed it; the call goes on


class _OfCall(io.IOBase):
    """Writes to the output of the current call. Cannot be closed: the next call prints to it as well."""

    _descriptor: int

    def flush(self) -> None:
        current.get().flush()

    def close(self) -> None:
        self.flush()

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True


class CapturedStream(_OfCall, io.TextIOBase):
    """Replaces `sys.stdout` or `sys.stderr`."""

    encoding: str = "utf-8"
    errors: str = "backslashreplace"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.buffer = _Bytes(descriptor)
        self.mode = "w"

    @property
    def name(self) -> str:
        return ("<stdin>", "<stdout>", "<stderr>")[self._descriptor]

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if text:
            current.get().add(self._descriptor, text.encode("utf-8", "backslashreplace"))
        return len(text)

    def reconfigure(self, **_: Any) -> None:
        """Ignored, since it is always lines of UTF-8."""


class _Bytes(_OfCall, io.BufferedIOBase):
    """The `buffer` of a `CapturedStream`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: Any, /) -> int:
        piece = bytes(memoryview(data))
        current.get().add(self._descriptor, piece)
        return len(piece)

    def writelines(self, lines: Iterable[Any], /) -> None:
        for line in lines:
            self.write(line)


def install() -> None:
    """Redirect this process's output to the current call's."""
    for number, name in enumerate(("stdout", "stderr"), start=1):
        stream = CapturedStream(number)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    # A pending partial line would be written twice.
    os.register_at_fork(before=lambda: current.get().flush())

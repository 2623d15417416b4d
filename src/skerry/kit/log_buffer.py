"""A buffer of the last lines that this process logged, numbered, to read or to follow.

`skerry.kit.logs` adds every line. Any thread may log, at any moment, also from within a finalizer; a slow
follower misses lines and gets their numbers. Nothing here ever waits for a follower, and a line costs a
follower's wake-up only if one is waiting.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable

import msgspec

from skerry.kit.sequence_gap import SequenceGap

MAX_ENTRIES = 1000
MAX_LINE = 8192


class LogEntry(msgspec.Struct, frozen=True):
    """One thing that was logged, as text."""

    seq: int
    time_ns: int
    level: str
    line: str  # with more lines below it if there was a traceback


class LogBuffer:
    """A bounded list of lines that numbers them from 1."""

    def __init__(self, keep: int = MAX_ENTRIES, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._now_ns = now_ns
        # A finalizer may log whenever memory is allocated, so also in here, on the thread that has the lock.
        # The lock lets it in again, and a line's number is its place, which is right in whatever order.
        self._lock = threading.RLock()
        self._kept: deque[tuple[int, str, str]] = deque(maxlen=keep)
        self._last = 0
        self._waiting: list[_Waiter] = []

    @property
    def last(self) -> int:
        """The number of the newest line; following after it gives only what is new."""
        return self._last

    def add(self, level: str, line: str) -> None:
        """Keep a line. From any thread."""
        if len(line) > MAX_LINE:
            line = line[: MAX_LINE - 1] + "…"
        item = (self._now_ns(), level, line)
        with self._lock:
            self._kept.append(item)
            self._last += 1
            if not self._waiting:
                return
            waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.wake()

    async def follow(self, after: int | None = None) -> AsyncGenerator[LogEntry | SequenceGap, None]:
        """The lines after the number `after`, or all that are kept, and then those that come. Never ends."""
        waiter = _Waiter()
        position = after
        try:
            while True:
                kept, last = self._read_or_wait(position, waiter)
                before = last - len(kept)  # the number before the oldest that is kept
                if position is None:
                    position = before
                elif position >= last:
                    await waiter.woken.wait()
                elif position < before:
                    yield SequenceGap(position + 1, before)
                    position = before
                for time_ns, level, line in kept[position - before :]:
                    position += 1
                    yield LogEntry(position, time_ns, level, line)
                await asyncio.sleep(0)  # a follower that logs must not block the loop
        finally:
            with self._lock:
                self._waiting = [other for other in self._waiting if other is not waiter]

    def _read_or_wait(self, position: int | None, waiter: _Waiter) -> tuple[list[tuple[int, str, str]], int]:
        """All stored lines and the last number; if nothing is new, the next line wakes `waiter`."""
        with self._lock:
            kept = list(self._kept)
            last = self._last
            if position is not None and position >= last:
                waiter.woken.clear()
                self._waiting.append(waiter)
        return kept, last


class _Waiter:
    """A follower that waits for new lines."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.woken = asyncio.Event()

    def wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self.woken.set)
        except RuntimeError:
            pass  # its loop was closed

"""Reads a ring, in the agent: stored and new records, from any position.

The writer is another process (`skerry.node.logs.rings`, which explains the format) and never waits for a
reader. A reader that was overtaken gets a `SequenceGap` with the missing numbers and continues with the
oldest stored record. An open segment stays readable when the ring drops it. At most one chunk is in memory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec

from skerry.kit import inotify
from skerry.kit.sequence_gap import SequenceGap
from skerry.node.logs import rings

_CHUNK = 4 * (rings.MAX_RECORD + rings.HEADER.size)
_WITHOUT_INOTIFY_S = 0.1


class LogRecord(msgspec.Struct, frozen=True):
    """Some bytes of output, as they were written, not a line."""

    seq: int
    time_ns: int
    data: bytes


RingItem = LogRecord | SequenceGap


class RingReader:
    """One ring, for any number of concurrent readers.

    `ended` returns True when the writer is gone, in case it was killed before it could write an end.
    """

    def __init__(
        self,
        folder: Path,
        stream: str,
        *,
        ended: Callable[[], bool] = lambda: False,
        poll_s: float = 1.0,
    ) -> None:
        self._folder = folder
        self._stream = stream
        self._ended = ended
        self._poll_s = poll_s

    def read(self, after: int = 0) -> Iterator[RingItem]:
        """Stored items after the record with the number `after`; none if the folder does not exist."""
        cursor = _Cursor.at(self._folder, self._stream, after)
        if cursor is None:
            return
        with closing(cursor):
            newest = cursor.newest()
            while not cursor.is_past(newest) and (items := cursor.take()):
                yield from items

    async def follow(self, after: int = 0) -> AsyncGenerator[RingItem, None]:
        """`read`, and then new items, until the stream ends, its writer is gone, or its folder is removed.

        Close it (`contextlib.aclosing`) to stop earlier, since it has open files.
        """
        cursor = _Cursor.at(self._folder, self._stream, after)
        if cursor is None:
            return
        with ExitStack() as opened:
            opened.enter_context(closing(cursor))
            watch = _watch(cursor.path)
            if watch is not None:
                opened.enter_context(closing(watch))
            while True:
                # Checked before reading: everything written until then is read before this ends.
                is_last_look = cursor.is_removed or self._ended()
                while items := cursor.take():
                    for item in items:
                        yield item
                    await asyncio.sleep(0)  # let other tasks run during a backlog
                if cursor.has_ended or is_last_look:
                    return
                if watch is None:
                    await asyncio.sleep(min(_WITHOUT_INOTIFY_S, self._poll_s))
                else:
                    # Neither a killed writer nor a removed folder causes an event.
                    await watch.changed(self._poll_s)


def _watch(path: str) -> inotify.DirectoryWatch | None:
    try:
        return inotify.DirectoryWatch(path)
    except OSError:
        return None  # over the limit of inotify; polling works too


class _Cursor:
    """A position in a ring, with its segment open."""

    def __init__(self, folder: int, stream: str, after: int) -> None:
        self._folder = folder
        self._stream = stream
        self._next = after + 1
        self._first = 0  # of the current segment, or the last one
        self._file = -1
        self._offset = 0
        self._is_finished = False  # the segment: a later one exists
        self.has_ended = False  # the stream: the last item read was its end

    @classmethod
    def at(cls, folder: Path, stream: str, after: int) -> _Cursor | None:
        try:
            # Kept open, so that a new folder of the same name is not mistaken for this one.
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        return cls(descriptor, stream, after)

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self._folder}"

    @property
    def is_removed(self) -> bool:
        """True if the folder was removed."""
        return os.fstat(self._folder).st_nlink == 0

    def newest(self) -> tuple[int, int]:
        """The current end of the ring: the last segment, and its size."""
        while firsts := self._segments():
            name = rings.segment_name(self._stream, firsts[-1])
            try:
                return firsts[-1], os.stat(name, dir_fd=self._folder).st_size
            except FileNotFoundError:
                continue  # the writer removed it first
        return 0, 0

    def is_past(self, position: tuple[int, int]) -> bool:
        return (self._first, self._offset) >= position

    def take(self) -> list[RingItem]:
        """The next items, a few at a time; empty if there are no more for now."""
        items: list[RingItem] = []
        while not items and self._step(items):
            pass
        return items

    def close(self) -> None:
        self._leave()
        os.close(self._folder)

    def _step(self, items: list[RingItem]) -> bool:
        """Enter a segment, read on in it, or leave it; False if there is nothing to do for now."""
        if self._file < 0:
            return self._enter()
        if self._read(items):
            return True
        if self._is_finished:
            self._leave()
            return True
        # The writer may have appended here after the last read and before it began another segment: only a
        # further read is known to be complete.
        self._is_finished = any(first > self._first for first in self._segments())
        return self._is_finished

    def _enter(self) -> bool:
        while later := [first for first in self._segments() if first > self._first]:
            first = max((first for first in later if first <= self._next), default=later[0])
            name = rings.segment_name(self._stream, first)
            try:
                self._file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._folder)
            except FileNotFoundError:
                continue  # the writer removed it first
            self._first, self._offset, self._is_finished = first, 0, False
            return True
        return False

    def _leave(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self, items: list[RingItem]) -> bool:
        chunk = os.pread(self._file, _CHUNK, self._offset)
        end = 0
        for kind, number, time_ns, begins, end in rings.scan(chunk):
            self.has_ended = kind == rings.END
            if number < self._next:
                continue
            if number > self._next:
                items.append(SequenceGap(self._next, number - 1))
            if kind == rings.DATA:
                items.append(LogRecord(number, time_ns, chunk[begins:end]))
            self._next = number + 1
        self._offset += end
        return end > 0

    def _segments(self) -> list[int]:
        try:
            return rings.segments_of(self._stream, os.listdir(self._folder))
        except FileNotFoundError:
            return []  # the folder was removed

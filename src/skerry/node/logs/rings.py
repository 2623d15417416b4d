"""Writes a ring: one stream of an executable, stored on disk within a limit.

A ring is a series of segment files in the executable's folder, each named by the number of its first record.
`RingWriter` runs in a cell's init, which is a fork of the launcher, so this module imports little of the
standard library and nothing else; `skerry.node.logs.readers` reads it in another process, concurrently and
without locks. Three rules make that safe:

- A segment only grows. A record that could not be written completely stays at the end of its segment as a
  torn tail, and the next record goes to a new segment. So bytes that were read once never change.
- A segment with a successor is finished, and a torn record in it stays torn.
- Every record has a number, also a lost one, so that a reader detects gaps.

Output matters less than the program: a full or broken disk loses records and raises nothing, and nothing is
synced, since cells do not survive a power cut either.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator

HEADER = struct.Struct("<BBHIQQ")  # mark, kind, padding, length, number, nanoseconds since the epoch
DATA = 1
END = 2
MAX_RECORD = 64 * 1024

_MARK = 0xB5
_OPENING = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

Data = bytes | bytearray | memoryview
RingRecordSpan = tuple[int, int, int, int, int]  # kind, number, time, start and end of its data


def segment_name(stream: str, first: int) -> str:
    return f"{stream}-{first:016x}"


def segments_of(stream: str, names: Iterable[str]) -> list[int]:
    """The first numbers of the segments of `stream` among `names`, oldest first."""
    found = []
    for name in names:
        series, _, digits = name.rpartition("-")
        if series == stream and len(digits) == 16:
            try:
                first = int(digits, 16)
            except ValueError:
                continue
            if segment_name(stream, first) == name:
                found.append(first)
    return sorted(found)


def scan(chunk: bytes) -> Iterator[RingRecordSpan]:
    """The complete records at the beginning of `chunk`; ends before the first torn or invalid one."""
    at, end = 0, len(chunk)
    while at + HEADER.size <= end:
        mark, kind, _, length, number, time_ns = HEADER.unpack_from(chunk, at)
        begins = at + HEADER.size
        at = begins + length
        if mark != _MARK or length > MAX_RECORD or at > end:
            return
        yield kind, number, time_ns, begins, at


class RingWriter:
    """Appends to one ring, after the records of an earlier writer; one writer at a time.

    `folder_fd` is a descriptor of the executable's folder, opened for reading; the caller keeps it open while
    the writer is used. Each segment is at most `segment_bytes` long and all of them together, with headers,
    at most `max_bytes`: the oldest is removed in time.
    """

    def __init__(
        self,
        folder_fd: int,
        stream: str,
        *,
        max_bytes: int,
        segment_bytes: int | None = None,
        is_new: bool = False,
    ) -> None:
        """`is_new`: there was no writer before; skip the scan."""
        if segment_bytes is None:
            segment_bytes = max_bytes // 8
        if not HEADER.size < segment_bytes <= max_bytes // 2:
            raise ValueError(f"a ring of {max_bytes} bytes cannot have segments of {segment_bytes}")
        self._folder = folder_fd
        self._stream = stream
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        # Two consecutive segments contain more than the length of one, unless a full disk cut them short: so
        # their
        # number is limited as well as their bytes.
        self._max_segments = 2 * (max_bytes // segment_bytes) + 2
        self._most = min(MAX_RECORD, segment_bytes - HEADER.size)
        self._sizes: dict[int, int] = {}  # by first number, oldest first
        self._total = 0
        self._file = -1
        self._first = 0  # of the segment `_file`
        self._next = 1
        if not is_new:
            self._take_over()

    def write(self, data: Data, now_ns: int) -> None:
        """Store `data`, as one or several records. Never raises; what cannot be written is lost."""
        if len(data) <= self._most:
            if data:
                self._append(DATA, data, now_ns)
            return
        view = memoryview(data)
        for at in range(0, len(view), self._most):
            self._append(DATA, view[at : at + self._most], now_ns)

    def end(self, now_ns: int) -> None:
        """Write the end of the stream, and close."""
        if not self._append(END, b"", now_ns) and len(self._sizes) > 1:
            # Followers wait for this; it is worth dropping the oldest output.
            try:
                self._drop_oldest()
            except OSError:
                pass
            self._append(END, b"", now_ns)
        self.close()

    def close(self) -> None:
        """Close without an end: a later writer continues."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, kind: int, data: Data, now_ns: int) -> bool:
        need = HEADER.size + len(data)
        number = self._next
        self._next += 1  # also if it is lost
        if self._file >= 0 and self._sizes[self._first] + need > self._segment_bytes:
            self.close()
        try:
            self._free_space(need)
            if self._file < 0:
                self._open(number)
            header = HEADER.pack(_MARK, kind, 0, len(data), number, now_ns)
            if os.writev(self._file, (header, data)) == need:
                self._sizes[self._first] += need
                self._total += need
                return True
        except OSError:
            pass  # lost, as is a partial write: the disk is full or broken
        self._abandon()
        return False

    def _free_space(self, need: int) -> None:
        # The open segment is never removed: it always leaves enough space.
        while self._total + need > self._max_bytes or (
            self._file < 0 and len(self._sizes) >= self._max_segments
        ):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._remove(next(iter(self._sizes)))

    def _remove(self, first: int) -> None:
        try:
            os.unlink(segment_name(self._stream, first), dir_fd=self._folder)
        except FileNotFoundError:
            pass  # somebody else removed it
        self._total -= self._sizes.pop(first)

    def _open(self, first: int) -> None:
        name = segment_name(self._stream, first)
        self._file = os.open(name, _OPENING, 0o600, dir_fd=self._folder)
        self._first = first
        self._sizes[first] = 0

    def _abandon(self) -> None:
        """Leave the open segment with its torn tail; remove it if it contains nothing else."""
        if self._file < 0:
            return
        whole = self._sizes[self._first]
        try:
            size = os.fstat(self._file).st_size
        except OSError:
            size = self._segment_bytes
        self.close()
        self._sizes[self._first] = size
        self._total += size - whole
        if whole == 0:
            try:
                self._remove(self._first)
            except OSError:
                pass  # it still counts, and is removed when it is the oldest

    def _take_over(self) -> None:
        """Find existing segments, and the next number."""
        for first in segments_of(self._stream, os.listdir(self._folder)):
            name = segment_name(self._stream, first)
            self._sizes[first] = os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_size
        self._total = sum(self._sizes.values())
        if not self._sizes:
            return
        newest = next(reversed(self._sizes))
        self._next, is_torn = _end_of(self._folder, segment_name(self._stream, newest), newest)
        if is_torn:
            self._next += 1  # the torn record had a number, and its segment may have that name


def _end_of(folder: int, name: str, first: int) -> tuple[int, bool]:
    """The number after the last complete record of a segment, and whether a torn one follows."""
    file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
    with open(file, "rb") as segment:
        content = segment.read()
    following, end = first, 0
    for _, number, _, _, after in scan(content):
        following, end = number + 1, after
    return following, end < len(content)

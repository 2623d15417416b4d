"""Reads a ring in pieces, from a position that can be stored and continued in another process.

For forwarding (`skerry.transport.log_forwarding`), which reads thousands of rings by turns: nothing stays
open in between. `read` takes a bounded number of bytes; `split_lines` is pure, and returns with every line
the position after it. An incomplete line at the end stays unread until it is complete, or is flushed.
`skerry.node.logs.readers` reads whole rings, for people.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from skerry.node.logs import rings
from skerry.node.logs.lines import MAX_LINE, cut_position

_CHUNK: Final = 4 * (rings.MAX_RECORD + rings.HEADER.size)


class RingPosition(msgspec.Struct, frozen=True, array_like=True):
    """Everything up to the record `after` is read, and `skip` bytes of the next, which is expected in the
    segment `segment` at `offset`."""

    after: int = 0
    skip: int = 0
    segment: int = 0
    offset: int = 0


class PlacedRecord(NamedTuple):
    """A record, and where it is."""

    number: int
    time_ns: int
    data: bytes
    segment: int
    offset: int

    def position(self, read: int) -> RingPosition:
        """The position after `read` bytes of it."""
        if read < len(self.data):
            return RingPosition(self.number - 1, read, self.segment, self.offset)
        end = self.offset + rings.HEADER.size + len(self.data)
        return RingPosition(self.number, 0, self.segment, end)


class RingPiece(NamedTuple):
    """Some records in order."""

    records: list[PlacedRecord]
    has_ended: bool  # the writer has written the end of the stream, and it was read
    is_full: bool  # there may be more


class PositionedLine(NamedTuple):
    """A line without its terminator, and the position after it."""

    time_ns: int
    text: str
    after: RingPosition
    lost: int = 0  # records; then `text` is not of the program


def read(folder: Path, stream: str, position: RingPosition, most_bytes: int) -> RingPiece:
    """Records after `position`, about `most_bytes` of them; none if the folder does not exist."""
    piece = _PieceReader(position, most_bytes)
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return RingPiece([], has_ended=True, is_full=False)
    # Listed before it is read: a segment that has a successor here is complete when it is read.
    for first in rings.segments_of(stream, names):
        if first >= position.segment and not piece.is_full:
            piece.read_segment(folder / rings.segment_name(stream, first), first)
    return RingPiece(piece.records, piece.has_ended, piece.is_full)


class _PieceReader:
    def __init__(self, position: RingPosition, most_bytes: int) -> None:
        self._position = position
        self._most_bytes = most_bytes
        self._next = position.after + 1
        self.records: list[PlacedRecord] = []
        self.has_ended = False
        self.is_full = False

    def read_segment(self, path: Path, first: int) -> None:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return  # the writer dropped it first
        try:
            at = self._position.offset if first == self._position.segment else 0
            while not self.is_full and (taken := self._take(os.pread(file, _CHUNK, at), first, at)):
                at += taken
        finally:
            os.close(file)

    def _take(self, chunk: bytes, first: int, at: int) -> int:
        """Take the records of `chunk`, which is at `at`; how many bytes they have."""
        taken = 0
        for kind, number, time_ns, begins, end in rings.scan(chunk):
            if self.is_full:
                break
            taken = end
            self.has_ended = kind == rings.END
            if number < self._next:
                continue
            self._next = number + 1
            if kind == rings.DATA:
                offset = at + begins - rings.HEADER.size
                self.records.append(PlacedRecord(number, time_ns, chunk[begins:end], first, offset))
                self._most_bytes -= end - begins
                self.is_full = self._most_bytes <= 0
        return taken


def split_lines(
    records: Sequence[PlacedRecord], position: RingPosition, *, flush: bool, max_line: int = MAX_LINE
) -> list[PositionedLine]:
    """The complete lines of `records`, which were read at `position`; those of more than `max_line` bytes are
    cut. Where records are missing is a line that says so. `flush`: also an incomplete line at the end."""
    splitter = _LineSplitter(max_line)
    expected, skip = position.after + 1, position.skip
    for record in records:
        if record.number != expected:
            splitter.flush()
            splitter.note_lost(record, record.number - expected)
            skip = 0
        splitter.take(record, skip)
        expected, skip = record.number + 1, 0
    if flush:
        splitter.flush()
    return splitter.lines


class _LineSplitter:
    def __init__(self, max_line: int) -> None:
        self._max_line = max_line
        self._begun = bytearray()
        self._begun_ns = 0
        self._last: PlacedRecord | None = None
        self.lines: list[PositionedLine] = []

    def take(self, record: PlacedRecord, at: int) -> None:
        """Take the bytes of `record` from `at` on."""
        self._last = record
        while at < len(record.data):
            if not self._begun:
                self._begun_ns = record.time_ns
            newline = record.data.find(b"\n", at)
            stop = len(record.data) if newline < 0 else newline
            begun_bytes = len(self._begun)
            if begun_bytes + stop - at > self._max_line:
                some = self._begun + record.data[at : at + self._max_line - begun_bytes + 1]
                # At least a byte: what is left of earlier records has no position of its own.
                stop = at + max(cut_position(some, self._max_line) - begun_bytes, 1)
                self._begun += record.data[at:stop]
                at = stop
                self._end(record.position(at))
                continue
            self._begun += record.data[at:stop]
            at = stop + 1
            if newline >= 0:
                self._end(record.position(at))

    def flush(self) -> None:
        if self._begun and self._last is not None:
            self._end(self._last.position(len(self._last.data)))

    def note_lost(self, following: PlacedRecord, lost: int) -> None:
        after = RingPosition(following.number - 1, 0, following.segment, following.offset)
        text = f"[{lost} records of output are lost here]"
        self.lines.append(PositionedLine(following.time_ns, text, after, lost))

    def _end(self, after: RingPosition) -> None:
        text = bytes(self._begun).removesuffix(b"\r").decode("utf-8", "replace")
        self.lines.append(PositionedLine(self._begun_ns, text, after))
        self._begun.clear()

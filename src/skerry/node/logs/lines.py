"""Joins records to lines of text: across records, cut at a maximum length, for any bytes.

Input is from `skerry.node.logs.readers`. Pure; only `follow_lines` waits, for its source. For exact bytes,
read the records.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing

import msgspec

from skerry.kit.sequence_gap import SequenceGap
from skerry.node.logs.readers import LogRecord, RingItem

MAX_LINE = 16 * 1024


class LogLine(msgspec.Struct, frozen=True):
    """A line without its terminator; `time_ns` is when its first byte arrived.

    A partial one was not terminated by the program: it was cut at the maximum length, by a gap, or by the end
    of the stream.
    """

    time_ns: int
    text: str
    is_partial: bool = False


def lines(items: Iterable[RingItem], max_line: int = MAX_LINE) -> Iterator[LogLine | SequenceGap]:
    """The lines of `items`; gaps stay in place."""
    assembler = LineAssembler(max_line)
    for item in items:
        yield from assembler.take(item)
    yield from assembler.flush()


async def follow_lines(
    items: AsyncGenerator[RingItem, None], max_line: int = MAX_LINE
) -> AsyncGenerator[LogLine | SequenceGap, None]:
    """The lines of a stream that is being followed; each is yielded when it is complete."""
    assembler = LineAssembler(max_line)
    async with aclosing(items) as source:
        async for item in source:
            for line in assembler.take(item):
                yield line
    for line in assembler.flush():
        yield line


class LineAssembler:
    """The beginning of an incomplete line."""

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max_line = max_line
        self._begun = bytearray()
        self._time_ns = 0

    def take(self, item: RingItem) -> Iterator[LogLine | SequenceGap]:
        if isinstance(item, SequenceGap):
            yield from self.flush()
            yield item
            return
        yield from self._join(item)

    def flush(self) -> Iterator[LogLine]:
        if self._begun:
            yield LogLine(self._time_ns, _text(self._begun), is_partial=True)
            self._begun.clear()

    def _join(self, record: LogRecord) -> Iterator[LogLine]:
        *ended, unterminated = record.data.split(b"\n")
        for piece in ended:
            yield from self._extend(piece, record.time_ns)
            yield LogLine(self._time_ns, _text(self._begun.removesuffix(b"\r")))
            self._begun.clear()
        yield from self._extend(unterminated, record.time_ns)

    def _extend(self, piece: bytes, time_ns: int) -> Iterator[LogLine]:
        if not self._begun:
            self._time_ns = time_ns
        self._begun += piece
        while len(self._begun) > self._max_line:
            at = cut_position(self._begun, self._max_line)
            yield LogLine(self._time_ns, _text(self._begun[:at]), is_partial=True)
            del self._begun[:at]
            self._time_ns = time_ns


def cut_position(text: bytearray, most: int) -> int:
    """At `most`, or a little before it if that is inside a character."""
    for at in range(most, max(most - 4, 0), -1):
        if text[at] & 0xC0 != 0x80:  # not a continuation byte of UTF-8
            return at
    return most  # not UTF-8


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "replace")

"""Records into lines of text: joined across records, cut where they are too long, whatever the bytes are.

Works on what `skerry.node.logs.readers` gives, for people and for contracts that speak of lines. Pure; only
`follow_lines` waits, for its source. Who wants the exact bytes reads the records.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing

import msgspec

from skerry.kit.sequence_gap import SequenceGap
from skerry.node.logs.readers import LogRecord, RingItem

MAX_LINE = 16 * 1024


class LogLine(msgspec.Struct, frozen=True):
    """A line without its end; `time_ns` is when its first byte came.

    A partial one was not ended by the program: it was cut at the longest length, by a gap, or by the end of
    the stream.
    """

    time_ns: int
    text: str
    is_partial: bool = False


def lines(items: Iterable[RingItem], max_line: int = MAX_LINE) -> Iterator[LogLine | SequenceGap]:
    """The lines of what is there; gaps stay where they are."""
    joining = LineAssembler(max_line)
    for item in items:
        yield from joining.take(item)
    yield from joining.flush()


async def follow_lines(
    items: AsyncGenerator[RingItem, None], max_line: int = MAX_LINE
) -> AsyncGenerator[LogLine | SequenceGap, None]:
    """`lines` of a stream that is being followed; each comes as soon as it is ended."""
    joining = LineAssembler(max_line)
    async with aclosing(items) as source:
        async for item in source:
            for line in joining.take(item):
                yield line
    for line in joining.flush():
        yield line


class LineAssembler:
    """The beginning of a line whose end has not come yet."""

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
        *ended, rest = record.data.split(b"\n")
        for piece in ended:
            yield from self._extend(piece, record.time_ns)
            yield LogLine(self._time_ns, _text(self._begun.removesuffix(b"\r")))
            self._begun.clear()
        yield from self._extend(rest, record.time_ns)

    def _extend(self, piece: bytes, time_ns: int) -> Iterator[LogLine]:
        if not self._begun:
            self._time_ns = time_ns
        self._begun += piece
        while len(self._begun) > self._max_line:
            at = _place_to_cut(self._begun, self._max_line)
            yield LogLine(self._time_ns, _text(self._begun[:at]), is_partial=True)
            del self._begun[:at]
            self._time_ns = time_ns


def _place_to_cut(text: bytearray, most: int) -> int:
    """At `most`, or a little before it if that is inside a character."""
    for at in range(most, max(most - 4, 0), -1):
        if text[at] & 0xC0 != 0x80:  # not a byte that continues a character
            return at
    return most  # no UTF-8 anyway


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "replace")

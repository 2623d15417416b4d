"""The last lines of several streams: as many as were asked for, whatever the pieces are."""

from __future__ import annotations

from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from skerry.kit.sequence_gap import SequenceGap
from skerry.model.cells import OutputChannel
from skerry.node.logs import tail
from skerry.node.logs.readers import LogRecord, RingItem

PIECES = st.lists(
    st.tuples(st.sampled_from(list(OutputChannel)), st.text("ab\n", max_size=6).map(str.encode)), max_size=12
)


async def each(pieces: list[tuple[OutputChannel, RingItem]]) -> AsyncIterator[tuple[OutputChannel, RingItem]]:
    for piece in pieces:
        yield piece


def records(pieces: list[tuple[OutputChannel, bytes]]) -> list[tuple[OutputChannel, RingItem]]:
    return [(stream, LogRecord(number, 0, data)) for number, (stream, data) in enumerate(pieces, 1)]


def lines_in_order(pieces: list[tuple[OutputChannel, bytes]]) -> list[tuple[OutputChannel, bytes]]:
    """The slow and obvious way: byte for byte, a line is where its first byte is."""
    lines: list[tuple[OutputChannel, bytearray]] = []
    begun: dict[OutputChannel, bytearray] = {}
    for stream, data in pieces:
        for number in data:
            if stream not in begun:
                lines.append((stream, begun.setdefault(stream, bytearray())))
            begun[stream].append(number)
            if number == ord("\n"):
                del begun[stream]
    return [(stream, bytes(line)) for stream, line in lines]


@given(PIECES, st.integers(0, 6))
async def test_what_is_let_through_is_the_last_lines_byte_for_byte(pieces, requested):
    items = records(pieces)
    skip = tail.TailFilter(await tail.count(each(items)) - requested)
    seen = dict.fromkeys(OutputChannel, b"")
    for stream, item in items:
        if isinstance(stored := skip.take(stream, item), LogRecord):
            assert (stored.seq, stored.time_ns) == (item.seq, item.time_ns)
            seen[stream] += stored.data
    last = lines_in_order(pieces)[-requested:] if requested else []
    assert seen == {
        stream: b"".join(line for whose, line in last if whose is stream) for stream in OutputChannel
    }


@given(PIECES)
async def test_lines_are_counted_once_each(pieces):
    assert await tail.count(each(records(pieces))) == len(lines_in_order(pieces))


async def test_a_gap_before_the_last_lines_is_of_no_interest_and_one_among_them_is():
    items: list[tuple[OutputChannel, RingItem]] = [
        (OutputChannel.STDOUT, SequenceGap(1, 4)),
        (OutputChannel.STDOUT, LogRecord(5, 0, b"old\nopen")),
        (OutputChannel.STDOUT, SequenceGap(6, 6)),
        (OutputChannel.STDOUT, LogRecord(7, 0, b"new\n")),
    ]
    for requested, expected in (
        (0, []),
        (1, [SequenceGap(6, 6), b"new\n"]),
        (2, [b"open", SequenceGap(6, 6), b"new\n"]),
    ):
        skip = tail.TailFilter(await tail.count(each(items)) - requested)
        stored = [skip.take(stream, item) for stream, item in items]
        assert [k.data if isinstance(k, LogRecord) else k for k in stored if k is not None] == expected

"""The last lines of several streams: as many as were asked for, whatever the pieces are."""

from __future__ import annotations

from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from skerry.kit.gaps import Gap
from skerry.model.cells import Stream
from skerry.node.logs import tails
from skerry.node.logs.readers import Item, Record

PIECES = st.lists(
    st.tuples(st.sampled_from(list(Stream)), st.text("ab\n", max_size=6).map(str.encode)), max_size=12
)


async def each(pieces: list[tuple[Stream, Item]]) -> AsyncIterator[tuple[Stream, Item]]:
    for piece in pieces:
        yield piece


def records(pieces: list[tuple[Stream, bytes]]) -> list[tuple[Stream, Item]]:
    return [(stream, Record(number, 0, data)) for number, (stream, data) in enumerate(pieces, 1)]


def lines_in_order(pieces: list[tuple[Stream, bytes]]) -> list[tuple[Stream, bytes]]:
    """The slow and obvious way: byte for byte, a line is where its first byte is."""
    lines: list[tuple[Stream, bytearray]] = []
    begun: dict[Stream, bytearray] = {}
    for stream, data in pieces:
        for number in data:
            if stream not in begun:
                lines.append((stream, begun.setdefault(stream, bytearray())))
            begun[stream].append(number)
            if number == ord("\n"):
                del begun[stream]
    return [(stream, bytes(line)) for stream, line in lines]


@given(PIECES, st.integers(0, 6))
async def test_what_is_let_through_is_the_last_lines_byte_for_byte(pieces, asked):
    items = records(pieces)
    skip = tails.Skip(await tails.count(each(items)) - asked)
    seen = dict.fromkeys(Stream, b"")
    for stream, item in items:
        if isinstance(kept := skip.take(stream, item), Record):
            assert (kept.seq, kept.time_ns) == (item.seq, item.time_ns)
            seen[stream] += kept.data
    last = lines_in_order(pieces)[-asked:] if asked else []
    assert seen == {stream: b"".join(line for whose, line in last if whose is stream) for stream in Stream}


@given(PIECES)
async def test_lines_are_counted_once_each(pieces):
    assert await tails.count(each(records(pieces))) == len(lines_in_order(pieces))


async def test_a_gap_before_the_last_lines_is_of_no_interest_and_one_among_them_is():
    items: list[tuple[Stream, Item]] = [
        (Stream.STDOUT, Gap(1, 4)),
        (Stream.STDOUT, Record(5, 0, b"old\nopen")),
        (Stream.STDOUT, Gap(6, 6)),
        (Stream.STDOUT, Record(7, 0, b"new\n")),
    ]
    for asked, expected in ((0, []), (1, [Gap(6, 6), b"new\n"]), (2, [b"open", Gap(6, 6), b"new\n"])):
        skip = tails.Skip(await tails.count(each(items)) - asked)
        kept = [skip.take(stream, item) for stream, item in items]
        assert [k.data if isinstance(k, Record) else k for k in kept if k is not None] == expected

"""Reading rings by turns, from positions that outlive the reader."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.node.logs import ring_positions
from skerry.node.logs.ring_positions import PlacedRecord, RingPosition
from skerry.node.logs.rings import RingWriter


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[RingWriter]:
    folder = os.open(tmp_path, os.O_RDONLY)
    writer = RingWriter(folder, "stdout", max_bytes=4096)
    yield writer
    writer.close()
    os.close(folder)


def lines(folder: Path, position: RingPosition, *, most: int = 10_000, flush: bool = False) -> list[str]:
    piece = ring_positions.read(folder, "stdout", position, most)
    return [line.text for line in ring_positions.split_lines(piece.records, position, flush=flush)]


def test_lines_are_read_from_the_position_after_any_of_them(ring: RingWriter, tmp_path: Path) -> None:
    for data in (b"one\ntw", b"o\nthree\nfo", b"ur\n", b"five"):
        ring.write(data, 1)
    piece = ring_positions.read(tmp_path, "stdout", RingPosition(), 10_000)
    found = ring_positions.split_lines(piece.records, RingPosition(), flush=False)
    assert [line.text for line in found] == ["one", "two", "three", "four"]
    assert [lines(tmp_path, line.after) for line in found] == [
        ["two", "three", "four"],
        ["three", "four"],
        ["four"],
        [],
    ]
    assert lines(tmp_path, found[-1].after, flush=True) == ["five"]
    ring.write(b" and more\n", 2)
    assert lines(tmp_path, found[-1].after) == ["five and more"]


def test_what_the_ring_dropped_is_one_line_with_the_number_of_records(
    ring: RingWriter, tmp_path: Path
) -> None:
    for number in range(200):
        ring.write(b"line %03d\n" % number, 1)
    piece = ring_positions.read(tmp_path, "stdout", RingPosition(), 100_000)
    first, *others = ring_positions.split_lines(piece.records, RingPosition(), flush=False)
    assert first.lost > 0
    assert str(first.lost) in first.text
    assert [line.text for line in others] == [f"line {number:03d}" for number in range(first.lost, 200)]
    assert sum(line.lost for line in others) == 0
    # Continued after the mark, the loss is not reported again.
    assert lines(tmp_path, first.after, most=100_000)[0] == others[0].text


def test_a_piece_is_bounded_and_the_next_one_continues(ring: RingWriter, tmp_path: Path) -> None:
    for number in range(20):
        ring.write(b"%d\n" % number, 1)
    position, found = RingPosition(), []
    while True:
        piece = ring_positions.read(tmp_path, "stdout", position, 7)
        split = ring_positions.split_lines(piece.records, position, flush=False)
        if not split:
            break
        assert len(split) <= 7
        position = split[-1].after
        found += [line.text for line in split]
    assert found == [str(number) for number in range(20)]
    assert not piece.has_ended
    ring.end(2)
    assert ring_positions.read(tmp_path, "stdout", position, 7).has_ended


def test_a_folder_that_is_gone_has_ended(tmp_path: Path) -> None:
    piece = ring_positions.read(tmp_path / "none", "stdout", RingPosition(), 10)
    assert (piece.records, piece.has_ended) == ([], True)


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    st.integers(min_value=4, max_value=12),
    st.booleans(),
)
def test_no_byte_is_lost_or_doubled_wherever_reading_stops(data: list[bytes], most: int, flush: bool) -> None:
    records, offset = [], 0
    for number, each in enumerate(data, 1):
        records.append(PlacedRecord(number, number, each, 1, offset))
        offset += 24 + len(each)
    whole = ring_positions.split_lines(records, RingPosition(), flush=flush, max_line=most)
    assert all(len(line.text.encode()) <= 3 * (most + 1) for line in whole)  # an invalid byte is three
    for line in whole:
        rest = [record for record in records if record.number > line.after.after]
        again = ring_positions.split_lines(rest, line.after, flush=flush, max_line=most)
        assert [each.text for each in again] == [each.text for each in whole[whole.index(line) + 1 :]]

"""A ring keeps the newest output within its bound, numbers it, and survives its disk and its writer."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies

from skerry.kit.sequence_gap import SequenceGap
from skerry.node.logs import rings
from skerry.node.logs.readers import LogRecord, RingReader
from tests.node.logs.keeping import STREAM, Ring, assert_numbers_are_whole, segments, size_of
from tests.test_repo import imported_by

writes = strategies.binary(min_size=1, max_size=700)
steps = strategies.lists(
    strategies.one_of(
        writes.map(lambda data: ("write", data)),
        strategies.just(("reopen", b"")),
        strategies.binary(min_size=1, max_size=rings.HEADER.size + 40).map(lambda junk: ("tear", junk)),
    ),
    max_size=60,
)
shapes = strategies.integers(100, 3000).flatmap(
    lambda size: strategies.tuples(
        strategies.just(size), strategies.integers(rings.HEADER.size + 1, size // 2)
    )
)


def read(folder: Path, after: int = 0) -> list[LogRecord | SequenceGap]:
    return list(RingReader(folder, STREAM).read(after))


@hypothesis.given(shape=shapes, steps=steps, chance=strategies.data())
def test_reading_gives_the_newest_part_in_order_and_gaps_for_all_that_is_missing(
    shape: tuple[int, int], steps: list[tuple[str, bytes]], chance: strategies.DataObject
) -> None:
    max_bytes, segment_bytes = shape
    most = segment_bytes - rings.HEADER.size
    written: dict[int, bytes] = {}
    torn: set[int] = set()
    last = 0
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as opened:
        folder = Path(name)

        def open_writer() -> rings.RingWriter:
            opened.close()
            return opened.enter_context(Ring(folder, max_bytes=max_bytes, segment_bytes=segment_bytes))

        writer = open_writer()
        for kind, data in steps:
            if kind == "write":
                writer.write(data, now_ns=last)
                for at in range(0, len(data), most):
                    last += 1
                    written[last] = data[at : at + most]
                assert size_of(folder) <= max_bytes
                continue
            if kind == "tear" and segments(folder) and last not in torn:
                last += 1
                torn.add(last)
                whole = rings.HEADER.pack(0xB5, rings.DATA, 0, len(data), last, 0) + data
                with segments(folder)[-1].open("ab") as newest:
                    newest.write(whole[: len(data)])
            writer = open_writer()
        writer.end(now_ns=0)
        last += 1
        opened.close()
        assert size_of(folder) <= max_bytes

        after = chance.draw(strategies.integers(0, last), label="after")
        items = read(folder, after)
        # The end has a number too, and is no item.
        missing = assert_numbers_are_whole(items, after, max(after, last - 1))
        for item in items:
            if isinstance(item, LogRecord):
                assert item.data == written[item.seq]
        dropped = missing - torn
        stored = {item.seq for item in items if isinstance(item, LogRecord)}
        assert not dropped or not stored or max(dropped) < min(stored)
        if dropped and all(kind == "write" for kind, _ in steps):
            assert size_of(folder) >= max_bytes - 2 * segment_bytes


def test_a_record_has_its_number_its_time_and_its_bytes(tmp_path: Path) -> None:
    with Ring(tmp_path) as writer:
        writer.write(b"one", 11)
        writer.write(memoryview(b"\xff\x00\n"), 12)
        writer.write(b"", 13)
    assert read(tmp_path) == [LogRecord(1, 11, b"one"), LogRecord(2, 12, b"\xff\x00\n")]
    assert read(tmp_path, after=1) == [LogRecord(2, 12, b"\xff\x00\n")]
    assert read(tmp_path, after=2) == []


def test_the_streams_of_an_executable_stand_side_by_side(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for stream in ("stdout", "stderr", "stdout-old"):
        writer = rings.RingWriter(descriptor, stream, max_bytes=4096)
        writer.write(stream.encode(), 0)
        writer.end(0)
    os.close(descriptor)
    for stream in ("stdout", "stderr", "stdout-old"):
        assert list(RingReader(tmp_path, stream).read()) == [LogRecord(1, 0, stream.encode())]


@pytest.mark.parametrize("segment_bytes", [rings.HEADER.size, 2049])
def test_a_ring_that_cannot_keep_its_bound_is_refused(tmp_path: Path, segment_bytes: int) -> None:
    with pytest.raises(ValueError, match="cannot have segments"):
        rings.RingWriter(-1, STREAM, max_bytes=4096, segment_bytes=segment_bytes)


def test_more_than_a_record_may_hold_is_divided(tmp_path: Path) -> None:
    with Ring(tmp_path, max_bytes=4 * 1024 * 1024) as writer:
        data = os.urandom(rings.MAX_RECORD * 2 + 1)
        writer.write(data, 0)
    records = read(tmp_path)
    assert [len(r.data) for r in records if isinstance(r, LogRecord)] == [rings.MAX_RECORD] * 2 + [1]
    assert b"".join(r.data for r in records if isinstance(r, LogRecord)) == data


def test_output_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    with Ring(tmp_path) as writer:
        writer.write(b"x", 0)
    assert [path.stat().st_mode & 0o777 for path in segments(tmp_path)] == [0o600]


@pytest.mark.parametrize("cut", [1, rings.HEADER.size - 1, rings.HEADER.size, rings.HEADER.size + 3])
def test_a_torn_tail_is_never_read_as_data_and_a_new_writer_goes_on_after_it(
    tmp_path: Path, cut: int
) -> None:
    with Ring(tmp_path) as writer:
        writer.write(b"whole", 1)
        writer.write(b"torn!", 2)
    (segment,) = segments(tmp_path)
    os.truncate(segment, rings.HEADER.size + len(b"whole") + cut)
    assert read(tmp_path) == [LogRecord(1, 1, b"whole")]

    with Ring(tmp_path) as writer:
        writer.write(b"next", 3)
    assert read(tmp_path) == [LogRecord(1, 1, b"whole"), SequenceGap(2, 2), LogRecord(3, 3, b"next")]


def test_a_segment_with_nothing_but_a_torn_record_is_passed_by(tmp_path: Path) -> None:
    (tmp_path / rings.segment_name(STREAM, 5)).write_bytes(b"\xb5")
    (tmp_path / "stdout-not-a-segment").write_bytes(b"?")
    assert read(tmp_path, after=4) == []
    with Ring(tmp_path) as writer:
        writer.write(b"next", 3)
    assert read(tmp_path, after=4) == [SequenceGap(5, 5), LogRecord(6, 3, b"next")]


def test_a_new_writer_goes_on_with_the_numbers_also_after_an_end(tmp_path: Path) -> None:
    for text in (b"one", b"two"):
        with Ring(tmp_path) as writer:
            writer.write(text, 0)
            writer.end(0)
    assert read(tmp_path) == [LogRecord(1, 0, b"one"), LogRecord(3, 0, b"two")]


def test_a_folder_that_is_gone_loses_the_output_and_raises_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "executable"
    folder.mkdir()
    with Ring(folder) as writer:
        writer.write(b"x" * 400, 0)
        for segment in segments(folder):
            segment.unlink()
        folder.rmdir()
        for _ in range(20):
            writer.write(b"x" * 400, 0)
        writer.end(0)
    assert read(folder) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "skerry-test", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.root
def test_a_full_disk_loses_records_and_readers_see_which(small_disk: Path) -> None:
    filler = small_disk / "filler"
    with Ring(small_disk, max_bytes=1024 * 1024) as writer:
        writer.write(b"before" * 100, 0)
        filler.write_bytes(bytes(50 * 1024))
        for _ in range(10):
            writer.write(b"x" * 5000, 0)  # not a whole page: one will be cut in the middle
        filler.unlink()
        writer.write(b"after", 0)
        writer.end(0)
    items = read(small_disk)
    missing = assert_numbers_are_whole(items, 0, 12)
    assert missing
    assert max(missing) == 11
    assert items[0] == LogRecord(1, 0, b"before" * 100)
    assert items[-1] == LogRecord(12, 0, b"after")
    assert {r.data for r in items[1:-1] if isinstance(r, LogRecord)} <= {b"x" * 5000}


@pytest.mark.root
def test_the_end_is_written_on_a_full_disk_at_the_cost_of_the_oldest_output(small_disk: Path) -> None:
    with Ring(small_disk, max_bytes=1024 * 1024, segment_bytes=10 * 1024) as writer:
        for _ in range(10):
            writer.write(b"x" * 4096, 0)
        with (small_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(4096))
        writer.write(b"x" * 8192, 0)
        writer.end(0)
    # The 11th did not fit, and the 12th, the end, took the place of the first two.
    items = read(small_disk)
    assert assert_numbers_are_whole(items, 0, 12) == {1, 2, 11, 12}


def test_the_writer_needs_nothing_but_a_little_of_the_standard_library() -> None:
    before = imported_by("import os, struct, collections.abc")
    assert imported_by("from skerry.node.logs import rings") - before == {
        "__future__",
        "skerry",
        "skerry.node",
        "skerry.node.logs",
        "skerry.node.logs.rings",
    }

"""Readers follow a ring from any position while it is written, learn what they missed, and end with it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from skerry.kit import inotify
from skerry.kit.sequence_gap import SequenceGap
from skerry.node.logs.readers import LogRecord, RingItem, RingReader
from tests.node.logs.keeping import (
    STREAM,
    Ring,
    assert_numbers_are_whole,
    segments,
    size_of,
    writing,
)
from tests.support.waiting import eventually


@asynccontextmanager
async def writer_process(
    folder: Path, max_bytes: int, program: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(*writing(folder, max_bytes, program))
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def collect(reader: RingReader, after: int = 0) -> list[RingItem]:
    async with aclosing(reader.follow(after)) as following:
        return [item async for item in following]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_follower_gets_what_was_there_what_comes_and_the_end(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def follow() -> None:
        with Ring(tmp_path) as writer:
            writer.write(b"before", 1)
            async with aclosing(RingReader(tmp_path, STREAM, poll_s=60).follow()) as following:
                assert await anext(following) == LogRecord(1, 1, b"before")
                waiting = asyncio.ensure_future(anext(following))
                await asyncio.sleep(0)
                writer.write(b"after", 2)
                assert await waiting == LogRecord(2, 2, b"after")
                writer.end(3)
                with pytest.raises(StopAsyncIteration):
                    await anext(following)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(follow())


async def test_many_followers_from_any_position_read_while_another_process_rotates_the_ring(
    tmp_path: Path,
) -> None:
    program = """
for number in range(1, 3001):
    ring.write(str(number).encode() * (number % 50 + 1), now())
ring.end(now())
"""
    starts = [0, 0, 1, 500, 2999, 3000, 3001]
    async with writer_process(tmp_path, 16 * 1024, program) as process:
        reader = RingReader(tmp_path, STREAM)
        read = await asyncio.gather(*(collect(reader, after) for after in starts))
        assert await process.wait() == 0
    for after, items in zip(starts, read, strict=True):
        assert_numbers_are_whole(items, after, max(after, 3000))
        for item in items:
            if isinstance(item, LogRecord):
                assert item.data == str(item.seq).encode() * (item.seq % 50 + 1)


async def test_a_slow_follower_gets_a_gap_and_goes_on_with_the_oldest_that_is_kept(tmp_path: Path) -> None:
    with Ring(tmp_path, max_bytes=1024) as writer:
        async with aclosing(RingReader(tmp_path, STREAM).follow()) as following:
            writer.write(b"first", 0)
            assert await anext(following) == LogRecord(1, 0, b"first")
            for _ in range(200):
                writer.write(b"more", 0)
            writer.end(0)
            rest = [item async for item in following]
    assert_numbers_are_whole(rest, 1, 201)
    (gap,) = [item for item in rest if isinstance(item, SequenceGap)]
    # What the segment that it had open still holds comes before the gap.
    assert gap.last - gap.first > 100
    assert isinstance(rest[0], LogRecord)


async def test_a_segment_that_is_open_stays_readable_when_the_ring_drops_it(tmp_path: Path) -> None:
    with Ring(tmp_path, max_bytes=4096) as writer:
        for _ in range(3):
            writer.write(b"kept", 0)
        reading = RingReader(tmp_path, STREAM).read()
        assert next(reading) == LogRecord(1, 0, b"kept")
        for segment in segments(tmp_path):
            segment.unlink()
        assert list(reading) == [LogRecord(2, 0, b"kept"), LogRecord(3, 0, b"kept")]


async def test_reading_what_is_there_ends_although_the_writer_does_not(tmp_path: Path) -> None:
    with Ring(tmp_path, max_bytes=4096) as writer:
        for _ in range(20):
            writer.write(b"x" * 200, 0)
        for count, _ in enumerate(RingReader(tmp_path, STREAM).read()):
            writer.write(b"x" * 200, 0)
            writer.write(b"x" * 200, 0)
            assert count < 100


async def test_a_chatty_writer_stays_within_its_bound_and_its_follower_ends(tmp_path: Path) -> None:
    bound = 1024 * 1024
    program = """
chunk = os.urandom(65536)
for _ in range(1600):
    ring.write(chunk, now())
ring.end(now())
"""
    sizes = []
    async with writer_process(tmp_path, bound, program) as process:
        following = asyncio.ensure_future(collect(RingReader(tmp_path, STREAM)))
        while process.returncode is None:
            sizes.append(size_of(tmp_path))
            await asyncio.sleep(0)
        items = await following
    assert_numbers_are_whole(items, 0, 1600)
    assert max(sizes) <= bound
    assert size_of(tmp_path) <= bound


async def test_a_killed_writer_ends_its_followers_and_leaves_only_whole_records(tmp_path: Path) -> None:
    program = """
while True:
    ring.write(os.urandom(1000) * 60, now())
"""
    async with writer_process(tmp_path, 1024 * 1024, program) as process:
        reader = RingReader(tmp_path, STREAM, ended=lambda: process.returncode is not None, poll_s=0.01)
        following = asyncio.ensure_future(collect(reader))
        await eventually(lambda: len(segments(tmp_path)) > 2)
        process.kill()
        items = await following
    last = items[-1]
    assert isinstance(last, LogRecord)
    assert_numbers_are_whole(items, 0, last.seq)
    assert all(item.data == item.data[:1000] * 60 for item in items if isinstance(item, LogRecord))
    with Ring(tmp_path, max_bytes=1024 * 1024) as writer:
        writer.write(b"next", 0)
    (record,) = [item for item in reader.read(last.seq) if isinstance(item, LogRecord)]
    assert record.data == b"next"
    assert record.seq - last.seq in (1, 2)


async def test_following_ends_when_the_folder_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "executable"
    folder.mkdir()
    with Ring(folder) as writer:
        writer.write(b"first", 0)
        reader = RingReader(folder, STREAM, poll_s=0.01)
        async with aclosing(reader.follow()) as following:
            assert await anext(following) == LogRecord(1, 0, b"first")
            writer.write(b"last", 0)
            shutil.rmtree(folder)
            folder.mkdir()  # another one of that name is not this stream
            with Ring(folder) as other:
                other.write(b"other", 0)
            assert [item async for item in following] == [LogRecord(2, 0, b"last")]


async def test_a_folder_that_was_never_there_has_nothing(tmp_path: Path) -> None:
    reader = RingReader(tmp_path / "none", STREAM)
    assert list(reader.read()) == []
    assert await collect(reader) == []


async def test_a_follower_that_waits_before_the_first_output_gets_it(tmp_path: Path) -> None:
    following = asyncio.ensure_future(collect(RingReader(tmp_path, STREAM)))
    await asyncio.sleep(0)
    with Ring(tmp_path) as writer:
        writer.write(b"first", 0)
        writer.end(0)
    assert await following == [LogRecord(1, 0, b"first")]


async def test_a_cancelled_follower_closes_its_files(tmp_path: Path) -> None:
    with Ring(tmp_path) as writer:
        writer.write(b"first", 0)
        before = len(os.listdir("/proc/self/fd"))
        following = asyncio.ensure_future(collect(RingReader(tmp_path, STREAM)))
        await eventually(lambda: len(os.listdir("/proc/self/fd")) >= before + 3)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        assert len(os.listdir("/proc/self/fd")) == before


async def test_without_inotify_following_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(inotify, "DirectoryWatch", refuse)
    reader = RingReader(tmp_path, STREAM, poll_s=0.01)
    following = asyncio.ensure_future(collect(reader))
    await asyncio.sleep(0)
    with Ring(tmp_path) as writer:
        writer.write(b"first", 0)
        writer.end(0)
    assert await following == [LogRecord(1, 0, b"first")]

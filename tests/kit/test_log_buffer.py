"""The last log lines can be followed by many, from any number, without ever holding up whoever logs."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from skerry.kit.log_buffer import MAX_LINE, LogBuffer, LogEntry
from skerry.kit.sequence_gap import SequenceGap


def counting(keep: int = 10) -> LogBuffer:
    """A list whose clock counts."""
    ticks = itertools.count(100)
    return LogBuffer(keep, now_ns=lambda: next(ticks))


async def take(
    following: AsyncGenerator[LogEntry | SequenceGap, None], count: int
) -> list[LogEntry | SequenceGap]:
    return [await anext(following) for _ in range(count)]


async def test_a_follower_gets_what_is_kept_and_then_what_comes() -> None:
    recent = counting()
    recent.add("info", "one")
    async with aclosing(recent.follow()) as following:
        assert await take(following, 1) == [LogEntry(1, 100, "info", "one")]
        waiting = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0)
        assert not waiting.done()
        recent.add("error", "two")
        assert await waiting == LogEntry(2, 101, "error", "two")


async def test_only_the_newest_are_kept_and_who_names_a_number_learns_what_is_missing() -> None:
    recent = counting(keep=3)
    for number in range(1, 11):
        recent.add("info", str(number))
    async with aclosing(recent.follow()) as following:
        assert [item.line for item in await take(following, 3) if isinstance(item, LogEntry)] == [
            "8",
            "9",
            "10",
        ]
    async with aclosing(recent.follow(after=2)) as following:
        gap, entry = await take(following, 2)
        assert gap == SequenceGap(3, 7)
        assert isinstance(entry, LogEntry)
        assert (entry.seq, entry.line) == (8, "8")
    async with aclosing(recent.follow(after=9)) as following:
        (entry,) = await take(following, 1)
        assert isinstance(entry, LogEntry)
        assert entry.seq == 10


async def test_who_follows_after_the_last_gets_only_what_is_new() -> None:
    recent = counting()
    recent.add("info", "old")
    async with aclosing(recent.follow(after=recent.last)) as following:
        waiting = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0)
        recent.add("info", "new")
        assert await waiting == LogEntry(2, 101, "info", "new")


async def test_a_slow_follower_gets_a_gap() -> None:
    recent = counting(keep=3)
    recent.add("info", "first")
    async with aclosing(recent.follow()) as following:
        await anext(following)
        for number in range(2, 11):
            recent.add("info", str(number))
        gap, entry = await take(following, 2)
        assert gap == SequenceGap(2, 7)
        assert isinstance(entry, LogEntry)
        assert entry.seq == 8


async def test_threads_log_while_several_follow_and_no_number_is_skipped_silently() -> None:
    recent = LogBuffer(keep=50)
    total = 4 * 500

    def log_lines(name: int) -> None:
        for number in range(500):
            recent.add("info", f"{name}:{number}")

    async def follow() -> list[LogEntry | SequenceGap]:
        items = []
        async with aclosing(recent.follow(after=0)) as following:
            async for item in following:
                items.append(item)
                if isinstance(item, LogEntry) and item.seq == total:
                    break
        return items

    followers = [asyncio.ensure_future(follow()) for _ in range(3)]
    await asyncio.sleep(0)
    threads = [threading.Thread(target=log_lines, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for items in await asyncio.gather(*followers):
        expected = 1
        for item in items:
            first, last = (item.first, item.last) if isinstance(item, SequenceGap) else (item.seq, item.seq)
            assert first == expected
            expected = last + 1
    for thread in threads:
        thread.join()


async def test_a_finalizer_may_log_while_lines_are_looked_at() -> None:
    recent = LogBuffer()

    class Logs:
        def __init__(self) -> None:
            self.me = self  # only the collector can free it

        def __del__(self) -> None:
            recent.add("info", "finalized")

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        async with aclosing(recent.follow(after=0)) as following:
            expected = 1
            while expected < 200:
                Logs()
                recent.add("info", "plain")
                item = await anext(following)
                assert isinstance(item, LogEntry)
                assert item.seq == expected
                expected += 1
    finally:
        gc.set_threshold(*before)
        gc.collect()


def test_a_follower_whose_loop_was_closed_does_no_harm() -> None:
    recent = LogBuffer()

    async def begin() -> AsyncGenerator[LogEntry | SequenceGap, None]:
        following = recent.follow()
        step = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        step.cancel()
        return following

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    recent.add("info", "still works")
    assert recent.last == 1


async def test_a_very_long_line_is_cut() -> None:
    recent = LogBuffer()
    recent.add("info", "x" * (MAX_LINE + 1))
    async with aclosing(recent.follow()) as following:
        (entry,) = await take(following, 1)
    assert isinstance(entry, LogEntry)
    assert len(entry.line) == MAX_LINE
    assert entry.line.endswith("…")


SCRIPT = """
import asyncio, json, logging, sys, structlog
from skerry.kit import logs
logs.setup("info", sys.argv[1])
log = structlog.get_logger("x")
log.debug("too.quiet")
with logs.request_context("r-1"):
    log.info("plan.applied", started=2, note="two words", empty="")
logging.getLogger("lib").warning("careful %s", "now")
try:
    raise ValueError("no")
except ValueError:
    log.error("failed", exc_info=True)
async def main():
    following = logs.recent.follow()
    return [await anext(following) for _ in range(logs.recent.last)]
json.dump([[e.seq, e.level, e.line] for e in asyncio.run(main())], sys.stdout)
"""


@pytest.mark.parametrize("style", ["json", "text"])
def test_what_the_process_logs_is_kept_as_text_whatever_the_style(style: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, style], capture_output=True, text=True, check=True)
    plan, library, failure = json.loads(done.stdout)
    assert plan[:2] == [1, "info"]
    event, *fields = plan[2].split(" ", 1)
    assert event == "plan.applied"
    assert set(fields[0].replace("'two words'", "'two_words'").split()) == {
        "started=2",
        "note='two_words'",
        "empty=''",
        "request_id=r-1",
    }
    assert library == [2, "warning", "careful now"]
    assert failure[:2] == [3, "error"]
    assert failure[2].startswith("failed\nTraceback (most recent call last):")
    assert failure[2].endswith("ValueError: no")
    assert len(done.stderr.splitlines()) >= 3

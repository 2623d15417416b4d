"""What functions print: merged in the order of time, followed, and kept within a bound."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.model.cells import OutputChannel
from skerry.model.ids import FunctionName
from skerry.node.logs.rings import RingWriter
from skerry.node.workers.function_logs import FunctionLogs
from tests.support.waiting import PATIENCE_S, eventually

F, G = FunctionName("f"), FunctionName("g")
BOUND = 64 * 1024


class Printing:
    """One stream of a worker, as its init writes it."""

    def __init__(self, logs: FunctionLogs, folder: Path, stream: OutputChannel) -> None:
        self.folder = os.open(folder, os.O_RDONLY)
        self.ring = RingWriter(self.folder, stream, max_bytes=logs.ring_bytes, is_new=True)

    def send(self, text: str, at: int) -> None:
        self.ring.write(text.encode(), at)

    def close(self) -> None:
        self.ring.close()
        os.close(self.folder)


@pytest.fixture
def logs(tmp_path: Path) -> FunctionLogs:
    return FunctionLogs(tmp_path / "logs", BOUND)


@pytest.fixture
async def opened() -> AsyncIterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


def printing(
    logs: FunctionLogs,
    opened: contextlib.ExitStack,
    folder: Path,
    stream: OutputChannel = OutputChannel.STDOUT,
) -> Printing:
    return opened.enter_context(contextlib.closing(Printing(logs, folder, stream)))


async def texts(logs: FunctionLogs, name: FunctionName, lines: int | None = None) -> list[str]:
    return [line.text async for line in logs.read(name, lines=lines)]


async def test_lines_of_all_workers_and_streams_come_in_the_order_of_time(
    logs: FunctionLogs, opened: contextlib.ExitStack
) -> None:
    folder = logs.begin("w1", F)
    out, err = (printing(logs, opened, folder, stream) for stream in OutputChannel)
    other = printing(logs, opened, logs.begin("w2", F))
    stranger = printing(logs, opened, logs.begin("w3", G))
    out.send("one\nfi", 1)
    err.send("two\n", 2)
    other.send("three\nfour\n", 3)
    out.send("ve\nsix", 5)
    stranger.send("of another function\n", 1)
    found = [line async for line in logs.read(F)]
    assert [line.text for line in found] == ["one", "five", "two", "three", "four", "six"]
    assert [(line.worker, line.stream) for line in found[2:4]] == [("w1", "stderr"), ("w2", "stdout")]
    assert [line.is_partial for line in found] == [False] * 5 + [True]
    assert await texts(logs, F, lines=2) == ["four", "six"]
    assert await texts(logs, FunctionName("nobody")) == []


async def test_a_blank_worker_takes_what_it_prints_along_to_its_function(
    logs: FunctionLogs, opened: contextlib.ExitStack
) -> None:
    worker = printing(logs, opened, logs.begin("w1"))
    logs.assign("w1", F)
    worker.send("hello\n", 1)
    assert await texts(logs, F) == ["hello"]
    logs.begin("w2")
    logs.end("w2")
    logs.end("w2")
    assert not list(logs._folder.glob(".blank/*"))


async def test_a_worker_has_no_folder_until_it_prints_something(
    logs: FunctionLogs, opened: contextlib.ExitStack
) -> None:
    logs.expect("w1")
    logs.assign("w1", F)
    logs.trim(F)
    assert (await texts(logs, F), list(logs.list_rings()), logs.last_output("w1", F, 99)) == ([], [], "")
    worker = printing(logs, opened, logs.folder("w1"))
    worker.send("hello\n", 1)
    assert await texts(logs, F) == ["hello"]
    assert [ring.folder for ring in logs.list_rings()] == [logs.folder("w1")]
    logs.expect("w2")
    early = printing(logs, opened, logs.folder("w2"))
    logs.assign("w2", G)
    early.send("before it had a function\n", 1)
    assert await texts(logs, G) == ["before it had a function"]
    logs.expect("w3")
    logs.end("w3")
    with pytest.raises(FileNotFoundError):
        logs.folder("w3")
    assert not list(logs._folder.glob(".blank/*"))


async def test_who_follows_a_function_that_has_printed_nothing_waits_for_its_end(logs: FunctionLogs) -> None:
    logs.expect("w1")
    logs.assign("w1", F)
    seen: list[str] = []

    async def follow() -> None:
        async for line in logs.read(F, follow=True):
            seen.append(line.text)  # noqa: PERF401 - looked at as it grows

    following = asyncio.create_task(follow())
    with contextlib.ExitStack() as opened:
        printing(logs, opened, logs.folder("w1")).send("late\n", 1)
        await eventually(lambda: seen == ["late"])
    logs.end("w1", F)
    logs.forget(F)
    await asyncio.wait_for(following, PATIENCE_S)


async def test_who_follows_sees_new_lines_and_new_workers_until_the_function_is_gone(
    logs: FunctionLogs, opened: contextlib.ExitStack
) -> None:
    first = printing(logs, opened, logs.begin("w1", F))
    first.send("old\nha", 1)
    seen: list[str] = []

    async def follow() -> None:
        async for line in logs.read(F, lines=1, follow=True):
            seen.append(line.text)  # noqa: PERF401 - looked at as it grows

    following = asyncio.create_task(follow())
    await eventually(lambda: seen == ["old"])
    first.send("lf\n", 2)
    await eventually(lambda: seen == ["old", "half"])
    second = printing(logs, opened, logs.begin("w2", F))
    second.send("new\n", 3)
    second.send("unended", 4)
    await eventually(lambda: seen == ["old", "half", "new"])
    logs.end("w2")
    await eventually(lambda: seen == ["old", "half", "new", "unended"])
    logs.forget(F)
    await asyncio.wait_for(following, PATIENCE_S)


async def test_the_oldest_goes_when_it_is_too_much_and_what_is_written_to_stays(
    logs: FunctionLogs, opened: contextlib.ExitStack
) -> None:
    for number in range(20):
        folder = logs.begin(f"w{number:02}", F)
        worker = printing(logs, opened, folder)
        for line in range(200):
            worker.send(f"{number} {line}\n", number * 1000 + line)
        for path in folder.iterdir():
            os.utime(path, (number, number))
        logs.end(f"w{number:02}")
        live = [path for path in logs._folder.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in live) <= BOUND
    found = await texts(logs, F)
    assert found[-1] == "19 199"
    assert "0 0" not in found
    logs.trim(F)
    assert not (logs._folder / F / "w00").exists()

    busy = printing(logs, opened, logs.begin("busy", F))
    busy.send("short\n", 1)
    (segment,) = (logs._folder / F / "busy").iterdir()
    os.utime(segment, (0, 0))
    logs.trim(F)
    assert segment.exists()


async def test_the_last_words_of_a_worker_are_the_end_of_both_streams(
    logs: FunctionLogs, opened: contextlib.ExitStack
) -> None:
    folder = logs.begin("w1", F)
    out, err = (printing(logs, opened, folder, stream) for stream in OutputChannel)
    out.send("before\n", 1)
    err.send("why\n", 2)
    out.send("dying", 3)
    assert logs.last_output("w1", F, 1000) == "before\nwhy\ndying\n"
    assert logs.last_output("w1", F, 6) == "dying\n"
    assert logs.last_output("unknown", F, 6) == ""
    assert logs.last_output("w1", F, 1000, since_ns=2) == "why\ndying\n"


async def test_the_words_since_a_moment_do_not_begin_with_half_a_line_of_before(
    logs: FunctionLogs, opened: contextlib.ExitStack
) -> None:
    out = printing(logs, opened, logs.begin("w1", F))
    out.send("of the call before", 1)
    out.send(" mine\n", 2)
    assert logs.last_output("w1", F, 1000, since_ns=2) == " mine\n"


def test_what_blank_workers_of_an_earlier_agent_said_is_dropped_and_functions_keep_theirs(
    tmp_path: Path, logs: FunctionLogs
) -> None:
    logs.begin("w1")
    logs.begin("w2", F)
    again = FunctionLogs(tmp_path / "logs", BOUND)
    assert [path.name for path in again._folder.iterdir()] == [F]


def test_the_output_of_workers_with_a_function_is_forwarded_wherever_it_is(logs: FunctionLogs) -> None:
    logs.begin("w1", F)
    logs.begin("w2")
    logs.begin("w3", FunctionName("team:g"))
    assert [(ring.key, ring.origin.namespace, ring.origin.function) for ring in logs.list_rings()] == [
        ("function:w1", "default", "f"),
        ("function:w3", "team", "g"),
    ]
    logs.assign("w2", F)
    (logs.begin("w4", F) / "stdout-0000000000000001").write_bytes(b"x")
    logs.end("w4")
    found = {ring.key: ring for ring in logs.list_rings()}
    assert sorted(found) == ["function:w1", "function:w2", "function:w3", "function:w4"]
    assert [ring.key for ring in found.values() if ring.has_ended] == ["function:w4"]
    assert all(ring.folder.is_dir() for ring in found.values())

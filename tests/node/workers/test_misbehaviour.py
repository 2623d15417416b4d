"""Functions that do their worst to their worker: its calls fail at once and say why, and nobody else's do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from textwrap import dedent

import pytest

from skerry.model.calls import CallFailure, WorkerExited
from tests.support.programs import Programs
from tests.support.waiting import eventually

# Finds the platform's socket, as a function could.
SOCKETS = """
import os, socket, stat, struct, sys, threading, time
def sockets():
    return [n for n in range(3, 64) if is_socket(n)]
def say(head, *numbers):
    os.write(sockets()[0], struct.pack(head, *numbers))
    time.sleep(60)
def is_socket(n):
    try:
        return stat.S_ISSOCK(os.fstat(n).st_mode)
    except OSError:
        return False
"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("os._exit(0)", "its worker ended in the middle of it"),
        ("os.kill(os.getpid(), 9)", "its worker ended in the middle of it"),
        ("os.abort()", "its worker ended in the middle of it"),
        ("os.closerange(0, 100); time.sleep(60)", "its worker ended in the middle of it"),
        ("os.close(sockets()[0])", "its worker ended in the middle of it"),
        ("socket.socket(fileno=sockets()[0]).shutdown(2)", "its worker ended in the middle of it"),
        ("[os.write(n, b'hello, is anybody there?') for n in sockets()]; time.sleep(60)", "invalid reply"),
        ("say('<IBxxxQ', 2**31, 12, 1)", "a frame of 2147483648"),
        ("say('<IBxxxQBdI', 13, 12, 99, 0, 0., 0)", "call 99"),
        ("say('<IBxxxQBdI', 13, 12, 1, 9, 0., 0)", "outcome 9"),
        ("say('<IBxxxQ', 0, 10, 0)", "kind 10"),
        ("os.execv('/bin/sleep', ['sleep', '60'])", "its worker ended in the middle of it"),
    ],
)
async def test_a_worker_that_is_ruined_is_seen_at_once(python: Programs, body: str, reason: str) -> None:
    async with python.load(f"{SOCKETS}\ndef handler(params):\n    {body}") as worker:
        with pytest.raises(WorkerExited) as gone:
            await worker.call()
        assert gone.value.failure is CallFailure.DIED
        assert reason in gone.value.error
        assert worker.has_ended.is_set()
        assert not worker.conversation.is_alive
        assert worker.conversation.in_flight == 0
        with pytest.raises(WorkerExited):
            await worker.call()


async def test_a_worker_that_dies_takes_all_its_calls_along_and_its_children_do_not_hide_it(
    python: Programs,
) -> None:
    code = """
        import os, threading, time
        gate = threading.Barrier(3)
        def handler(params):
            gate.wait(60)
            if params == "end":
                if os.fork() == 0:
                    time.sleep(60)
                os._exit(1)
            time.sleep(60)
    """
    async with python.load(dedent(code), at_once=3) as worker:
        calls = [asyncio.ensure_future(worker.call(params)) for params in ("wait", "wait", "end")]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, WorkerExited)


async def test_an_answer_that_a_handler_forges_is_an_answer_to_its_own_call_only(python: Programs) -> None:
    forged = "os.write(sockets()[0], struct.pack('<IBxxxQBdI', 14, 12, 1, 0, 0., 0) + b'5')"
    async with python.load(f"{SOCKETS}\ndef handler(params):\n    {forged}\n    return 6") as worker:
        assert await worker.result() == 5
        with pytest.raises(WorkerExited, match="call 1, which was not asked"):
            await worker.call()


async def test_a_handler_that_hangs_is_given_up_in_its_time(python: Programs) -> None:
    async with python.load("import time\ndef handler(params): time.sleep(60)") as worker:
        answer = await worker.call(within_s=0.05)
        assert (answer.failure, answer.error) == (CallFailure.TIMEOUT, "the call did not end within 0.05 s")
        assert not worker.conversation.is_alive
        assert worker.has_ended.is_set()


SLOW = """
import asyncio, os
ended = []
async def handler(params):
    try:
        print(params)
        while params == "hang" or not os.path.exists("go"):
            await asyncio.sleep(0.001)
    finally:
        ended.append(params)
        print("end of", params)
    return ended
"""


async def test_one_call_that_hangs_lets_the_others_end_and_then_it_is_over(
    python: Programs, tmp_path: Path
) -> None:
    async with python.load(SLOW, at_once=3) as worker:
        other = asyncio.ensure_future(worker.call("other"))
        answer = await worker.call("hang", within_s=0.05)
        assert answer.failure is CallFailure.TIMEOUT
        assert not worker.conversation.is_alive
        assert not worker.has_ended.is_set()
        (tmp_path / "code" / "go").touch()
        assert (await other).failure is None
        assert worker.has_ended.is_set()
        with pytest.raises(WorkerExited, match="an earlier call timed out"):
            await worker.call("more")


async def test_a_caller_that_is_cancelled_leaves_like_one_whose_time_was_over(
    python: Programs, tmp_path: Path
) -> None:
    async with python.load(SLOW, at_once=3) as worker:
        other = asyncio.ensure_future(worker.call("other"))
        leaving = asyncio.ensure_future(worker.call("hang"))
        await eventually(lambda: "hang\n" in worker.logged())
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert (worker.conversation.is_alive, worker.conversation.in_flight) == (False, 1)
        # The worker was told: what can be cancelled is.
        await eventually(lambda: "end of hang\n" in worker.logged())
        (tmp_path / "code" / "go").touch()
        assert (await other).result == b'["hang", "other"]'
        assert worker.has_ended.is_set()


async def test_memory_that_is_refused_is_an_error_of_the_call(python: Programs) -> None:
    code = """
        import resource
        def handler(params):
            if params:
                resource.setrlimit(resource.RLIMIT_AS, (512 * 2**20, 512 * 2**20))
                kept = [bytearray(2**20) for _ in range(10_000)]
            return "fine"
    """
    async with python.load(dedent(code)) as worker:
        answer = await worker.call(1)
        assert answer.failure is CallFailure.HANDLER
        assert answer.error.startswith("MemoryError")
        assert await worker.result(0) == "fine"

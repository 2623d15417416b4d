"""The agent's end of the socket to a worker, with a worker that says whatever a test wants."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.kit.clock import ManualClock
from skerry.model.calls import CallFailure, CallResult, CodeLoadError, WorkerExited
from skerry.node.workers import worker_frames
from skerry.node.workers.worker_channel import LoadRequest, WorkerChannel
from tests.support.waiting import eventually

WHAT = LoadRequest("hello.handler", "/code", {}, {}, max_result_bytes=1000, max_output_bytes=1000)


class FarEnd:
    """A worker's end that a test holds, and the conversation at ours."""

    def __init__(self) -> None:
        ours, self.end = socket.socketpair()
        self.end.setblocking(False)
        self.ends = 0
        self.began: list[float] = []  # of the calls whose output was asked for
        self.conversation = WorkerChannel(
            ours, ManualClock(5000.0), on_end=self._count, explain=self._explain, printed=self._printed
        )

    def _count(self) -> None:
        self.ends += 1

    async def _explain(self, gone: WorkerExited) -> WorkerExited:
        await asyncio.sleep(0)
        return WorkerExited(CallFailure.MEMORY, f"explained: {gone.error}", "all last words")

    def _printed(self, began: float) -> str:
        self.began.append(began)
        return "printed"

    def send(self, data: bytes) -> None:
        self.end.sendall(data)

    async def receive(self) -> tuple[int, int, bytes]:
        """The next frame to the worker."""
        loop = asyncio.get_running_loop()
        head = await loop.sock_recv(self.end, worker_frames.HEADER.size)
        length, kind, number = worker_frames.HEADER.unpack(head)
        payload = b""
        while len(payload) < length:
            payload += await loop.sock_recv(self.end, length - len(payload))
        return kind, number, payload

    def call(self, params: bytes = b"1", *, within_s: float = 60.0) -> asyncio.Task[CallResult]:
        return asyncio.ensure_future(self.conversation.call(params, wants_output=True, within_s=within_s))


@pytest.fixture
async def far() -> AsyncIterator[FarEnd]:
    far = FarEnd()
    yield far
    far.conversation.close()
    far.end.close()


def result(
    number: int, body: bytes, *, output: bytes = b"", outcome: int = worker_frames.OK, seconds: float = 0.5
) -> bytes:
    head = worker_frames.OUTCOME.pack(outcome, seconds, len(output))
    return worker_frames.pack(worker_frames.RESULT, number, head + output + body)


async def loaded(far: FarEnd) -> None:
    loading = asyncio.ensure_future(far.conversation.load(WHAT, within_s=60))
    await far.receive()
    far.send(worker_frames.pack(worker_frames.LOADED, 0, b'{"runtime":"Fake 1"}'))
    assert await loading == far.conversation.runtime == "Fake 1"


async def test_load_says_what_to_load_and_hears_what_runs(far: FarEnd) -> None:
    loading = asyncio.ensure_future(far.conversation.load(WHAT, within_s=60))
    kind, number, payload = await far.receive()
    assert (kind, number) == (worker_frames.LOAD, 0)
    assert msgspec.json.decode(payload, type=LoadRequest) == WHAT
    far.send(worker_frames.pack(worker_frames.LOADED, 0, b'{"runtime":"Fake 1"}'))
    assert await loading == "Fake 1"


async def test_load_that_fails_says_why_and_what_was_printed(far: FarEnd) -> None:
    loading = asyncio.ensure_future(far.conversation.load(WHAT, within_s=60))
    await far.receive()
    far.send(worker_frames.pack(worker_frames.FAILED, 0, b'{"error":"no such thing","output":"hm"}'))
    far.end.close()
    with pytest.raises(CodeLoadError, match="no such thing") as failure:
        await loading
    assert failure.value.output == "hm"
    await eventually(lambda: far.ends == 1)


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
async def test_a_worker_that_ends_before_it_has_loaded_is_explained(far: FarEnd, moment: str) -> None:
    if moment == "before":
        far.end.close()
        await eventually(lambda: far.ends == 1)
    loading = asyncio.ensure_future(far.conversation.load(WHAT, within_s=60))
    await asyncio.sleep(0)
    far.end.close()
    with pytest.raises(CodeLoadError, match=r"loading 'hello\.handler': explained: its worker") as failure:
        await loading
    assert failure.value.output == "all last words"


async def test_answers_come_in_any_order_and_each_to_its_own_call(far: FarEnd) -> None:
    await loaded(far)
    calls = [far.call(b"%d" % n) for n in range(3)]
    requested = [await far.receive() for _ in calls]
    assert [(kind, payload) for kind, _, payload in requested] == [
        (worker_frames.CALL, b"\x01%d" % n) for n in range(3)
    ]
    assert far.conversation.in_flight == 3
    far.send(b"".join(result(number, payload[1:]) for _, number, payload in reversed(requested)))
    assert [(await call).result for call in calls] == [b"0", b"1", b"2"]
    assert (far.conversation.in_flight, far.conversation.is_alive, far.ends) == (0, True, 0)


@pytest.mark.parametrize(
    ("outcome", "failure"),
    [
        (worker_frames.RAISED, CallFailure.HANDLER),
        (worker_frames.UNREPRESENTABLE, CallFailure.RESULT),
        (worker_frames.TOO_LARGE, CallFailure.RESULT),
    ],
)
async def test_a_failure_carries_its_error_and_output(
    far: FarEnd, outcome: int, failure: CallFailure
) -> None:
    await loaded(far)
    call = far.call()
    _, number, _ = await far.receive()
    far.send(result(number, "böse".encode(), output=b"bad \xff", outcome=outcome))
    assert await call == CallResult(0.5, b"", "bad \N{REPLACEMENT CHARACTER}", failure, "böse")


async def test_a_success_carries_its_output(far: FarEnd) -> None:
    await loaded(far)
    call = far.call()
    _, number, _ = await far.receive()
    far.send(result(number, b"[1]", output=b"said\n"))
    assert await call == CallResult(0.5, b"[1]", "said\n")


BAD: list[tuple[str, Callable[[int], bytes]]] = [
    ("kind 77", lambda n: worker_frames.pack(77, n, b"")),
    ("kind 12, 3 bytes", lambda n: worker_frames.pack(worker_frames.RESULT, n, b"abc")),
    ("kind 10", lambda n: worker_frames.pack(worker_frames.LOADED, 0, b'{"runtime":"again"}')),
    ("which was not asked", lambda n: result(n + 2, b"1")),
    ("which was not asked", lambda n: result(0, b"1")),
    ("outcome 4", lambda n: result(n, b"1", outcome=4)),
    ("nan s", lambda n: result(n, b"1", seconds=float("nan"))),
    ("-1.0 s", lambda n: result(n, b"1", seconds=-1)),
    (
        "9 of 1 bytes",
        lambda n: worker_frames.pack(worker_frames.RESULT, n, worker_frames.OUTCOME.pack(0, 0.0, 9) + b"1"),
    ),
    ("a frame of", lambda n: worker_frames.HEADER.pack(2**32 - 1, worker_frames.RESULT, n)),
    ("a frame of", lambda n: result(n, b"1" * 200_000)),
    ("a frame of", lambda n: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
]


@pytest.mark.parametrize(("reason", "said"), BAD)
async def test_what_is_no_answer_ends_the_conversation(
    far: FarEnd, reason: str, said: Callable[[int], bytes]
) -> None:
    await loaded(far)
    calls = [far.call(), far.call()]
    _, number, _ = await far.receive()
    await far.receive()
    far.end.setblocking(True)
    far.send(said(number))
    for call in calls:
        with pytest.raises(WorkerExited) as gone:
            await call
        assert gone.value.failure is CallFailure.MEMORY  # as whoever knows has explained it
        assert reason in gone.value.error
    assert far.ends == 1
    with pytest.raises(WorkerExited, match="explained"):
        await far.call()


async def test_before_it_has_loaded_a_worker_may_not_answer(far: FarEnd) -> None:
    loading = asyncio.ensure_future(far.conversation.load(WHAT, within_s=60))
    await far.receive()
    far.send(worker_frames.pack(worker_frames.LOADED, 0, b'{"runtime":5}'))
    with pytest.raises(CodeLoadError, match="invalid reply"):
        await loading


@settings(max_examples=60)
@given(
    answers=st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300)), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=20),
)
def test_an_answer_may_come_in_pieces_of_any_size(
    answers: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    async def converse() -> list[CallResult]:
        far = FarEnd()
        try:
            await loaded(far)
            calls = [far.call() for _ in answers]
            numbers = [(await far.receive())[1] for _ in calls]
            stream = b"".join(
                result(number, body, output=output)
                for number, (output, body) in zip(numbers, answers, strict=True)
            )
            turn = 0
            while stream:
                cut = cuts[turn % len(cuts)] if turn < 3 * len(cuts) else len(stream)
                far.send(stream[:cut])
                stream = stream[cut:]
                turn += 1
                await asyncio.sleep(0)
            return await asyncio.gather(*calls)
        finally:
            far.conversation.close()
            far.end.close()

    received = asyncio.run(converse())
    assert [(each.output, each.result) for each in received] == [
        (output.decode("utf-8", "replace"), body) for output, body in answers
    ]


async def test_parameters_larger_than_the_socket_go_out_as_it_empties(far: FarEnd) -> None:
    calls = [far.call(b"a" * 2_000_000), far.call(b"b" * 2_000_000)]
    await asyncio.sleep(0)
    for letter in (b"a", b"b"):
        kind, number, payload = await far.receive()
        assert (kind, payload) == (worker_frames.CALL, b"\1" + letter * 2_000_000)
        far.send(result(number, letter))
    assert [(await call).result for call in calls] == [b"a", b"b"]


async def test_the_end_of_a_worker_with_half_of_the_parameters_unsent_is_seen(far: FarEnd) -> None:
    call = far.call(b"a" * 2_000_000)
    await asyncio.sleep(0)
    far.end.close()
    with pytest.raises(WorkerExited):
        await call
    assert far.ends == 1


async def test_an_answer_that_was_said_before_the_end_still_counts(far: FarEnd) -> None:
    call = far.call()
    _, number, _ = await far.receive()
    far.send(result(number, b"1"))
    far.end.close()
    assert (await call).result == b"1"
    await eventually(lambda: far.ends == 1)
    assert not far.conversation.is_alive


def test_a_worker_that_dies_with_calls_unread_is_heard_after_what_it_said() -> None:
    async def die() -> tuple[int, list[CallResult | BaseException]]:
        far = FarEnd()
        calls = [far.call() for _ in range(3)]
        _, number, _ = await far.receive()
        far.send(result(number, b"1"))
        far.end.close()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        far.conversation.close()
        return far.ends, answers

    for run in (asyncio.run, uvloop.run):  # which tell of it in ways of their own
        ends, (first, *others) = run(die())
        assert isinstance(first, CallResult)
        assert (ends, first.result) == (1, b"1")
        assert [type(each) for each in others] == [WorkerExited] * 2


async def test_each_call_has_a_time_of_its_own(far: FarEnd) -> None:
    long, short, shorter = far.call(within_s=60), far.call(within_s=0.04), far.call(within_s=0.02)
    requested = [await far.receive() for _ in range(3)]
    for call, within in ((shorter, 0.02), (short, 0.04)):
        answer = await call
        assert (answer.failure, answer.duration_s, answer.output) == (CallFailure.TIMEOUT, within, "printed")
        assert far.began.pop() == 5000.0
    assert {await far.receive(), await far.receive()} == {
        (worker_frames.CANCEL, n, b"") for _, n, _ in requested[1:]
    }
    far.send(result(requested[1][1], b"late"))  # the worker had not heard of it yet
    far.send(result(requested[0][1], b"1"))
    assert (await long).result == b"1"
    assert far.ends == 1


async def test_calls_that_are_answered_in_time_leave_no_timer_that_ends_later_ones(far: FarEnd) -> None:
    loop = asyncio.get_running_loop()
    first_is_over = loop.time() + 0.03
    for within_s in (0.02, 60.0):
        call = far.call(within_s=within_s)
        _, number, _ = await far.receive()
        if within_s == 60.0:
            await eventually(lambda: loop.time() > first_is_over)
        far.send(result(number, b"1"))
        assert (await call).result == b"1"
    assert far.conversation.is_alive


async def test_close_fails_what_is_in_it_tells_nobody_and_may_be_repeated(far: FarEnd) -> None:
    call = far.call()
    await far.receive()
    far.conversation.close()
    far.conversation.close()
    with pytest.raises(WorkerExited, match="was ended in the middle"):
        await call
    assert far.ends == 0
    assert far.end.recv(1) == b""


async def test_an_answer_in_the_moment_of_a_cancellation_spares_the_worker(far: FarEnd) -> None:
    call = far.call()
    _, number, _ = await far.receive()
    far.send(result(number, b"1"))
    far.conversation._read()  # as the loop would, before the caller is woken
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (far.conversation.is_alive, far.conversation.in_flight, far.ends) == (True, 0, 0)


class Waiter:
    """Waits for one call without a task, and perhaps makes the next when it is told."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.told: list[CallResult | Exception] = []
        self._then = then

    def done(self) -> bool:
        return bool(self.told)

    def set_result(self, result: CallResult, /) -> None:
        self.told.append(result)
        self._then()

    def set_exception(self, error: Exception, /) -> None:
        self.told.append(error)


def begin(far: FarEnd, waiter: Waiter, *, within_s: float = 60.0) -> int:
    return far.conversation.begin_call(b"1", wants_output=False, within_s=within_s, waiter=waiter)


async def test_a_waiter_that_is_told_may_make_the_next_call_at_once(far: FarEnd) -> None:
    await loaded(far)
    second = Waiter()
    first = Waiter(then=lambda: begin(far, second))
    begin(far, first)
    far.send(result(1, b"one"))
    await eventually(first.done)
    far.send(result(2, b"two"))
    await eventually(second.done)
    assert (first.told, second.told) == ([CallResult(0.5, b"one")], [CallResult(0.5, b"two")])


async def test_a_waiter_is_told_of_a_time_out_and_of_the_end_of_its_worker(far: FarEnd) -> None:
    await loaded(far)
    late, left = Waiter(), Waiter()
    begin(far, left)
    begin(far, late, within_s=0.01)
    await eventually(late.done)
    far.end.close()
    await eventually(left.done)
    assert [type(waiter.told[0]) for waiter in (late, left)] == [TimeoutError, WorkerExited]
    timed_out = await far.conversation.explain_end(TimeoutError(), began=1.0, within_s=0.01)
    assert (timed_out.failure, timed_out.output) == (CallFailure.TIMEOUT, "printed")


async def test_a_call_that_is_abandoned_tells_its_waiter_nothing(far: FarEnd) -> None:
    await loaded(far)
    waiter, other = Waiter(), Waiter()
    number = begin(far, waiter)
    begin(far, other)
    far.conversation.abandon(number)
    assert not far.conversation.is_alive
    far.send(result(number, b"1") + result(number + 1, b"2"))
    await eventually(other.done)
    assert waiter.told == []

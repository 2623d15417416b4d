"""The agent's end of an HTTP request to a worker, with a worker that says whatever a test wants."""

from __future__ import annotations

import asyncio
import json

import pytest

from skerry.kit.response_stream import WINDOW, ResponseStream
from skerry.model.calls import CallFailure, CallResult, WorkerExited
from skerry.model.web_calls import WebResponseHead
from skerry.node.workers import worker_frames
from tests.node.workers.test_worker_channel import FarEnd, far, loaded, result
from tests.support.waiting import eventually

__all__ = ["far"]  # the fixture

HEAD = json.dumps({"status": 200, "headers": [["x-a", "b"]]}).encode()


def begin(
    far: FarEnd, request: bytes = b"request", *, within_s: float = 60.0
) -> tuple[ResponseStream[WebResponseHead], asyncio.Task[CallResult]]:
    response: ResponseStream[WebResponseHead] = ResponseStream()
    call = asyncio.ensure_future(far.conversation.call_web(request, response, within_s=within_s))
    return response, call


async def test_a_response_comes_in_parts_and_the_worker_is_granted_what_was_read(far: FarEnd) -> None:
    await loaded(far)
    response, call = begin(far)
    kind, number, payload = await far.receive()
    assert (kind, payload) == (worker_frames.WEB_CALL, b"request")
    far.send(worker_frames.pack(worker_frames.WEB_HEAD, number, HEAD))
    assert await response.wait_head() == WebResponseHead(200, (("x-a", "b"),))
    for _ in range(4):
        far.send(worker_frames.pack(worker_frames.WEB_BODY, number, bytes(WINDOW // 4)[:900]))
    await eventually(lambda: response.unread == 3600)
    assert len(await response.read()) == 3600
    far.send(result(number, b""))
    assert (await call).failure is None
    assert far.conversation.in_flight == 0


async def test_a_reader_that_leaves_cancels_its_call_in_order(far: FarEnd) -> None:
    await loaded(far)
    response, call = begin(far)
    _, number, _ = await far.receive()
    response.abandon()
    kind, cancelled, _ = await far.receive()
    assert (kind, cancelled) == (worker_frames.CANCEL, number)
    far.send(result(number, b""))
    assert (await call).failure is None
    assert far.conversation.is_alive, "it goes on with the next"


async def test_a_call_that_is_given_up_takes_its_worker_with_it(far: FarEnd) -> None:
    await loaded(far)
    _, call = begin(far)
    await far.receive()
    call.cancel()
    await asyncio.wait([call])
    assert not far.conversation.is_alive


@pytest.mark.parametrize(
    "head",
    [
        b"{}",
        b"nonsense",
        b'{"status": 101, "headers": []}',
        b'{"status": 200, "headers": [["a", "b\\r\\nc: d"]]}',
        b'{"status": "200", "headers": []}',
        b"\xff",
    ],
)
async def test_an_invalid_head_is_the_functions_failure(far: FarEnd, head: bytes) -> None:
    await loaded(far)
    response, call = begin(far)
    _, number, _ = await far.receive()
    far.send(worker_frames.pack(worker_frames.WEB_HEAD, number, head))
    assert (await call).failure is CallFailure.RESULT
    assert not response.has_begun


@pytest.mark.parametrize(
    "frames",
    [
        [(worker_frames.WEB_BODY, b"x")],
        [(worker_frames.WEB_HEAD, HEAD), (worker_frames.WEB_HEAD, HEAD)],
        [(worker_frames.WEB_HEAD, HEAD), *[(worker_frames.WEB_BODY, bytes(60_000))] * 10],
    ],
)
async def test_a_worker_that_breaks_the_protocol_loses_its_connection(
    far: FarEnd, frames: list[tuple[int, bytes]]
) -> None:
    await loaded(far)
    _, call = begin(far)
    _, number, _ = await far.receive()
    far.end.setblocking(True)

    def flood() -> None:
        try:
            for kind, payload in frames:
                far.send(worker_frames.pack(kind, number, payload))
        except OSError:
            pass

    await asyncio.to_thread(flood)
    with pytest.raises(WorkerExited, match="invalid reply"):
        await call
    assert far.ends == 1


async def test_a_response_that_takes_too_long_is_a_timeout(far: FarEnd) -> None:
    await loaded(far)
    _, call = begin(far, within_s=0.01)
    _, number, _ = await far.receive()
    far.send(worker_frames.pack(worker_frames.WEB_HEAD, number, HEAD))
    assert (await call).failure is CallFailure.TIMEOUT

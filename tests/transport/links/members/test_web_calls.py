"""Calls of web functions over a link: their response is streamed back, as fast as its reader takes it."""

from __future__ import annotations

import asyncio

import pytest

from skerry.functions.continuum.member_api import (
    BeforeStart,
    CallNotStarted,
    CallOutcomeUnknown,
    ForwardedCall,
)
from skerry.kit.response_stream import WINDOW, ResponseStream
from skerry.model.calls import CallReport, CallResult
from skerry.model.ids import FunctionName
from skerry.model.web_calls import WebCallRequest, WebResponseHead
from skerry.transport.links.members import messages
from tests.support.waiting import eventually
from tests.transport.links.members.conftest import THERE, FakeServes

HEAD = WebResponseHead(201, (("x-a", "b"),))


class WebServes(FakeServes):
    """Answers with so many bytes, as its reader takes them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.written = 0
        self.credit = WINDOW
        self.left = asyncio.Event()
        self.granted = asyncio.Event()

    def _grant(self, count: int) -> None:
        self.credit += count
        self.granted.set()

    async def invoke(self, call: ForwardedCall, *, begins: BeforeStart | None) -> CallReport:
        request = call.request
        assert isinstance(request, WebCallRequest)
        self.asked.append(call)
        if begins is not None:
            await begins()
        response = request.response
        response.attach(self._grant, self.left.set)
        response.begin(HEAD)
        while self.written < self.size and not self.left.is_set():
            if self.credit < 1000:
                self.granted.clear()
                waiting = [asyncio.ensure_future(each.wait()) for each in (self.granted, self.left)]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in waiting:
                    each.cancel()
                continue
            response.write(b"%04d" % (self.written // 1000 % 10_000) * 250)
            self.written += 1000
            self.credit -= 1000
        await self.may_end.wait()
        return CallReport(CallResult(0.25), 0.5, is_warm=begins is None, node=THERE)


def web_call() -> tuple[ForwardedCall, ResponseStream[WebResponseHead]]:
    response: ResponseStream[WebResponseHead] = ResponseStream()
    request = WebCallRequest(function=FunctionName("f"), params=b"request", response=response)
    return ForwardedCall(request, version=1), response


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_response_comes_back_whole_and_in_order(cloud, at_once):
    serves = WebServes(3_000_000)
    links, there = cloud.links(), cloud.serve(serves).member()
    call, response = web_call()
    calling = asyncio.create_task(links.invoke(there, call, at_once=at_once))
    calling.add_done_callback(lambda _: response.end())
    assert await response.wait_head() == HEAD
    parts = []
    while part := await response.read():
        parts.append(part)
    assert b"".join(parts) == b"".join(b"%04d" % n * 250 for n in range(3000))
    assert (await calling).answer.failure is None
    assert serves.asked[0].request.params == b"request"


async def test_a_reader_that_is_slow_delays_the_worker_at_the_other_member(cloud):
    serves = WebServes(100_000_000)
    links, there = cloud.links(), cloud.serve(serves).member()
    call, response = web_call()
    calling = asyncio.create_task(links.invoke(there, call, at_once=True))
    await eventually(lambda: response.unread > WINDOW - 100_000)
    for _ in range(10):
        await asyncio.sleep(0)
    assert serves.written <= 4 * WINDOW
    response.abandon()
    assert (await calling).answer.failure is None
    assert serves.left.is_set()
    assert serves.written < serves.size


async def test_a_call_that_is_cancelled_here_is_cancelled_there(cloud):
    serves = WebServes(1000)
    serves.may_end.clear()
    links, there = cloud.links(), cloud.serve(serves).member()
    call, response = web_call()
    calling = asyncio.create_task(links.invoke(there, call, at_once=True))
    assert await response.wait_head() == HEAD
    calling.cancel()
    await asyncio.wait([calling])
    serves.may_end.set()


async def test_a_member_that_is_lost_within_a_response_may_have_run_the_call(cloud):
    serves = WebServes(1000)
    serves.may_end.clear()
    links, served = cloud.links(), cloud.serve(serves)
    call, response = web_call()
    calling = asyncio.create_task(links.invoke(served.member(), call, at_once=True))
    assert await response.wait_head() == HEAD
    await links.close()
    with pytest.raises(CallOutcomeUnknown):
        await calling
    assert response.has_begun
    serves.may_end.set()


async def test_a_member_of_before_web_functions_gets_none(cloud, monkeypatch):
    links, there = cloud.links(), cloud.serve(WebServes(1000)).member()
    monkeypatch.setattr(messages, "WEB_SINCE", messages.VERSION + 1)
    call, response = web_call()
    with pytest.raises(CallNotStarted, match="upgrade it"):
        await links.invoke(there, call, at_once=True)
    assert not response.has_begun

"""Calls of web functions: the same workers, queue and counts, with a response that is streamed."""

from __future__ import annotations

import asyncio

import pytest

from skerry.kit.response_stream import ResponseStream
from skerry.model import errors
from skerry.model.calls import CallFailure, CallResult
from skerry.model.ids import FunctionName
from skerry.model.web_calls import WebCallRequest, WebResponseHead
from tests.support.workers import Site, function, in_simulated_time


def web_call(name: str = "f", params: bytes = b"body") -> WebCallRequest:
    response: ResponseStream[WebResponseHead] = ResponseStream()
    return WebCallRequest(function=FunctionName(name), params=params, response=response)


@in_simulated_time
async def test_the_first_request_is_cold_the_next_warm_and_each_gets_its_response() -> None:
    async with Site(function("f")) as site:
        for is_warm in (False, True):
            request = web_call()
            report = await site.invoker.invoke(request)
            assert (report.is_warm, report.answer.failure) == (is_warm, None)
            assert (await request.response.wait_head()) is not None
            assert await request.response.read() == b"body"
        assert site.host.spawns == 1


@in_simulated_time
async def test_requests_wait_in_the_queue_of_all_calls() -> None:
    async with Site(function("f", memory=512, seats=2)) as site:
        site.host.run_s = 1.0
        plain = [site.call("f") for _ in range(4)]
        web = [site.invoker.invoke(web_call()) for _ in range(4)]
        reports = await asyncio.gather(*plain, *web)
        assert {report.answer.failure for report in reports} == {None}
        assert any(report.queueing_s > 0 for report in reports[4:])


@in_simulated_time
async def test_a_request_whose_client_has_left_counts_as_cancelled_and_keeps_its_worker() -> None:
    async with Site(function("f")) as site:
        request = web_call()
        request.response.abandon()
        report = await site.invoker.invoke(request)
        assert report.answer.failure is CallFailure.ABANDONED
        assert site.invoker._groups[FunctionName("f")].failed == {"Cancelled": 1}
        assert (await site.invoker.invoke(web_call())).is_warm


@in_simulated_time
async def test_a_request_that_fails_has_no_response() -> None:
    async with Site(function("f")) as site:
        site.host.reply = lambda worker, params: CallResult(0.0, failure=CallFailure.HANDLER, error="odd")
        request = web_call()
        report = await site.invoker.invoke(request)
        assert report.answer.failure is CallFailure.HANDLER
        assert not request.response.has_begun


@in_simulated_time
async def test_a_request_to_an_unknown_function_is_not_found() -> None:
    async with Site() as site:
        with pytest.raises(errors.NotFound):
            await site.invoker.invoke(web_call())

"""What answers a request, and what its loss means."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from skerry.functions.continuum.member_api import CallNotStarted, CallOutcomeUnknown
from skerry.model import errors
from skerry.model.calls import CallReport, CallResult
from skerry.transport.links.members import messages
from skerry.transport.links.members.framing import MalformedFrame
from skerry.transport.links.members.pending_requests import LinkCall, LinkFetch, LinkPing, LinkPoll
from tests.transport.links.members.conftest import LOAD

READY = messages.CallReady(7)
FULL = messages.LinkRefusal(7, "no-room", "full")
BROKE = messages.LinkRefusal(7, "internal", "broke", may_have_run=True)
LOST = None

# To start at once?, what comes, what the caller is told.
TABLE = [
    (False, [LOST], CallNotStarted),
    (False, [READY, LOST], CallOutcomeUnknown),
    (True, [LOST], CallOutcomeUnknown),
    (True, [READY, LOST], CallOutcomeUnknown),
    (False, [FULL], CallNotStarted),
    (False, [READY, FULL], CallNotStarted),
    (True, [FULL], CallNotStarted),
    (True, [READY, FULL], CallNotStarted),
    (False, [READY, BROKE], CallOutcomeUnknown),
    (True, [BROKE], CallOutcomeUnknown),
]


@pytest.mark.parametrize(("at_once", "comes", "told"), TABLE)
async def test_a_failed_call_was_not_started_or_may_have_run(at_once, comes, told):
    answer, sent = asyncio.get_running_loop().create_future(), []
    request = LinkCall(answer, 7, sent.append, at_once=at_once)
    for message in comes:
        if message is LOST:
            request.lose("cut")
        elif isinstance(message, messages.LinkRefusal):
            request.refused(message)
        else:
            request.take(message)
    assert type(answer.exception()) is told
    assert sent == ([messages.StartCall(7)] if READY in comes else [])


async def test_a_caller_that_has_left_gives_no_word_to_go():
    answer, sent = asyncio.get_running_loop().create_future(), []
    request = LinkCall(answer, 7, sent.append, at_once=False)
    answer.cancel()
    request.take(READY)
    request.take(messages.CallDone(7, CallReport(CallResult(0.0), 0.0)))
    request.lose("cut")
    assert sent == []


async def test_answers_to_something_else_are_broken():
    future = asyncio.get_running_loop().create_future
    for request in (
        LinkCall(future(), 7, print, at_once=True),
        LinkPing(future(), lambda: 0.0),
        LinkFetch(future(), "sha256:", 100),
        LinkPoll(future()),
    ):
        with pytest.raises(MalformedFrame):
            request.take(messages.PongMessage(7))


async def test_code_with_another_digest_or_too_much_of_it_is_not_taken():
    digest = "sha256:" + hashlib.sha256(b"code").hexdigest()
    answer = asyncio.get_running_loop().create_future()
    LinkFetch(answer, digest, 100).take(messages.CodeChunk(7, b"other", is_last=True))
    assert isinstance(answer.exception(), errors.Unavailable)
    with pytest.raises(MalformedFrame, match="more than 3 bytes"):
        LinkFetch(asyncio.get_running_loop().create_future(), digest, 3).take(
            messages.CodeChunk(7, b"code", True)
        )


async def test_a_round_trip_is_timed_when_its_answer_is_here():
    times = iter([10.0, 10.25])
    answer = asyncio.get_running_loop().create_future()
    LinkPing(answer, lambda: next(times)).take(messages.PongMessage(7, LOAD))
    assert answer.result() == (LOAD, 0.25)

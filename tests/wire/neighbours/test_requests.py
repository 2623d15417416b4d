"""What answers a request, and what its loss means."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from skerry.functions.continuum.neighbours import MayHaveRun, NotStarted
from skerry.model import errors
from skerry.model.calls import Answer, Report
from skerry.wire.neighbours import messages
from skerry.wire.neighbours.frames import Broken
from skerry.wire.neighbours.requests import Call, Fetching, Polling, RoundTrip
from tests.wire.neighbours.conftest import STANDING

READY = messages.Ready(7)
FULL = messages.Refused(7, "no-room", "full")
BROKE = messages.Refused(7, "internal", "broke", may_have_run=True)
LOST = None

# To start at once?, what comes, what the caller is told.
TABLE = [
    (False, [LOST], NotStarted),
    (False, [READY, LOST], MayHaveRun),
    (True, [LOST], MayHaveRun),
    (True, [READY, LOST], MayHaveRun),
    (False, [FULL], NotStarted),
    (False, [READY, FULL], NotStarted),
    (True, [FULL], NotStarted),
    (True, [READY, FULL], NotStarted),
    (False, [READY, BROKE], MayHaveRun),
    (True, [BROKE], MayHaveRun),
]


@pytest.mark.parametrize(("at_once", "comes", "told"), TABLE)
async def test_a_failed_call_was_not_started_or_may_have_run(at_once, comes, told):
    answer, sent = asyncio.get_running_loop().create_future(), []
    request = Call(answer, 7, sent.append, at_once=at_once)
    for message in comes:
        if message is LOST:
            request.lose("cut")
        elif isinstance(message, messages.Refused):
            request.refused(message)
        else:
            request.take(message)
    assert type(answer.exception()) is told
    assert sent == ([messages.Go(7)] if READY in comes else [])


async def test_a_caller_that_has_left_gives_no_word_to_go():
    answer, sent = asyncio.get_running_loop().create_future(), []
    request = Call(answer, 7, sent.append, at_once=False)
    answer.cancel()
    request.take(READY)
    request.take(messages.Done(7, Report(Answer(0.0), 0.0)))
    request.lose("cut")
    assert sent == []


async def test_answers_to_something_else_are_broken():
    future = asyncio.get_running_loop().create_future
    for request in (
        Call(future(), 7, print, at_once=True),
        RoundTrip(future(), lambda: 0.0),
        Fetching(future(), "sha256:", 100),
        Polling(future()),
    ):
        with pytest.raises(Broken):
            request.take(messages.Pong(7))


async def test_code_with_another_digest_or_too_much_of_it_is_not_taken():
    digest = "sha256:" + hashlib.sha256(b"code").hexdigest()
    answer = asyncio.get_running_loop().create_future()
    Fetching(answer, digest, 100).take(messages.Piece(7, b"other", is_last=True))
    assert isinstance(answer.exception(), errors.Unavailable)
    with pytest.raises(Broken, match="more than 3 bytes"):
        Fetching(asyncio.get_running_loop().create_future(), digest, 3).take(messages.Piece(7, b"code", True))


async def test_a_round_trip_is_timed_when_its_answer_is_here():
    times = iter([10.0, 10.25])
    answer = asyncio.get_running_loop().create_future()
    RoundTrip(answer, lambda: next(times)).take(messages.Pong(7, STANDING))
    assert answer.result() == (STANDING, 0.25)

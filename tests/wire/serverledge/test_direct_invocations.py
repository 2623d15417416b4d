"""Calls without a task, byte by byte: which requests are such calls, and that HTTP stays as it is; at the
server itself, and on a connection that is at a front."""

from __future__ import annotations

import asyncio

import pytest

from skerry.model import errors
from skerry.model.callers import Role
from skerry.model.calls import CallFailure, CallResult
from skerry.transport.http.front_pool import FrontPool
from skerry.transport.http.metrics import HTTP_METRICS
from tests.support.fronts import assign, task_fronts
from tests.support.waiting import eventually
from tests.transport.http.talking import Wire, post
from tests.wire.serverledge.conftest import Serverledge
from tests.wire.serverledge.fakes import FakeInvoker, failed

CALL = post("/invoke/isprime", b'{"Params":{"n":17}}')
HEAD, _, BODY = CALL.partition(b"\r\n\r\n")


@pytest.fixture
def is_direct() -> bool:
    return True


@pytest.fixture
def invoker(ledge: Serverledge) -> FakeInvoker:
    return ledge.fakes.invoker


@pytest.fixture(params=["server", "front"])
def fronts(request: pytest.FixtureRequest) -> FrontPool | None:
    return task_fronts() if request.param == "front" else None


@pytest.fixture
async def wire(ledge: Serverledge, fronts: FrontPool | None, invoker: FakeInvoker) -> Wire:
    wire = await ledge.site.wire()
    if fronts is not None:
        await assign(wire, CALL)
        invoker.asked.clear()
        invoker.begun = 0
    return wire


async def test_a_request_in_one_piece_needs_no_task(
    wire: Wire, invoker: FakeInvoker, ledge: Serverledge
) -> None:
    invoker.holds = True
    await wire.send(CALL)
    await eventually(lambda: invoker.held)
    assert not ledge.site.server._state.tasks
    invoker.held[0].end()
    assert (await wire.answer()).status == 200


async def test_a_body_that_comes_behind_its_head_changes_nothing(wire: Wire, invoker: FakeInvoker) -> None:
    await wire.send(HEAD + b"\r\n\r\n" + BODY[:3])
    await asyncio.wait_for(wire.send(BODY[3:]), 1)
    assert (await wire.answer()).status == 200
    assert invoker.asked[0].params == b'{"n":17}'


async def test_a_body_that_dawdles_is_waited_for_by_a_task(
    wire: Wire, invoker: FakeInvoker, ledge: Serverledge
) -> None:
    await wire.send(HEAD + b"\r\n\r\n" + BODY[:3])
    await eventually(lambda: ledge.site.server._state.tasks)
    await wire.send(BODY[3:])
    assert (await wire.answer()).status == 200
    assert (invoker.begun, invoker.asked[0].params) == (0, b'{"n":17}')


async def test_requests_that_are_sent_ahead_are_answered_in_order(wire: Wire, invoker: FakeInvoker) -> None:
    invoker.holds = True
    await wire.send(CALL + post("/invoke/nothing", b"") + CALL)
    await eventually(lambda: invoker.held)
    invoker.holds = False
    invoker.held[0].end()
    assert [(await wire.answer()).status for _ in range(3)] == [200, 404, 200]


async def test_a_client_that_closes_its_half_still_gets_its_answer(wire: Wire, invoker: FakeInvoker) -> None:
    invoker.holds = True
    await wire.send(CALL)
    await eventually(lambda: invoker.held)
    wire.finish_sending()
    await asyncio.sleep(0)
    invoker.held[0].end()
    answer = await wire.answer()
    assert answer.status == 200
    assert await wire.rest() == b""


async def test_a_client_that_ends_within_its_body_is_told(wire: Wire, invoker: FakeInvoker) -> None:
    await wire.send(HEAD + b"\r\n\r\n" + BODY[:3])
    wire.finish_sending()
    answer = await wire.answer()
    assert (answer.status, invoker.begun) == (400, 0)


async def test_a_client_that_leaves_takes_nothing_with_it(
    wire: Wire, invoker: FakeInvoker, ledge: Serverledge
) -> None:
    before = HTTP_METRICS.in_flight
    invoker.holds = True
    await wire.send(CALL)
    await eventually(lambda: invoker.held)
    assert HTTP_METRICS.in_flight == before + 1
    wire.vanish()
    invoker.held[0].end()
    await eventually(lambda: not ledge.site.server._state.connections)
    assert HTTP_METRICS.in_flight == before


async def test_a_call_that_outlasts_the_stop_of_the_server_is_ended_and_told_so(
    wire: Wire, invoker: FakeInvoker, ledge: Serverledge
) -> None:
    invoker.holds = True
    await wire.send(CALL)
    await eventually(lambda: invoker.held)
    stopping = asyncio.ensure_future(ledge.site.server.stop(0.2))
    answer = await wire.answer()
    assert (answer.status, answer.headers["connection"]) == (503, "close")
    assert invoker.held[0].is_cancelled
    await stopping


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Authorization: Bearer nobody", 401),
        ("Host: example.org", 400),
        ("Origin: http://example.org", 403),
        ("Content-Type: text/plain\r\nContent-Type: text/html", 400),
    ],
)
async def test_who_may_not_call_is_refused_as_elsewhere(
    wire: Wire, invoker: FakeInvoker, header: str, status: int
) -> None:
    await wire.send(post("/invoke/isprime", b"{}", header))
    assert ((await wire.answer()).status, invoker.asked) == (status, [])


@pytest.mark.parametrize(
    ("path", "header"),
    [
        ("/invoke/isprime?pretty", "X: y"),
        ("/invoke/isprime/", "X: y"),
        ("/invoke/is%70rime", "X: y"),
        ("/invoke/isprime", "Connection: close"),
        ("/invoke/isprime", "Expect: 100-continue"),
    ],
)
async def test_what_asks_for_more_of_http_has_a_task(
    wire: Wire, invoker: FakeInvoker, path: str, header: str
) -> None:
    await wire.send(post(path, b"{}", header))
    answer = await wire.answer()
    assert answer.status in (100, 200)
    await eventually(lambda: len(invoker.asked) == 1)
    assert invoker.begun == 0


async def test_the_id_of_a_request_is_the_clients_or_a_new_one(wire: Wire) -> None:
    await wire.send(post("/invoke/isprime", b"{}", "X-Request-Id: mine-7"))
    assert (await wire.answer()).headers["x-request-id"] == "mine-7"
    await wire.send(post("/invoke/isprime", b"{}", "X-Request-Id: not an id"))
    assert " " not in (await wire.answer()).headers["x-request-id"]


async def test_failures_and_errors_are_those_of_the_contract(wire: Wire, invoker: FakeInvoker) -> None:
    invoker.report = failed(CallResult(0.1, failure=CallFailure.HANDLER, error="it broke"))
    await wire.send(CALL)
    answer = await wire.answer()
    assert (answer.status, answer.json["ErrorType"]) == (500, "HandlerError")
    invoker.report = failed(CallResult(0.1, failure=CallFailure.GONE))
    await wire.send(CALL)
    assert (await wire.answer()).status == 404
    invoker.failing = errors.Overloaded("full", retry_after_s=3)
    await wire.send(CALL)
    answer = await wire.answer()
    assert (answer.status, answer.headers["retry-after"]) == (429, "3")


async def test_a_head_that_repeats_has_its_own_body_each_time(wire: Wire, invoker: FakeInvoker) -> None:
    for number in (b"17", b"18", b"19"):
        await wire.send(CALL.replace(b"17", number))
        assert (await wire.answer()).status == 200
    await wire.send(CALL[:-3])  # the same head, and a body in two pieces
    await wire.send(CALL[-3:])
    assert (await wire.answer()).status == 200
    await wire.send(CALL + CALL)  # and two at once
    assert [(await wire.answer()).status for _ in range(2)] == [200, 200]
    sent = [ask.params for ask in invoker.asked]
    assert sent == [b'{"n":17}', b'{"n":18}', b'{"n":19}', *[b'{"n":17}'] * 3]


async def test_a_head_that_repeats_is_authenticated_each_time(
    wire: Wire, invoker: FakeInvoker, ledge: Serverledge
) -> None:
    identity = ledge.site.plane.identity
    token, text = await identity.create_token(Role.INVOKER, ttl_s=None, note="", actor="test")
    call = post("/invoke/isprime", b"{}", f"Authorization: Bearer {text}")
    for _ in range(2):
        await wire.send(call)
        assert (await wire.answer()).status == 200
    await identity.revoke_token(token.id, actor="test")
    await wire.send(call)
    assert ((await wire.answer()).status, invoker.begun) == (401, 2)

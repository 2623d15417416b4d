"""What every request passes: ids, errors in one shape, paths, bounds in time, metrics, and the log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from skerry.kit import metrics, traces
from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.settings import HttpSettings
from skerry.transport.access import rules
from skerry.transport.access.gate import AccessGate, allowed_hosts
from skerry.transport.http import responses
from skerry.transport.http.asgi import Receive, Scope, Send
from skerry.transport.http.dispatcher import HttpDispatcher, HttpRoute, ServedHosts
from tests.support.waiting import eventually
from tests.transport.http.conftest import Serve
from tests.transport.http.talking import get

SETTINGS = HttpSettings()


class NoCallers:
    def caller_from_token(self, text: str) -> Caller:
        raise errors.Unauthenticated("nobody")

    def caller_from_certificate(self, der: bytes) -> Caller:
        raise errors.Unauthenticated("nobody")

    def listen(self, changed: Callable[[], None]) -> None:
        pass


def front(app: Any, *, timeout_s: float | None = 5.0, settings: HttpSettings = SETTINGS) -> HttpDispatcher:
    """A front with one route, `/it`, and one bare prefix, `/fast/`."""
    target = HttpRoute("GET", "/it", app, rules.OPEN_RULE, 1000, timeout_s)
    return HttpDispatcher(
        prefix_routes={
            "/fast/": [HttpRoute("GET", "/fast/{name}", app, rules.OPEN_RULE, 1000, None, is_quiet=True)]
        },
        routes=[target],
        guard=AccessGate(NoCallers(), os.geteuid()),
        hosts=ServedHosts(allowed_hosts("127.0.0.1")),
        settings=settings,
        clock=SystemClock(),
    )


class Raising:
    """An app that raises what it is given, before or after it began to answer."""

    def __init__(self, error: BaseException, *, late: bool = False) -> None:
        self._error = error
        self._late = late

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._late:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise self._error


class Hanging:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()


class Fine:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await responses.send_whole(send, 200, scope["path"].encode(), "text/plain")


class Pausing:
    """Begins an answer, and goes on when it may."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = (b"content-length", b"4")
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await self.may_go_on.wait()
        await send({"type": "http.response.body", "body": b"body"})


async def test_the_head_of_an_answer_does_not_wait_for_a_body_that_comes_later(serve: Serve) -> None:
    app = Pausing()
    wire = await (await serve(app=front(app))).wire()
    await wire.send(get("/fast/x"))
    head = await wire.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    app.may_go_on.set()
    assert await wire.reader.readexactly(4) == b"body"


@pytest.mark.parametrize("given", ["a", "Run-7.of:8", "x" * 64])
async def test_a_good_request_id_is_taken_and_given_back(serve: Serve, given: str) -> None:
    session = await (await serve()).session()
    async with session.get("/healthz", headers={"X-Request-Id": given}) as reply:
        assert reply.headers["X-Request-Id"] == given


@pytest.mark.parametrize("given", ["", "x" * 65, "two words", "semi;colon", 'quote"', "<b>"])
async def test_a_bad_request_id_is_replaced(serve: Serve, given: str) -> None:
    session = await (await serve()).session()
    async with session.get("/healthz", headers={"X-Request-Id": given}) as reply:
        assert len(reply.headers["X-Request-Id"]) == 16


async def test_every_request_gets_an_id_of_its_own_that_is_in_its_log_line(
    serve: Serve, logged: list[Any]
) -> None:
    session = await (await serve()).session()
    seen = []
    for _ in range(3):
        async with session.get("/about") as reply:
            seen.append(reply.headers["X-Request-Id"])
    lines = [line for line in logged if line["event"] == "request.answered"]
    assert [line["request_id"] for line in lines] == seen
    assert len(set(seen)) == 3
    assert lines[0]["status"] == 200
    assert lines[0]["caller"] == f"uid:{os.geteuid()}"
    assert lines[0]["log_level"] == "info"


async def test_health_is_logged_only_at_debug(serve: Serve, logged: list[Any]) -> None:
    session = await (await serve()).session()
    async with session.get("/healthz"):
        pass
    lines = [line["log_level"] for line in logged if line["event"] == "request.answered"]
    assert lines == ["debug"]


async def test_a_path_cannot_write_lines_of_its_own_into_the_log(serve: Serve, logged: list[Any]) -> None:
    site = await serve()
    wire = await site.wire()
    await wire.send(get("/no%0Asuch%0Dpath"))
    assert (await wire.answer()).status == 404
    assert [line["path"] for line in logged if "path" in line] == ["/no%0Asuch%0Dpath"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.Invalid("m"), 400, "invalid"),
        (errors.Conflict("m"), 409, "conflict"),
        (errors.ResourcesExhausted("m"), 507, "no-room"),
        (errors.Compacted("m"), 410, "compacted"),
        (responses.HttpError(418, "teapot", "m"), 418, "teapot"),
    ],
)
async def test_an_error_becomes_an_answer_of_the_one_shape(
    serve: Serve, error: Exception, status: int, code: str
) -> None:
    session = await (await serve(app=front(Raising(error)))).session()
    async with session.get("/it") as reply:
        said = await reply.json()
        assert reply.status == status
        assert said == {"error": "m", "code": code, "request_id": reply.headers["X-Request-Id"]}


async def test_errors_carry_what_helps_a_program(serve: Serve) -> None:
    session = await (await serve(app=front(Raising(errors.Invalid("m", field="role"))))).session()
    async with session.get("/it") as reply:
        assert (await reply.json())["field"] == "role"
    session = await (await serve(app=front(Raising(errors.Overloaded("m", retry_after_s=2.3))))).session()
    async with session.get("/it") as reply:
        assert (reply.status, reply.headers["Retry-After"]) == (429, "3")


async def test_the_detail_of_an_error_goes_to_the_log_and_not_to_the_caller(
    serve: Serve, logged: list[Any]
) -> None:
    session = await (await serve(app=front(Raising(errors.NotFound("m", detail="deep"))))).session()
    async with session.get("/it") as reply:
        assert "deep" not in await reply.text()
    assert [line["detail"] for line in logged if line["event"] == "request.detail"] == ["deep"]


async def test_a_fault_of_ours_is_a_500_without_a_traceback_and_with_one_in_the_log(
    serve: Serve, logged: list[Any]
) -> None:
    session = await (await serve(app=front(Raising(ZeroDivisionError("secret"))))).session()
    async with session.get("/it") as reply:
        text = await reply.text()
        assert reply.status == 500
        assert reply.headers["X-Request-Id"] in text
    assert "secret" not in text
    assert "ZeroDivision" not in text
    failed = [line for line in logged if line["event"] == "request.failed"]
    assert isinstance(failed[0]["exc_info"], ZeroDivisionError)


@pytest.mark.parametrize("error", [ZeroDivisionError(), errors.Unavailable("m")])
async def test_an_answer_that_breaks_half_way_does_not_look_complete(serve: Serve, error: Exception) -> None:
    site = await serve(app=front(Raising(error, late=True)))
    wire = await site.wire()
    await wire.send(get("/it"))
    assert not (await wire.rest()).endswith(b"0\r\n\r\n")


async def test_a_request_that_takes_too_long_gets_504(serve: Serve) -> None:
    session = await (await serve(app=front(Hanging(), timeout_s=0.05))).session()
    async with session.get("/it") as reply:
        assert (reply.status, (await reply.json())["code"]) == (504, "timed-out")


@pytest.mark.parametrize("path", ["/about", "/about/", "/token", "/token/", "/readyz/", "/healthz/"])
async def test_a_slash_at_the_end_makes_no_difference(serve: Serve, path: str) -> None:
    session = await (await serve()).session()
    async with session.get(path, allow_redirects=False) as reply:
        assert reply.status == 200


@pytest.mark.parametrize("path", ["/", "/nothing", "/about/more", "/token/a/b", "//about", "/token/a%2Fb"])
async def test_an_unknown_path_is_404_in_the_one_shape(serve: Serve, path: str) -> None:
    wire = await (await serve()).wire()
    await wire.send(get(path))
    answer = await wire.answer()
    assert (answer.status, answer.json["code"]) == (404, "not-found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/healthz", "GET, HEAD"),
        ("PUT", "/token", "GET, HEAD, POST"),
        ("GET", "/token/some", "DELETE"),
        ("OPTIONS", "/join", "GET, HEAD, POST"),
        ("PATCH", "/fast/one", "GET, HEAD"),
    ],
)
async def test_a_wrong_verb_is_told_which_ones_there_are(
    serve: Serve, method: str, path: str, allow: str
) -> None:
    site = await serve(app=front(Fine())) if path.startswith("/fast") else await serve()
    session = await site.session()
    async with session.request(method, path) as reply:
        assert (reply.status, reply.headers["Allow"]) == (405, allow)
        assert (await reply.json())["code"] == "wrong-verb"


async def test_a_bare_route_is_found_by_its_first_segment(serve: Serve) -> None:
    session = await (await serve(app=front(Fine()))).session()
    for path, status in {"/fast/one": 200, "/fast/one/two": 200, "/fast": 404, "/faster/one": 404}.items():
        async with session.get(path) as reply:
            assert reply.status == status, path


async def test_head_answers_like_get_without_a_body(serve: Serve) -> None:
    session = await (await serve()).session()
    for path in ("/healthz", "/about", "/events"):
        async with session.head(path) as reply:
            assert (reply.status, await reply.read()) == (200, b"")


async def test_a_header_that_matters_may_not_come_twice(serve: Serve) -> None:
    site = await serve()
    for name in ("Host", "Authorization", "Origin"):
        wire = await site.wire()
        await wire.send(get("/about", f"{name}: localhost", f"{name}: localhost"))
        answer = await wire.answer()
        assert (answer.status, answer.json["field"]) == (400, name.lower())


async def test_a_request_without_a_host_is_told_to_send_one(serve: Serve) -> None:
    wire = await (await serve()).wire()
    await wire.send(b"GET /healthz HTTP/1.1\r\n\r\n")
    answer = await wire.answer()
    assert (answer.status, answer.json["field"]) == (400, "host")


def count(route: str, method: str, status: int) -> float:
    labels = {"route": route, "method": method, "status": str(status)}
    return metrics.REGISTRY.get_sample_value("skerry_http_requests_total", labels) or 0.0


async def test_requests_are_counted_by_route_and_never_by_path(serve: Serve) -> None:
    session = await (await serve()).session()
    before = count("/token/{id}", "DELETE", 404), count("unmatched", "GET", 404)
    async with session.delete("/token/one"), session.delete("/token/two"), session.get("/odd/path"):
        pass
    await eventually(lambda: count("unmatched", "GET", 404) == before[1] + 1)
    assert count("/token/{id}", "DELETE", 404) == before[0] + 2
    assert metrics.REGISTRY.get_sample_value("skerry_http_requests_in_flight") == 0


class Tracing:
    """Answers with the span that it has."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        text = scope["state"].get("traceparent", "") + " " + scope["state"]["request_id"]
        await responses.send_whole(send, 200, text.encode(), "text/plain")


async def test_a_request_is_a_span_below_that_of_its_caller_and_its_id_has_it(serve: Serve) -> None:
    recorder = traces.SpanRecorder(1.0)
    traces.install(recorder)
    try:
        session = await (await serve(app=front(Tracing()))).session()
        parent = traces.TraceContext("a" * 32, "b" * 16)
        async with session.get("/fast/x", headers={"traceparent": parent.traceparent}) as reply:
            (span,) = recorder.take(10)
            assert (span.name, span.parent_id) == ("GET /fast/{name}", parent.span_id)
            assert span.context.trace_id == parent.trace_id
            assert span.attributes["http.response.status_code"] == 200
            assert await reply.text() == f"{span.context.traceparent} {span.context.request_id}"
            assert reply.headers["X-Request-Id"] == span.context.request_id

        async with session.get("/it", headers={"traceparent": "no", "X-Request-Id": "mine"}) as reply:
            (span,) = recorder.take(10)
            assert span.parent_id == ""
            assert await reply.text() == f"{span.context.traceparent} mine"

        for path, headers in (
            ("/it", {"traceparent": f"00-{'c' * 32}-{'d' * 16}-00"}),
            ("/nothing", {}),
        ):
            async with session.get(path, headers=headers):
                pass
        assert recorder.take(10) == []
    finally:
        traces.install(None)

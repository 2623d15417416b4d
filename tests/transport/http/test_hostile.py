"""Clients that are slow, broken, half-closed, vanishing or too many: a clear answer, and nothing left behind.

That no descriptor, thread or process stays is checked after every test; tasks and connections are here.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from skerry.model.settings import HttpSettings
from skerry.transport.access.peers import ConnectionPeer
from skerry.transport.http import connection
from skerry.transport.http.asgi import Receive, Scope, Send
from skerry.transport.listeners import MAX_REFUSED
from tests.support.waiting import eventually
from tests.transport.http.conftest import Serve, Site
from tests.transport.http.talking import get, post

QUICK = HttpSettings(header_timeout_s=0.1, body_timeout_s=0.1, keep_alive_s=0.4)


async def settled(site: Site) -> None:
    """No connection and no request is left in the server once the clients are gone."""
    await site.sessions.aclose()
    await emptied(site)


async def emptied(site: Site) -> None:
    state, listeners = site.server._state, list(site.server._listeners)
    await eventually(lambda: not state.connections and not state.tasks, what="connections and tasks ended")
    await eventually(lambda: not any(one._serving for one in listeners), what="their slots are free")


async def still_serves(site: Site) -> None:
    wire = await site.wire()
    await wire.send(get("/healthz", "Connection: close"))
    assert (await wire.answer()).status == 200


async def test_headers_that_are_too_large_get_431_and_the_connection_closes(serve: Serve) -> None:
    site = await serve(http=HttpSettings(max_header_bytes=2048))
    wire = await site.wire()
    await wire.send(get("/healthz", "X-Big: " + "x" * 4000))
    answer = await wire.answer()
    assert (answer.status, answer.json["code"]) == (431, "too-large")
    assert answer.json["request_id"] == answer.headers["x-request-id"]
    assert "2048" in answer.json["error"]
    assert await wire.rest() == b""
    await settled(site)


async def test_headers_without_end_get_431_long_before_they_fill_memory(serve: Serve) -> None:
    site = await serve(http=HttpSettings(max_header_bytes=2048))
    wire = await site.wire()
    await wire.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Big: ")
    for _ in range(8):
        await wire.send(b"x" * 1024)
    assert (await wire.answer()).status == 431
    await wire.rest()
    await settled(site)


async def test_a_large_head_behind_another_request_in_one_chunk_is_refused_too(serve: Serve) -> None:
    site = await serve(http=HttpSettings(max_header_bytes=2048))
    wire = await site.wire()
    await wire.send(get("/healthz") + get("/healthz", "X-Big: " + "x" * 4000))
    assert (await wire.answer()).status == 200
    await wire.rest()
    await settled(site)


async def test_many_small_requests_in_one_chunk_are_not_taken_for_large_headers(serve: Serve) -> None:
    site = await serve(http=HttpSettings(max_header_bytes=1024))
    wire = await site.wire()
    await wire.send(get("/healthz") * 40)
    for _ in range(40):
        assert (await wire.answer()).status == 200


async def test_headers_that_come_too_slowly_get_408(serve: Serve) -> None:
    site = await serve(http=QUICK)
    wire = await site.wire()
    await wire.send(b"GET /healthz HTTP/1.1\r\nHost: loc")
    answer = await wire.answer()
    assert (answer.status, answer.json["code"]) == (408, "slow-client")
    await settled(site)


async def test_a_byte_now_and_then_does_not_put_the_header_timeout_off(serve: Serve) -> None:
    site = await serve(http=HttpSettings(header_timeout_s=0.2))
    wire = await site.wire()
    await wire.send(b"GET /healthz HTTP/1.1\r\nX: ")

    async def drip() -> None:
        while True:
            await wire.send(b"x")
            await asyncio.sleep(0.01)

    dripping = asyncio.ensure_future(drip())
    assert (await wire.answer()).status == 408
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)
    await settled(site)


async def test_a_body_that_comes_too_slowly_gets_408(serve: Serve) -> None:
    site = await serve(http=QUICK)
    wire = await site.wire()
    await wire.send(post("/token/", b'{"role":', length=100))
    answer = await wire.answer()
    assert (answer.status, answer.json["code"]) == (408, "slow-client")
    await settled(site)


async def test_a_silent_connection_is_closed(serve: Serve) -> None:
    site = await serve(http=QUICK)
    wire = await site.wire()
    assert await wire.rest() == b""
    await settled(site)


async def test_a_connection_that_went_silent_after_an_answer_is_closed(serve: Serve) -> None:
    site = await serve(http=QUICK)
    wire = await site.wire()
    await wire.send(get("/healthz"))
    assert (await wire.answer()).status == 200
    assert await wire.rest() == b""
    await settled(site)


async def test_empty_lines_do_not_keep_a_connection_open(serve: Serve) -> None:
    site = await serve(http=QUICK)
    wire = await site.wire()
    await wire.send(b"\r\n\r\n")
    assert await wire.rest() == b""
    await settled(site)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,  # a TLS greeting
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"GET /heal\xffthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /token/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: abc\r\n\r\n",
        b"POST /token/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /token/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    ],
)
async def test_what_is_not_http_gets_a_clear_400(serve: Serve, sent: bytes) -> None:
    site = await serve()
    wire = await site.wire()
    await wire.send(sent)
    answer = await wire.answer()
    assert (answer.status, answer.json["code"]) == (400, "bad-http")
    assert answer.headers["connection"] == "close"
    assert await wire.rest() == b""
    await settled(site)
    await still_serves(site)


async def test_bad_http_behind_a_good_request_does_not_spoil_its_answer(serve: Serve) -> None:
    site = await serve()
    wire = await site.wire()
    await wire.send(get("/about") + b"rubbish\r\n\r\n")
    assert (await wire.answer()).status == 200
    assert await wire.rest() == b""
    await settled(site)


async def test_requests_sent_ahead_are_answered_in_order_and_only_so_many(serve: Serve) -> None:
    site = await serve()
    wire = await site.wire()
    await wire.send(b"".join(get("/healthz", f"X-Request-Id: n{number}") for number in range(200)))
    answered = 0
    while not wire.reader.at_eof():
        try:
            answer = await wire.answer()
        except asyncio.IncompleteReadError:
            break
        assert answer.headers["x-request-id"] == f"n{answered}"
        answered += 1
    assert connection.MAX_PIPELINED <= answered < 200
    await settled(site)


async def test_connections_above_the_limit_are_told_503_and_leave_room_again(serve: Serve) -> None:
    site = await serve(http=HttpSettings(max_connections=2))
    held = [await site.wire() for _ in range(2)]
    for wire in held:
        await wire.send(get("/healthz"))
        assert (await wire.answer()).status == 200
    refused = await site.wire()
    await refused.send(get("/healthz"))
    answer = await refused.answer()
    assert (answer.status, answer.json["code"]) == (503, "overloaded")
    assert answer.headers["retry-after"] == "1"
    assert await refused.rest() == b""
    held[0].close()
    await eventually(lambda: len(site.server._state.connections) == 1)
    await still_serves(site)


async def test_a_server_stops_while_somebody_is_told_that_there_is_no_place(serve: Serve) -> None:
    site = await serve(http=HttpSettings(max_connections=1))
    held = await site.wire()
    await held.send(get("/healthz"))
    assert (await held.answer()).status == 200
    refused = await site.wire()
    await eventually(lambda: len(site.server._state.connections) == 2)
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    await site.server.stop(1.0)
    assert await refused.rest() == b""
    assert faults == []
    await eventually(lambda: not site.server._state.connections)


async def test_nothing_is_left_of_connections_that_lose_their_place_at_once(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "skerry.transport.access.peers.peer_of", lambda sock: ConnectionPeer(address="192.0.2.1")
    )
    site = await serve(http=HttpSettings(max_connections=1))
    for _ in range(4):
        await asyncio.gather(*(site.wire() for _ in range(16)))
    await eventually(lambda: len(site.server._state.connections) == 1)


async def test_a_flood_of_connections_is_cut_off_beyond_those_that_are_told(serve: Serve) -> None:
    site = await serve(http=HttpSettings(max_connections=1))
    wires = [await site.wire() for _ in range(MAX_REFUSED + 20)]
    bound = 1 + MAX_REFUSED
    await eventually(lambda: len(site.server._state.connections) <= bound)
    for wire in wires:
        wire.vanish()
    await settled(site)
    await still_serves(site)


async def test_a_client_that_closed_its_sending_half_still_gets_its_answer(serve: Serve) -> None:
    site = await serve()
    wire = await site.wire()
    await wire.send(get("/about"))
    wire.finish_sending()
    assert (await wire.answer()).status == 200
    assert await wire.rest() == b""
    await settled(site)


async def test_a_client_that_sent_two_requests_and_closed_its_half_gets_both_answers(serve: Serve) -> None:
    site = await serve()
    wire = await site.wire()
    await wire.send(get("/about") * 2)
    wire.finish_sending()
    assert (await wire.answer()).status == 200
    assert (await wire.answer()).status == 200
    assert await wire.rest() == b""
    await settled(site)


@pytest.mark.parametrize(
    ("sent", "part"),
    [(b"GET /healthz HTTP/1.1\r\nHost: loc", "head"), (post("/token/", b"{", length=100), "body")],
)
async def test_a_request_that_ends_half_way_gets_400(serve: Serve, sent: bytes, part: str) -> None:
    site = await serve()
    wire = await site.wire()
    await wire.send(sent)
    wire.finish_sending()
    answer = await wire.answer()
    assert (answer.status, answer.json["code"]) == (400, "bad-http")
    assert part in answer.json["error"]
    assert await wire.rest() == b""
    await settled(site)


async def test_a_client_that_vanishes_within_its_body_leaves_nothing(serve: Serve, logged: list[Any]) -> None:
    site = await serve()
    wire = await site.wire()
    await wire.send(post("/token/", b'{"role"', length=100))
    await eventually(lambda: site.server._state.tasks)
    wire.vanish()
    await settled(site)
    assert [line["status"] for line in logged if line["event"] == "request.answered"] == [499]
    assert not [line for line in logged if line["log_level"] == "error"]


def endless(seen: list[str]) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """An app that writes for ever, as fast as it may, until its client is gone."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.ensure_future(_gone(receive))
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        seen.append("gone")

    return app


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def test_a_client_that_vanishes_within_an_answer_is_noticed(serve: Serve) -> None:
    seen: list[str] = []
    site = await serve(app=endless(seen))
    wire = await site.wire()
    await wire.send(get("/"))
    await wire.reader.read(1000)
    wire.vanish()
    await eventually(lambda: seen == ["gone"])
    await settled(site)


async def test_a_request_behind_one_that_runs_does_not_hide_that_the_client_left(serve: Serve) -> None:
    seen: list[str] = []
    site = await serve(app=endless(seen))
    wire = await site.wire()
    await wire.send(get("/") * 2)
    await wire.reader.read(1000)
    wire.vanish()
    await eventually(lambda: seen == ["gone"])
    await settled(site)


async def test_an_oversize_body_is_refused_before_it_is_sent(serve: Serve) -> None:
    site = await serve()
    wire = await site.wire()
    await wire.send(post("/token/", b"", "Expect: 100-continue", length=10**9))
    answer = await wire.answer()
    assert (answer.status, answer.json["code"]) == (413, "too-large")


async def test_a_client_that_goes_on_sending_an_oversize_body_still_reads_why(serve: Serve) -> None:
    site = await serve()
    wire = await site.wire()
    body = b"x" * (4 * 1024 * 1024)
    await wire.send(post("/token/", body))  # all of it, before anything is read
    assert (await wire.answer()).status == 413
    await wire.send(get("/healthz"))  # the rest was thrown away, and the connection is good
    assert (await wire.answer()).status == 200


async def test_a_client_that_asked_to_close_still_reads_why_its_body_was_refused(serve: Serve) -> None:
    site = await serve()
    wire = await site.wire()
    await wire.send(post("/token/", b"x" * (4 * 1024 * 1024), "Connection: close"))
    assert (await wire.answer()).status == 413
    assert await wire.rest() == b""
    await settled(site)


async def test_a_refused_body_that_never_ends_is_not_read_for_ever(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.1)
    site = await serve()
    wire = await site.wire()
    await wire.send(post("/token/", b"x", length=10**9))
    assert (await wire.answer()).status == 413
    assert await wire.rest() == b""
    await settled(site)


async def test_a_chunked_body_is_cut_off_at_the_limit(serve: Serve) -> None:
    site = await serve()
    wire = await site.wire()
    head = b"POST /token/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    await wire.send(head + (b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 4)
    answer = await wire.answer()
    assert (answer.status, answer.json["code"]) == (413, "too-large")


async def test_a_client_that_does_not_read_its_answer_is_let_go(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.1)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = b"x" * (32 * 1024 * 1024)
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    site = await serve(app=app, http=QUICK)
    wire = await site.wire()
    wire.writer.transport.pause_reading()
    await wire.send(get("/"))
    await eventually(lambda: site.server._state.total_requests == 1)
    await emptied(site)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost",
        post("/token/", b"{", length=100),
        get("/healthz"),
        get("/events"),
        post("/token/", b"x", length=10**9),
        b"rubbish\r\n\r\n",
    ],
)
async def test_no_timer_or_task_holds_on_to_a_connection_that_is_gone(serve: Serve, sent: bytes) -> None:
    site = await serve()
    wire = await site.wire()
    await eventually(lambda: site.server._state.connections)
    gone = weakref.ref(next(iter(site.server._state.connections)))
    await wire.send(sent)
    await asyncio.sleep(0)
    wire.vanish()
    await settled(site)

    def is_collected() -> bool:
        gc.collect()
        return gone() is None

    await eventually(is_collected)


async def test_connections_of_a_proxy_that_root_runs_make_room_for_others(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await serve(http=HttpSettings(max_connections=2))
    proxied = [await site.wire() for _ in range(2)]
    for wire in proxied:
        await wire.send(get("/healthz", "X-Forwarded-For: 192.0.2.7"))
        assert (await wire.answer()).status == 200
    monkeypatch.setattr(
        "skerry.transport.access.peers.peer_of", lambda sock: ConnectionPeer(address="192.0.2.1")
    )
    stranger = await site.wire()
    await stranger.send(get("/healthz"))
    assert (await stranger.answer()).status == 200
    assert await proxied[0].rest() == b""

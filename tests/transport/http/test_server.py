"""The listener: what it runs on, how it stops, and that it takes nothing from the process."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import uvloop

from skerry.kit import listening_sockets, pki, tls
from skerry.model.callers import SERVER, Role
from skerry.model.settings import HttpSettings
from skerry.transport.http.asgi import Receive, Scope, Send
from skerry.transport.http.connection import HttpConnection
from skerry.transport.http.server import HttpServer
from tests.support.waiting import PATIENCE_S, eventually
from tests.transport.http.conftest import Serve
from tests.transport.http.talking import Wire, get


class Recording:
    """An app that answers and keeps what it saw."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})


class Hanging:
    def __init__(self) -> None:
        self.ended: list[str] = []
        self.started = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")


async def test_it_runs_on_uvloop_and_httptools_and_adds_no_header_of_its_maker(serve: Serve) -> None:
    app = Recording()
    site = await serve(app=app)
    session = await site.session()
    async with session.get("/", headers={"X-Forwarded-For": "9.9.9.9"}) as reply:
        assert "Server" not in reply.headers
        assert reply.headers["Date"].endswith("GMT")
    scope = app.scopes[0]
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    assert isinstance(scope["state"]["connection"], HttpConnection)
    assert type(scope["state"]["connection"].parser).__module__ == "httptools.parser.parser"
    assert scope["client"][0] == "127.0.0.1"


async def test_it_leaves_the_signals_of_the_process_alone(serve: Serve) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    await serve(app=Recording())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def test_the_peer_is_looked_up_once_per_connection(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    monkeypatch.setattr("skerry.kit.socket_owner.owner_of", lambda *ends: looked.append(ends) or 0)
    site = await serve()
    wire = await site.wire()
    await wire.send(get("/healthz"))
    await wire.answer()
    for _ in range(3):
        await wire.send(get("/about"))
        assert (await wire.answer()).status == 200
    assert len(looked) == 1


async def test_a_hundred_requests_at_once_are_all_answered(serve: Serve) -> None:
    site = await serve()
    session = await site.session()

    async def make(number: int) -> str:
        async with session.post("/token/", json={"role": "viewer", "note": str(number)}) as reply:
            assert reply.status == 201
            return str((await reply.json())["note"])

    made = await asyncio.gather(*(make(number) for number in range(100)))
    assert made == [str(number) for number in range(100)]
    async with session.get("/token/") as reply:
        assert len((await reply.json())["tokens"]) == 100


async def test_stopping_closes_silent_connections_and_the_port(serve: Serve) -> None:
    site = await serve(app=Recording())
    wire = await site.wire()
    await wire.send(get("/"))
    await wire.reader.read(1)
    await site.server.stop(5.0)
    await wire.rest()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(site.server.address)


async def test_stopping_lets_a_running_request_finish(serve: Serve) -> None:
    release = asyncio.Event()
    started = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        started.set()
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    site = await serve(app=app)
    wire = await site.wire()
    await wire.send(get("/"))
    await started.wait()
    stopping = asyncio.ensure_future(site.server.stop(5.0))
    await asyncio.sleep(0)
    assert not stopping.done()
    release.set()
    answer = await wire.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    await stopping


async def test_stopping_ends_by_force_what_does_not_end(serve: Serve, logged: list[Any]) -> None:
    app = Hanging()
    site = await serve(app=app)
    wire = await site.wire()
    await wire.send(get("/"))
    await app.started.wait()
    await site.server.stop(0.2)
    assert app.ended == ["cancelled"]
    assert not site.server._state.connections
    assert not site.server._state.tasks
    await wire.rest()
    assert "http.forced" in [line["event"] for line in logged]


async def test_a_request_that_is_cut_off_by_the_stop_is_told_so(serve: Serve) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    site = await serve(checks={"never": never})
    wire = await site.wire()
    await wire.send(get("/readyz"))
    await eventually(lambda: site.server._state.tasks)
    stopping = asyncio.ensure_future(site.server.stop(0.2))
    answer = await wire.answer()
    assert (answer.status, answer.json["code"]) == (503, "unavailable")
    await stopping


async def test_stopping_twice_or_before_the_start_does_nothing(serve: Serve) -> None:
    site = await serve()
    await site.server.stop(1.0)
    await site.server.stop(1.0)
    await HttpServer(Recording(), HttpSettings()).stop(1.0)


async def test_a_server_that_dies_by_itself_says_so(serve: Serve) -> None:
    site = await serve()
    failed = asyncio.ensure_future(site.server.failed())
    await asyncio.sleep(0)
    assert not failed.done()
    assert site.server._ticker is not None
    site.server._ticker.cancel()  # as if the loop that keeps the server had died
    with pytest.raises(RuntimeError, match="ended by itself"):
        await failed


async def test_over_tls_a_certificate_of_a_node_is_known_and_may_do_only_that(
    serve: Serve, tmp_path: Path, authority: pki.CertificateAuthority
) -> None:
    def pair(name: str, role: str) -> tuple[Path, Path]:
        key = tmp_path / f"{name}.key"
        request = pki.SigningRequest.parse(pki.make_request(pki.load_or_create_key(key)))
        issued = authority.issue(
            request, name=name, role=role, lifetime_s=60, server=role == SERVER, hosts=["127.0.0.1"]
        )
        (tmp_path / f"{name}.crt").write_bytes(issued.pem)
        return tmp_path / f"{name}.crt", key

    context = tls.https_server(authority.certificate_pem)
    tls.load(context, *pair("server", SERVER))
    site = await serve(tls=context)
    _, join_token = await site.plane.identity.create_token(Role.NODE, ttl_s=60, note="", actor="test")
    key = tmp_path / "node.key"
    request = pki.make_request(pki.load_or_create_key(key))
    session = await site.session()
    client = tls.client(authority.certificate_pem, alpn=tls.HTTP1)
    wish = {"token": join_token, "csr": request.decode(), "name": "edge-1"}
    async with session.post("/join", json=wish, ssl=client) as reply:
        joined = await reply.json()
        assert reply.status == 200
    (tmp_path / "node.crt").write_text(joined["certificate"])
    as_node = tls.client(authority.certificate_pem, alpn=tls.HTTP1)
    tls.load(as_node, tmp_path / "node.crt", key)
    async with session.get("/token/", ssl=as_node) as reply:
        said = await reply.json()
        assert (reply.status, said["code"]) == (403, "forbidden")
    assert "role node" in said["error"]


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"1")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"x"})


async def test_one_that_retires_answers_on_and_has_each_client_connect_anew(serve: Serve) -> None:
    site = await serve(app=answering)
    idle, new = await site.wire(), await site.wire()
    await idle.send(get("/"))
    assert "connection" not in (await idle.answer()).headers
    listening_sockets.current().retire()
    await idle.send(get("/"))
    answer = await idle.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await idle.rest() == b""
    # What was accepted last gets an answer though the server stops meanwhile.
    stopping = asyncio.create_task(site.server.stop(PATIENCE_S))
    await asyncio.sleep(0)
    await new.send(get("/"))
    assert (await new.answer()).status == 200
    await stopping


async def test_a_listener_that_is_shared_with_the_next_process_goes_on_taking_connections(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    sockets = listening_sockets.ListeningSockets()
    monkeypatch.setattr(listening_sockets, "_current", sockets)
    site = await serve(app=Recording())
    (listener,) = site.server._listeners
    sockets.register("--http", listener._sock)
    (held,) = sockets.hold().values()
    await site.server.stop(PATIENCE_S)
    with held, socket.create_connection(site.server.address):
        held.setblocking(True)
        accepted, _ = held.accept()
        accepted.close()


async def test_connections_of_the_process_before_are_served_on_and_silent_ones_closed_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sockets = listening_sockets.ListeningSockets()
    monkeypatch.setattr(listening_sockets, "_current", sockets)
    monkeypatch.setattr("skerry.transport.http.server.FIRST_REQUEST_S", 0.05)
    former = socket.create_server(("127.0.0.1", 0))
    asking, silent = [await Wire.to(*former.getsockname()) for _ in range(2)]
    sockets.inherit({"--http": former}, [former.accept()[0] for _ in range(2)])
    await asking.send(get("/"))  # while nobody serves
    adopted = sockets.adopt("--http")
    assert adopted is not None
    server = HttpServer(answering, HttpSettings())
    await server.start(adopted, None)
    assert (await asking.answer()).status == 200
    assert await silent.rest() == b""
    await asking.send(get("/"))
    assert (await asking.answer()).status == 200, "a client that has sent something keeps its connection"
    asking.close()
    silent.close()
    await server.stop(PATIENCE_S)


async def test_one_that_retires_tells_when_the_requests_that_run_are_answered(serve: Serve) -> None:
    finish, streams = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            await finish.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        if scope["path"] == "/stream":
            await streams.wait()
        await send({"type": "http.response.body", "body": b"x"})

    site = await serve(app=app)
    idle, slow, stream = [await site.wire() for _ in range(3)]
    await idle.send(get("/"))
    await idle.answer()
    await slow.send(get("/slow"))
    await stream.send(get("/stream"))
    (listener,) = site.server._listeners
    await eventually(lambda: len(listener.connections) == 3 and len(site.server._state.tasks) == 2)
    (answered,) = site.server.retire()
    assert not answered.done()
    finish.set()
    assert (await slow.answer()).headers["connection"] == "close"
    await answered
    streams.set()

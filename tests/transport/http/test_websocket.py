"""WebSockets on the real server, with a client we did not write and with bytes that none would send."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import WSMsgType

from skerry.kit import pki, tls
from skerry.model import errors
from skerry.model.callers import ANONYMOUS, Caller
from skerry.transport.access import revalidation
from skerry.transport.http import responses, websocket
from skerry.transport.http.asgi import ASGIApp, Receive, Scope, Send
from skerry.transport.http.responses import HttpError
from skerry.transport.http.websocket import WebSocket
from tests.support.waiting import PATIENCE_S, eventually
from tests.transport.http.conftest import Serve, Site
from tests.transport.http.talking import Wire

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
HANDSHAKE = (
    "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
).encode()


def app_of(converse: Callable[[WebSocket], Awaitable[None]], *, ping_s: float = 20.0) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await websocket.serve(converse, websocket.accept(scope), scope, send, max_message=1000, ping_s=ping_s)

    return app


async def echo(socket: WebSocket) -> None:
    while (message := await socket.receive()) is not None:
        await socket.send(message)


async def connect(site: Site) -> aiohttp.ClientWebSocketResponse:
    session = await site.session()
    return await session.ws_connect("/", timeout=aiohttp.ClientWSTimeout(ws_close=5))


def masked(opcode: int, data: bytes, *, fin: bool = True) -> bytes:
    """A short frame of a client, with a mask of zeros."""
    length = struct.pack("!B", 0x80 | len(data)) if len(data) < 126 else struct.pack("!BH", 0xFE, len(data))
    return bytes([opcode | (0x80 if fin else 0)]) + length + bytes(4) + data


async def test_messages_go_both_ways_and_the_client_closes(serve: Serve) -> None:
    client = await connect(await serve(app=app_of(echo)))
    for message in (b"one", b"", b"\x00" * 999):
        await client.send_bytes(message)
        assert await client.receive_bytes() == message
    await client.close(code=1000)
    assert client.close_code == 1000


async def test_what_is_sent_right_behind_the_handshake_is_not_lost(serve: Serve) -> None:
    site = await serve(app=app_of(echo))
    wire = await site.wire()
    await wire.send(HANDSHAKE + masked(2, b"early"))
    head = await wire.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"transfer-encoding" not in head
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head
    assert await wire.reader.readexactly(7) == b"\x82\x05early"


async def test_text_is_spoken_where_it_is_agreed_on(serve: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            handshake = websocket.accept(scope, ("b.v1", "a.v1"))
        except HttpError as error:
            await responses.send_nothing(send, error.status)
            return
        await websocket.serve(echo, handshake, scope, send, max_message=1000, accepts_text=True)

    site = await serve(app=app)
    session = await site.session()
    for offered, chosen in (((), None), (("a.v1",), "a.v1"), (("c.v1", "a.v1", "b.v1"), "b.v1")):
        client = await session.ws_connect("/", protocols=offered)
        assert client.protocol == chosen
        await client.send_str("é")
        assert await client.receive_str() == "é"
        await client.close()
    client = await session.ws_connect("/")
    await client.send_bytes(b"bytes")
    assert (await client.receive()).data == 1003
    wire = await site.wire()
    half = "é".encode()[:1]  # of a character: the other half may come in the next part, and here it does not
    await wire.send(HANDSHAKE + masked(1, half, fin=False) + masked(0, b"e"))
    assert await closing(wire) == (1007, b"text is UTF-8")
    async with session.get(
        "/",
        headers={
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": KEY,
            "Sec-WebSocket-Protocol": "c.v1",
        },
    ) as refused:
        assert refused.status == 400


async def test_the_parts_of_a_message_are_put_together(serve: Serve) -> None:
    site = await serve(app=app_of(echo))
    wire = await site.wire()
    await wire.send(HANDSHAKE + masked(2, b"ab", fin=False) + masked(9, b"?") + masked(0, b"c"))
    await wire.reader.readuntil(b"\r\n\r\n")
    assert await wire.reader.readexactly(8) == b"\x8a\x01?" + b"\x82\x03abc"


async def closing(wire: Wire) -> tuple[int, bytes]:
    """The code and the reason with which the server closes."""
    await wire.reader.readuntil(b"\r\n\r\n")
    head = await wire.reader.readexactly(2)
    assert head[0] == 0x88
    data = await wire.reader.readexactly(head[1])
    return struct.unpack("!H", data[:2])[0], data[2:]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (masked(1, b"text"), 1003),
        (masked(2, b"x" * 1001), 1009),
        (masked(2, b"x" * 900, fin=False) + masked(0, b"x" * 101), 1009),
        (b"\x82\x01x", 1002),  # without a mask
        (masked(3, b"what"), 1002),
    ],
    ids=["text", "large", "large in parts", "unmasked", "unknown"],
)
async def test_what_breaks_the_rules_is_told_which_and_closed(serve: Serve, sent: bytes, code: int) -> None:
    site = await serve(app=app_of(echo))
    wire = await site.wire()
    await wire.send(HANDSHAKE + sent)
    assert (await closing(wire))[0] == code
    assert await wire.rest() == b""


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (errors.Invalid("no such channel"), 1008, "invalid: no such channel"),
        (errors.Unavailable("the node is away"), 1011, "unavailable: the node is away"),
        (errors.FailedPrecondition("é" * 100), 1011, "refused: " + "é" * 57),
    ],
)
async def test_what_goes_wrong_is_in_the_close(
    serve: Serve, error: errors.SkerryError, code: int, reason: str
) -> None:
    async def fail(socket: WebSocket) -> None:
        raise error

    client = await connect(await serve(app=app_of(fail)))
    last = await client.receive()
    assert (last.type, last.data, last.extra) == (WSMsgType.CLOSE, code, reason)


async def test_a_server_that_stops_says_goodbye(serve: Serve) -> None:
    ended = asyncio.Event()

    async def wait(socket: WebSocket) -> None:
        try:
            await socket.receive()
        finally:
            ended.set()

    site = await serve(app=app_of(wait))
    client = await connect(site)
    stopping = asyncio.ensure_future(site.server.stop(5.0))
    last = await client.receive()
    assert last.data == 1001
    await stopping
    assert ended.is_set()


async def test_a_client_that_vanishes_ends_the_conversation(serve: Serve) -> None:
    over = asyncio.Event()

    async def wait(socket: WebSocket) -> None:
        assert await socket.receive() is None
        over.set()

    site = await serve(app=app_of(wait))
    wire = await site.wire()
    await wire.send(HANDSHAKE)
    await wire.reader.readuntil(b"\r\n\r\n")
    wire.vanish()
    async with asyncio.timeout(PATIENCE_S):
        await over.wait()


async def test_a_client_that_does_not_answer_pings_is_let_go(serve: Serve) -> None:
    async def wait(socket: WebSocket) -> None:
        await socket.receive()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app_of(wait, ping_s=0.05)(scope, receive, send)
        except websocket.ClientDisconnected:
            scope["state"]["connection"].drop()

    site = await serve(app=app)
    wire = await site.wire()
    await wire.send(HANDSHAKE)
    await wire.reader.readuntil(b"\r\n\r\n")
    assert (await wire.rest()).startswith(b"\x89\x00")


async def test_a_client_that_answers_pings_is_kept(serve: Serve) -> None:
    pongs = 0

    async def wait(socket: WebSocket) -> None:
        await socket.receive()

    site = await serve(app=app_of(wait, ping_s=0.05))
    session = await site.session()
    client = await session.ws_connect("/", autoping=False)
    while pongs < 5:
        message = await client.receive(timeout=PATIENCE_S)
        assert message.type is WSMsgType.PING
        await client.pong(message.data)
        pongs += 1


async def test_a_client_that_does_not_read_is_let_go(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "STALL_S", 0.05)
    ends: list[type[BaseException]] = []

    async def talk(socket: WebSocket) -> None:
        try:
            while True:
                await socket.send(bytes(64 * 1024))
        except BaseException as error:
            ends.append(type(error))
            raise

    site = await serve(app=app_of(talk))
    wire = await site.wire()
    await wire.send(HANDSHAKE)
    await eventually(lambda: ends == [responses.ClientDisconnected])


async def test_who_sends_more_than_is_taken_is_held_up(serve: Serve) -> None:
    may_read = asyncio.Event()
    taken = 0

    async def lazy(socket: WebSocket) -> None:
        nonlocal taken
        await may_read.wait()
        while (message := await socket.receive()) is not None:
            taken += len(message)

    site = await serve(app=app_of(lazy))
    client = await connect(site)
    piece, most = b"x" * 1000, 64 * 1024 * 1024
    sent = 0

    async def flood() -> None:
        nonlocal sent
        while sent < most:
            await client.send_bytes(piece)
            sent += len(piece)

    flooding = asyncio.ensure_future(flood())
    seen = -1
    while seen != sent:  # until the kernel's buffers are full on both sides
        seen = sent
        await asyncio.wait({flooding}, timeout=0.2)
    assert not flooding.done()
    assert sent < most
    may_read.set()
    await eventually(lambda: taken > seen)
    flooding.cancel()
    await asyncio.gather(flooding, return_exceptions=True)


async def test_who_sends_very_many_tiny_messages_is_held_up_too(serve: Serve) -> None:
    sockets: list[WebSocket] = []
    may_read, taken = asyncio.Event(), 0

    async def lazy(socket: WebSocket) -> None:
        nonlocal taken
        sockets.append(socket)
        await may_read.wait()
        while await socket.receive() is not None:
            taken += 1

    site = await serve(app=app_of(lazy))
    client = await connect(site)
    for _ in range(20_000):
        await client.send_bytes(b"x")
    await eventually(lambda: bool(sockets) and sockets[0]._connection.flow.read_paused)
    may_read.set()
    await eventually(lambda: taken == 20_000)


async def test_a_request_that_is_no_handshake_is_told_what_is_needed(serve: Serve) -> None:
    told: list[HttpError] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            websocket.accept(scope)
        except HttpError as error:
            told.append(error)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    site = await serve(app=app)
    session = await site.session()
    for headers in ({}, {"Connection": "Upgrade", "Upgrade": "websocket"}):
        async with session.get("/", headers=headers) as reply:
            assert reply.status == 200
    assert [(error.status, error.code) for error in told] == [
        (426, "websocket-needed"),
        (400, "bad-websocket"),
    ]


async def test_a_connection_whose_upgrade_was_not_taken_is_closed_after_the_answer(serve: Serve) -> None:
    site = await serve()
    wire = await site.wire()
    await wire.send(HANDSHAKE.replace(b"GET / ", b"GET /healthz "))
    answer = await wire.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await wire.rest() == b""


async def test_messages_go_both_ways_over_tls(
    serve: Serve, authority: pki.CertificateAuthority, tmp_path: Path
) -> None:
    key, certificate = tmp_path / "server.key", tmp_path / "server.crt"
    request = pki.SigningRequest.parse(pki.make_request(pki.load_or_create_key(key)))
    issued = authority.issue(
        request, name="server", role="server", lifetime_s=60, server=True, hosts=["127.0.0.1"]
    )
    certificate.write_bytes(issued.pem)
    context = tls.https_server(authority.certificate_pem)
    tls.load(context, certificate, key)
    site = await serve(app=app_of(echo), tls=context)
    trust = ssl.create_default_context(cadata=authority.certificate_pem.decode())
    session = await site.session(connector=aiohttp.TCPConnector(ssl=trust))
    async with session.ws_connect("/") as client:
        await client.send_bytes(b"secret")
        assert await client.receive_bytes() == b"secret"
    assert client.close_code == 1000


async def test_connections_are_probed_so_that_machines_that_are_gone_are_noticed(serve: Serve) -> None:
    probed: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        number = scope["state"]["connection"].transport.get_extra_info("socket").fileno()
        with socket.socket(fileno=os.dup(number)) as copy:
            probed.append(copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
            probed.append(copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    session = await (await serve(app=app)).session()
    async with session.get("/"):
        pass
    assert probed == [1, 60]


FLOODS = {
    "pongs": masked(10, b""),
    "pings": masked(9, b""),
    "fragments": masked(2, b"", fin=False) + masked(0, b"", fin=False) * 250,
    "messages": masked(2, b""),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_of_frames_without_content_is_closed_with_1008(serve: Serve, name: str) -> None:
    site = await serve(app=app_of(echo))
    quiet = await connect(site)
    wire = await site.wire()
    await wire.send(HANDSHAKE)
    await wire.reader.readuntil(b"\r\n\r\n")
    wire.writer.write(FLOODS[name] * 10_000)
    said = await wire.reader.readuntil(b"too many pings, pongs, empty messages or tiny fragments")
    assert struct.pack("!H", 1008) in said[-60:]
    await quiet.send_bytes(b"still there?")
    assert await quiet.receive_bytes() == b"still there?"
    await quiet.close()
    wire.vanish()


async def test_pings_within_reason_are_answered(serve: Serve) -> None:
    site = await serve(app=app_of(echo))
    wire = await site.wire()
    await wire.send(HANDSHAKE + masked(9, b"x") * 150 + masked(2, b"end"))
    await wire.reader.readuntil(b"\r\n\r\n")
    assert await wire.reader.readexactly(150 * 3 + 5) == b"\x8a\x01x" * 150 + b"\x82\x03end"


async def test_many_small_messages_are_no_flood(serve: Serve) -> None:
    client = await connect(await serve(app=app_of(echo)))
    for number in range(2_000):
        await client.send_bytes(b"%d" % number)
    for number in range(2_000):
        assert await client.receive_bytes() == b"%d" % number
    await client.close()


async def test_a_conversation_ends_when_its_token_is_revoked(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revalidation, "RECHECK_S", 0.01)
    is_revoked = asyncio.Event()

    def authenticate() -> Caller:
        if is_revoked.is_set():
            raise errors.Unauthenticated("this token is not known here")
        return ANONYMOUS

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["authenticate"] = authenticate
        await app_of(echo)(scope, receive, send)

    client = await connect(await serve(app=app))
    await client.send_bytes(b"one")
    assert (await client.receive()).data == b"one"
    is_revoked.set()
    ended = await client.receive(timeout=PATIENCE_S)
    assert (ended.type, ended.data) == (WSMsgType.CLOSE, 1008)
    assert ended.extra == "unauthenticated: this token is not known here"

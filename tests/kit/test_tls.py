"""Real handshakes on loopback: who is let in, what the refused are told, and reloading in place."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import structlog
import uvloop
from cryptography import x509

from skerry.kit import pki, tls
from skerry.kit.clock import ManualClock
from tests.support.waiting import eventually

HOST = "server.test"

uvloop.new_event_loop().close()  # the first one opens a pipe that libuv keeps as long as the process lives


@dataclass(frozen=True)
class Pair:
    certificate: Path
    key: Path


class Folder:
    """A CA and the pairs that it issues, at a clock that a test may set back; TLS uses the real one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(time.time())
        self.authority = pki.CertificateAuthority.load_or_create(path, self.clock)

    def issue(self, name: str, *, server: bool = False, lifetime_s: float = 3600) -> Pair:
        pair = Pair(self.path / f"{name}.crt", self.path / f"{name}.key")
        request = pki.SigningRequest.parse(pki.make_request(pki.load_or_create_key(pair.key)))
        issued = self.authority.issue(
            request,
            name=name,
            role="server" if server else "admin",
            lifetime_s=lifetime_s,
            server=server,
            hosts=[HOST] if server else [],
        )
        pair.certificate.write_bytes(issued.pem)
        return pair

    def client(self, pair: Pair | None) -> ssl.SSLContext:
        context = tls.client(self.authority.certificate_pem)
        if pair is not None:
            tls.load(context, pair.certificate, pair.key)
        return context


@pytest.fixture
def ours(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "theirs")


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
    except ConnectionError:
        pass  # the tests break connections on purpose
    finally:
        writer.close()


@asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[int]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def dialled(
    port: int, context: ssl.SSLContext
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=HOST)
    try:
        yield reader, writer
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except (ConnectionError, ssl.SSLError):
            pass  # refused: that is what the test is about


async def exchange(port: int, context: ssl.SSLContext) -> bytes:
    async with dialled(port, context) as (reader, writer):
        writer.write(b"hello\n")
        return await reader.readline()


def serial_seen(writer: asyncio.StreamWriter) -> int:
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(der).serial_number


def mutual(folder: Folder, server: Pair) -> ssl.SSLContext:
    context = tls.mutual_server(folder.authority.certificate_pem)
    tls.load(context, server.certificate, server.key)
    return context


async def test_a_client_with_a_certificate_of_the_ca_is_served_over_h2(ours: Folder) -> None:
    async with serving(mutual(ours, ours.issue("server", server=True))) as port:
        context = ours.client(ours.issue("client"))
        assert await exchange(port, context) == b"hello\n"
        async with dialled(port, context) as (_, writer):
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"


async def refusal(port: int, context: ssl.SSLContext, logs: list[dict[str, str]]) -> tuple[str, str]:
    """What the client is told, and what the server's log says."""
    with pytest.raises(ssl.SSLError) as caught:
        assert await exchange(port, context)
    line = await eventually(lambda: next((e for e in logs if e["event"] == "tls.refused"), None))
    return caught.value.reason, line["reason"]


async def test_an_expired_client_is_told_so_and_the_log_says_so(ours: Folder) -> None:
    server = ours.issue("server", server=True)
    ours.clock.advance(-7200)
    expired = ours.client(ours.issue("client", lifetime_s=3600))
    with structlog.testing.capture_logs() as logs:
        async with serving(mutual(ours, server)) as port:
            told, logged = await refusal(port, expired, logs)
    assert told == "SSLV3_ALERT_CERTIFICATE_EXPIRED"
    assert "has expired" in logged


async def test_a_client_of_another_ca_is_told_so_and_the_log_says_so(ours: Folder, theirs: Folder) -> None:
    stranger = ours.client(theirs.issue("client"))
    with structlog.testing.capture_logs() as logs:
        async with serving(mutual(ours, ours.issue("server", server=True))) as port:
            told, logged = await refusal(port, stranger, logs)
    assert told == "TLSV1_ALERT_UNKNOWN_CA"
    assert "issued by another CA" in logged


async def test_a_client_without_a_certificate_is_told_that_one_is_required(ours: Folder) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(mutual(ours, ours.issue("server", server=True))) as port:
            told, logged = await refusal(port, ours.client(None), logs)
    assert told == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    assert logged == "the client showed no certificate"


async def test_a_servers_certificate_does_not_make_a_client(ours: Folder) -> None:
    server = ours.issue("server", server=True)
    with structlog.testing.capture_logs() as logs:
        async with serving(mutual(ours, server)) as port:
            _, logged = await refusal(port, ours.client(server), logs)
    assert "not made for this side" in logged


async def test_a_client_does_not_talk_to_a_server_of_another_ca(ours: Folder, theirs: Folder) -> None:
    async with serving(mutual(theirs, theirs.issue("server", server=True))) as port:
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            await exchange(port, ours.client(ours.issue("client")))
    assert tls.explain(caught.value) == "the certificate was issued by another CA"


async def test_plain_http_to_a_tls_port_is_named_in_the_log(ours: Folder) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(mutual(ours, ours.issue("server", server=True))) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await reader.readexactly(1000)
            writer.close()
            line = await eventually(lambda: next((e for e in logs if e["event"] == "tls.refused"), None))
    assert line["reason"] == "plain HTTP was sent to a TLS port"


async def test_https_serves_clients_with_and_without_a_certificate_but_not_with_a_bad_one(
    ours: Folder, theirs: Folder
) -> None:
    context = tls.https_server(ours.authority.certificate_pem)
    server = ours.issue("server", server=True)
    tls.load(context, server.certificate, server.key)
    async with serving(context) as port:
        assert await exchange(port, ours.client(None)) == b"hello\n"
        assert await exchange(port, ours.client(ours.issue("client"))) == b"hello\n"
        with pytest.raises(ssl.SSLError):
            await exchange(port, ours.client(theirs.issue("client")))


async def test_tls_before_1_2_is_not_spoken(ours: Folder) -> None:
    assert mutual(ours, ours.issue("server", server=True)).minimum_version == ssl.TLSVersion.TLSv1_2
    assert ours.client(None).minimum_version == ssl.TLSVersion.TLSv1_2


async def test_after_a_reload_new_connections_see_the_new_certificate_and_old_ones_go_on(
    ours: Folder,
) -> None:
    pair = ours.issue("server", server=True)
    context = mutual(ours, pair)
    client = ours.client(ours.issue("client"))
    async with serving(context) as port, dialled(port, client) as (old_reader, old_writer):
        before = serial_seen(old_writer)
        ours.issue("server", server=True)
        tls.load(context, pair.certificate, pair.key)
        async with dialled(port, client) as (_, new_writer):
            assert serial_seen(new_writer) != before
        old_writer.write(b"still here\n")
        assert await old_reader.readline() == b"still here\n"


async def test_a_clients_context_reloads_in_place_too(ours: Folder) -> None:
    shown: list[int] = []

    async def look(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown.append(serial_seen(writer))
        await echo(reader, writer)

    pair = ours.issue("client")
    client = ours.client(pair)
    context = mutual(ours, ours.issue("server", server=True))
    server = await asyncio.start_server(look, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await exchange(port, client)
        ours.issue("client")
        tls.load(client, pair.certificate, pair.key)
        await exchange(port, client)
    assert len(set(shown)) == 2


async def test_a_pair_that_does_not_fit_changes_nothing(ours: Folder) -> None:
    pair = ours.issue("server", server=True)
    context = mutual(ours, pair)
    other = ours.issue("other", server=True)
    with pytest.raises(ssl.SSLError):
        tls.load(context, pair.certificate, other.key)
    async with serving(context) as port:
        assert await exchange(port, ours.client(ours.issue("client"))) == b"hello\n"


def test_uvloop_tells_refusals_too(ours: Folder) -> None:
    async def scenario() -> str:
        with structlog.testing.capture_logs() as logs:
            async with serving(mutual(ours, ours.issue("server", server=True))) as port:
                return (await refusal(port, ours.client(None), logs))[1]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(scenario()) == "the client showed no certificate"


class Pieces(asyncio.Protocol):
    """What a server's connection is given, and in which turn of the loop."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.turns: list[int] = []
        self.turn = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop has its own
        self.loop = asyncio.get_running_loop()
        self.undo = tls.pace_reads(self.transport, self.loop)
        self.ticking = self.loop.call_soon(self._tick)

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        self.turns.append(self.turn)

    def connection_lost(self, error: Exception | None) -> None:
        self.undo()
        self.ticking.cancel()

    def _tick(self) -> None:
        self.turn += 1
        self.ticking = self.loop.call_soon(self._tick)


async def send_in_records_of_one_byte(ours: Folder, data: bytes, paused: bool) -> Pieces:
    served = Pieces()
    server = await asyncio.get_running_loop().create_server(
        lambda: served, "127.0.0.1", 0, ssl=mutual(ours, ours.issue("server", server=True))
    )
    async with dialled(server.sockets[0].getsockname()[1], ours.client(ours.issue("client"))) as (_, writer):
        writer.write(b"begin")
        await eventually(lambda: served.pieces == [b"begin"])
        if paused:
            served.transport.pause_reading()
        for number in range(len(data)):
            writer.write(data[number : number + 1])
        if paused:
            await writer.drain()
            served.transport.resume_reading()
        await eventually(lambda: b"".join(served.pieces) == b"begin" + data)
    await eventually(served.ticking.cancelled)
    server.close()
    await server.wait_closed()
    return served


@pytest.mark.parametrize("paused", [False, True], ids=["read at once", "paused first"])
@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_of_a_flood_of_tiny_records_a_few_are_decrypted_in_each_turn(
    ours: Folder, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None, paused: bool
) -> None:
    data = bytes(number % 251 for number in range(3000))
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        served = runner.run(send_in_records_of_one_byte(ours, data, paused))
    assert max(map(len, served.pieces[1:])) <= tls.READS_PER_TURN
    per_turn = Counter[int]()
    for turn, piece in zip(served.turns[1:], served.pieces[1:], strict=True):
        per_turn[turn] += len(piece)
    assert max(per_turn.values()) <= tls.READS_PER_TURN

"""Who gets a connection: TLS and plaintext, certificates, limits, slow and vanishing clients, sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import stat
from pathlib import Path

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.health.v1.health_grpc import HealthStub
from grpclib.health.v1.health_pb2 import HealthCheckRequest

from skerry.kit import metrics
from skerry.model import errors
from skerry.model.settings import GrpcSettings
from skerry.transport import unix_sockets as sockets
from skerry.transport.access.gate import AccessGate
from skerry.transport.grpc.server import GrpcServer
from tests.support.waiting import PATIENCE_S, eventually
from tests.transport.grpc.fakes import CHECK, FakeIdentity
from tests.transport.grpc.raw import RawClient, framed


def refused(reason: str, listener: str = "tcp") -> float:
    labels = {"listener": listener, "reason": reason}
    return metrics.REGISTRY.get_sample_value("skerry_grpc_connections_refused_total", labels) or 0.0


async def is_serving(served, tls: ssl.SSLContext | None = None, *, unix: bool = False) -> bool:
    reply = await HealthStub(served.channel(tls, unix=unix)).Check(HealthCheckRequest(), timeout=PATIENCE_S)
    return reply.status == 1


async def test_one_port_takes_tls_and_plaintext(serve):
    served = await serve(plaintext=True)
    assert await is_serving(served)
    assert await is_serving(served, served.tls("viewer"))


async def test_plaintext_is_turned_away_where_it_is_not_allowed(serve, logged):
    served = await serve(plaintext=False)
    before = refused("plaintext")
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert await _end_of(reader) == b""
    writer.close()
    [line] = [line for line in logged if line["event"] == "connection.refused"]
    assert "accepts only TLS" in line["why"]
    assert line["peer"].startswith("127.0.0.1:")
    assert refused("plaintext") == before + 1
    assert await is_serving(served, served.tls("viewer"))


async def test_tls_is_turned_away_where_there_is_no_certificate_to_answer_with(serve, logged):
    served = await serve(tls=None)
    with pytest.raises(OSError, match=r"reset|SSL"):
        await is_serving(served, served.tls("viewer"))
    assert any(line["event"] == "connection.refused" and line["reason"] == "tls" for line in logged)
    assert await is_serving(served)


async def test_a_listener_with_neither_tls_nor_plaintext_is_a_mistake():
    server = GrpcServer([], AccessGate(FakeIdentity(), os.getuid()), GrpcSettings())
    with socket.create_server(("127.0.0.1", 0)) as sock, pytest.raises(ValueError, match="needs TLS"):
        await server.listen_tcp(sock, None, plaintext=False)


async def test_plaintext_is_never_served_off_loopback(server_tls):
    server = GrpcServer([], AccessGate(FakeIdentity(), os.getuid()), GrpcSettings())
    with (
        socket.create_server(("0.0.0.0", 0)) as sock,
        pytest.raises(errors.FailedPrecondition, match="only on loopback"),
    ):
        await server.listen_tcp(sock, server_tls, plaintext=True)


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
@pytest.mark.parametrize(
    ("who", "reason", "why"),
    [
        ("nobody", "no-certificate", "showed no certificate"),
        ("expired", "expired", "expired"),
        ("stranger", "unknown-ca", "another CA"),
        ("server", "wrong-purpose", "not made for this side"),
    ],
)
async def test_a_bad_client_certificate_is_refused_with_its_reason(
    serve, authority, stranger, logged, caplog, who, reason, why, unix
):
    served = await serve(unix=True)
    pair = {
        "nobody": lambda: None,
        "expired": lambda: authority.issue("late", "admin", expired=True),
        "stranger": lambda: stranger.issue("foreigner", "admin"),
        "server": lambda: authority.issue("no-client", "admin", server=True),
    }[who]()
    listener = "unix" if unix else "tcp"
    before = refused(reason, listener)
    with pytest.raises((OSError, GRPCError, asyncio.TimeoutError, Exception)):
        await is_serving(served, authority.client_context(pair), unix=unix)
    await eventually(lambda: refused(reason, listener) == before + 1)
    [line] = [line for line in logged if line["event"] == "connection.refused"]
    assert (line["log_level"], line["reason"], line["listener"]) == ("warning", reason, listener)
    assert why in line["why"]
    assert line["peer"].startswith("unix" if unix else "127.0.0.1:")
    assert await is_serving(served, served.tls("viewer"), unix=unix)
    assert not caplog.records


async def test_a_client_that_shows_nothing_may_send_a_token_if_certificates_are_optional(serve, authority):
    served = await serve(tls=authority.server_context(required=False))
    stub = HealthStub(served.channel(authority.client_context(None)))
    await stub.Check(HealthCheckRequest(), metadata={"authorization": "Bearer viewer"})
    with pytest.raises(GRPCError) as caught:
        await stub.Check(HealthCheckRequest(), metadata={"authorization": "Bearer nonsense"})
    assert caught.value.status is Status.UNAUTHENTICATED


async def test_connections_above_the_limit_are_closed_at_once_and_told_once(serve, logged):
    served = await serve(settings=GrpcSettings(max_connections=2))
    before = refused("limit")
    async with RawClient(served.port) as one, RawClient(served.port) as two:
        assert await one.call(CHECK, framed(b"")) == (0, "")
        assert await two.call(CHECK, framed(b"")) == (0, "")
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            assert await _end_of(reader) == b""
            writer.close()
        assert refused("limit") == before + 2
        assert len([line for line in logged if line["event"] == "listener.full"]) == 1
    await eventually(lambda: not served.server._open())
    assert await is_serving(served)


async def test_a_client_that_sends_nothing_is_closed_after_its_time(serve, logged):
    served = await serve(settings=GrpcSettings(handshake_timeout_s=0.05))
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    assert await _end_of(reader) == b""
    writer.close()
    assert any(line["event"] == "connection.refused" and line["reason"] == "silent" for line in logged)


async def test_a_client_that_stops_in_its_handshake_is_closed_after_its_time(serve, logged):
    served = await serve(settings=GrpcSettings(handshake_timeout_s=0.05))
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"\x16\x03\x01")
    assert await _end_of(reader) == b""
    writer.close()
    await eventually(lambda: any(line.get("reason") == "slow" for line in logged))


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"P"], ids=["nothing", "tls", "plaintext"])
@pytest.mark.parametrize("rudely", [False, True], ids=["closes", "resets"])
async def test_a_client_that_leaves_early_leaves_nothing_behind(serve, sent, rudely, caplog):
    served = await serve()
    for _ in range(5):
        sock = socket.create_connection(("127.0.0.1", served.port))
        sock.sendall(sent)
        if rudely:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
    assert await is_serving(served)
    [listener] = served.server._listeners
    await eventually(lambda: len(listener._serving) == 1, what="only the one that is served is left")
    assert not caplog.records


class ScriptedSocket:
    """A listening socket whose `accept` fails as told before it works."""

    def __init__(self, sock: socket.socket, failures: list[int]) -> None:
        self._sock = sock
        self.failures = failures

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            number = self.failures.pop(0)
            raise OSError(number, os.strerror(number))
        return self._sock.accept()

    def fileno(self) -> int:
        return self._sock.fileno()

    def setblocking(self, flag: bool) -> None:
        self._sock.setblocking(flag)

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()


async def test_running_out_of_descriptors_pauses_accepting_and_no_more(serve, logged, monkeypatch):
    served = await serve()
    [listener] = served.server._listeners
    scripted = ScriptedSocket(listener._sock, [errno.ECONNABORTED, errno.EMFILE, errno.ENFILE])
    monkeypatch.setattr(listener, "_sock", scripted)
    assert await is_serving(served)
    assert not scripted.failures
    paused = [line for line in logged if line["event"] == "listener.paused"]
    assert len(paused) == 2
    listener._loop.remove_reader(scripted.fileno())


async def test_the_socket_file_is_its_owners_alone_and_removed_at_the_end(serve):
    served = await serve(unix=True)
    assert stat.S_IMODE(served.path.stat().st_mode) == 0o600
    assert await is_serving(served, served.tls("viewer"), unix=True)
    await served.stop()
    assert not served.path.exists()


async def test_the_socket_demands_certificates(tmp_path, authority):
    server = GrpcServer([], AccessGate(FakeIdentity(), os.getuid()), GrpcSettings())
    with pytest.raises(ValueError, match="must require certificates"):
        await server.listen_unix(tmp_path / "s", authority.server_context(required=False))


def test_a_socket_that_a_killed_process_left_is_replaced(tmp_path):
    path = tmp_path / "deep" / "er" / "s.sock"
    sockets.bind(path).close()  # as the kernel does for a killed process: the file stays
    assert path.is_socket()
    with sockets.bind(path):
        assert not sockets.remove_stale(path), "somebody serves here"
        assert path.is_socket()
    assert sockets.remove_stale(path)
    assert not path.exists()
    assert sockets.remove_stale(path), "there is nothing to remove any more"


def test_a_socket_that_somebody_serves_on_is_left_alone(tmp_path):
    path = tmp_path / "s.sock"
    with (
        sockets.bind(path),
        pytest.raises(errors.FailedPrecondition, match=r"another process serves on it.* --socket"),
    ):
        sockets.bind(path)
    assert path.is_socket()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "s.sock"
    path.write_text("precious")
    with pytest.raises(errors.FailedPrecondition, match="is no socket"):
        sockets.bind(path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("path", [Path("/proc/skerry/s.sock"), Path("/tmp/" + "x" * 200)])
def test_a_path_that_cannot_be_bound_says_so(path):
    with pytest.raises(errors.FailedPrecondition, match=r"cannot listen on .* --socket"):
        sockets.bind(path)


async def _end_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""

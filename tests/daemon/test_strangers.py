"""Another user of the machine: connections without end, and what it may not reach, on a real server."""

from __future__ import annotations

import contextlib
import http.client
import multiprocessing
import os
import socket
import ssl
import stat
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.support.skerry import Skerry
from tests.support.waiting import PATIENCE_S, eventually_sync

pytestmark = pytest.mark.root

NOBODY = 65534
CONNECTIONS = 60  # above every limit that is set here
LIMITS = (
    *("--set", "http.max_connections=40", "--set", "http.max_connections_per_source=20"),
    *("--set", "grpc.max_connections=40", "--set", "grpc.max_connections_per_source=20"),
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """That other users can enter, so that only what is in it keeps them out."""
    with tempfile.TemporaryDirectory(prefix="skerry-test-") as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.fixture
def skerry(folder: Path) -> Iterator[Skerry]:
    yield from _running(folder)


def _running(folder: Path, *flags: str) -> Iterator[Skerry]:
    running = Skerry(folder, *LIMITS, *flags, role="server")
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


def _address(skerry: Skerry, listener: str) -> tuple[int, Any]:
    if listener == "unix":
        return socket.AF_UNIX, skerry.ready["socket"]
    port = int(skerry.ready[listener].rpartition(":")[2])
    return socket.AF_INET, ("127.0.0.1", port)


def _hold(family: int, address: Any, first: bytes, uid: int, told: Connection) -> None:
    """As `uid`: open connections, say `first` on each, tell how many were let in, and wait."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    held, refused = [], 0
    for _ in range(CONNECTIONS):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.connect(address)
            sock.sendall(first)
            held.append(sock)
        except OSError:
            refused += 1
    told.send(refused)
    told.recv()
    open_still = 0
    for sock in held:
        sock.setblocking(False)
        try:
            open_still += sock.recv(1) != b""
        except BlockingIOError:
            open_still += 1
        except OSError:
            pass
    told.send(open_still)


@contextlib.contextmanager
def crowd(skerry: Skerry, listener: str, uid: int = NOBODY, first: bytes = b"") -> Iterator[Connection]:
    """So many connections of a user, for as long as this lasts."""
    "".encode("idna")  # loaded while it can be read
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_hold, args=(*_address(skerry, listener), first, uid, theirs)
    )
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


def still_open(held: Connection) -> int:
    held.send("count")
    return int(held.recv())


def test_the_silent_http_connections_of_one_user_are_bounded_and_lock_nobody_out(skerry: Skerry) -> None:
    with crowd(skerry, "http") as held:
        assert held.recv() == 0
        for _ in range(10):
            assert skerry.call("GET", "/about")[0] == 200, "root gets in"
        eventually_sync(lambda: "it has 20 connections" in skerry.said(), what="the refusal in the log")
        with crowd(skerry, "http", uid=NOBODY - 1, first=b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            assert skerry.call("GET", "/about")[0] == 200, "whatever others do"


def test_http_2_connections_without_calls_lock_nobody_out(skerry: Skerry) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    with crowd(skerry, "grpc", first=preface) as held:
        assert held.recv() < CONNECTIONS
        with socket.create_connection(_address(skerry, "grpc")[1], timeout=PATIENCE_S) as root:
            root.sendall(preface)
            assert root.recv(9)[3] == 4, "the server's settings"
        assert 0 < still_open(held) <= 20


def test_the_unix_socket_is_closed_to_other_users(skerry: Skerry) -> None:
    assert stat.S_IMODE(os.stat(skerry.ready["socket"]).st_mode) == 0o600
    with crowd(skerry, "unix") as held:
        assert held.recv() == CONNECTIONS


def test_where_it_is_opened_to_others_they_lock_nobody_out(folder: Path) -> None:
    for skerry in _running(folder, "--set", "grpc.socket_group=65534"):
        found = os.stat(skerry.ready["socket"])
        assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, 65534)
        with crowd(skerry, "unix", first=b"\x16\x03\x01") as held:
            assert held.recv() < CONNECTIONS
            context = ssl.create_default_context(cafile=skerry.ready["ca"])
            context.load_cert_chain(skerry.ready["client_cert"], skerry.ready["client_key"])
            context.set_alpn_protocols(["h2"])
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plain:
                plain.settimeout(10)
                plain.connect(skerry.ready["socket"])
                with context.wrap_socket(plain, server_hostname="localhost") as root:
                    assert root.selected_alpn_protocol() == "h2"


def test_what_a_proxy_of_root_forwards_is_not_roots(skerry: Skerry) -> None:
    assert skerry.call("GET", "/token/")[0] == 200
    for header in ("Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "Via", "X-Real-IP"):
        assert skerry.call("GET", "/token/", headers={header: "for=192.0.2.1"})[0] == 401, header


def test_without_local_trust_root_needs_a_token(tmp_path: Path) -> None:
    for skerry in _running(tmp_path, "--set", "identity.local_trust=false"):
        assert skerry.call("GET", "/token/")[0] == 401
        assert skerry.call("GET", "/healthz")[0] == 200


def test_a_connection_that_was_refused_is_told_why(skerry: Skerry) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(40):
            connection = skerry.connect()
            held.callback(connection.close)
            connection.request("GET", "/healthz")
            assert connection.getresponse().read()
        refused: http.client.HTTPConnection = skerry.connect()
        held.callback(refused.close)
        refused.request("GET", "/healthz")
        answer = refused.getresponse()
        answer.read()
        assert (answer.status, answer.getheader("Retry-After")) == (503, "1")

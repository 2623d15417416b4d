"""What floods of frames on a few connections do to everybody else: `/healthz` meanwhile, and the leases.

A real `skerry up` with its own node. One process of another user floods it on eight connections at once, and
dials again whatever it loses; meanwhile `/healthz` is asked one request after the other on one connection.
The flooder has the lowest priority, since a real one is elsewhere and takes none of this machine's
processors: what counts is what its connections cost the server. A lease is lost if the server had to win the
lead anew or the node's session ended.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import selectors
import signal
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import uvloop

from bench.figures import Figure
from bench.serving import percentile, skerry
from bench.wires import wires

CONNECTIONS: Final = 8
FLOOD_S: Final = 4.0
QUIET_S: Final = 2.0
BOUND: Final = 20.0  # p99 of /healthz during a flood, of its quiet p50
_NOBODY: Final = 65534
_BLOCK: Final = 256 * 1024
_BOTH: Final = selectors.EVENT_READ | selectors.EVENT_WRITE
_GOAWAY: Final = b"\x07\x00\x00\x00\x00\x00"  # type, flags and stream of the frame
_CLOSE: Final = b"\x88"  # of a WebSocket; in no UTF-8 that is sent here, but HTTP/2 has it for `:status 200`

_ENDED_SESSIONS: Final = 'skerry_grpc_calls_total{method="/skerry.nodes.v1.NodeService/Session"'

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


_DATA, _HEADERS, _PRIORITY, _RST, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
_UNKNOWN: Final = 0xB0
_END_STREAM, _END_HEADERS = 1, 4
_SETTINGS_FRAME: Final = _frame(_SETTINGS, 0, 0, b"")
# POST, http, :path "/x" and :authority "a" as literals, content-type application/grpc, te trailers.
_REQUEST: Final = (
    b"\x83\x86\x04\x02/x\x01\x01a\x0f\x10\x10application/grpc"  # by index, and literals that are not kept
    b"\x00\x02te\x08trailers"
)


def _requests(*, reset: bool) -> bytes:
    """Calls that nothing serves, each on a stream of its own; with `reset`, taken back at once."""
    parts = []
    for stream in range(1, 8001, 2):
        parts.append(_frame(_HEADERS, _END_HEADERS | (0 if reset else _END_STREAM), stream, _REQUEST))
        if reset:
            parts.append(_frame(_RST, 0, stream, (8).to_bytes(4, "big")))
    return b"".join(parts)


@dataclass(frozen=True)
class Flood:
    """What each connection sends: first `opening`, then `block` over and over, or once if it cannot recur.
    `goodbye` is what the server says when it wants no more."""

    name: str
    opening: bytes
    block: bytes
    recurs: bool = True
    goodbye: bytes = _GOAWAY
    is_noise: bool = True  # nothing in it is a request that has to be answered


class Leases(NamedTuple):
    """How often the lead was won, and how many sessions of nodes have ended."""

    leads: int
    sessions: int


def _many(frame: bytes) -> bytes:
    return frame * (_BLOCK // len(frame))


_H2: Final = _PREFACE + _SETTINGS_FRAME
_OPEN_STREAM: Final = _H2 + _frame(_HEADERS, _END_HEADERS, 1, _REQUEST)
H2_FLOODS: Final = (
    Flood("HEADERS and RST_STREAM", _H2, _requests(reset=True), recurs=False),
    Flood("calls of what is not there", _H2, _requests(reset=False), recurs=False),
    Flood("PING", _H2, _many(_frame(_PING, 0, 0, bytes(8)))),
    Flood("SETTINGS", _H2, _many(_SETTINGS_FRAME)),
    Flood("PRIORITY", _H2, _many(_frame(_PRIORITY, 0, 3, bytes(5)))),
    Flood("WINDOW_UPDATE", _H2, _many(_frame(_WINDOW_UPDATE, 0, 0, (1).to_bytes(4, "big")))),
    Flood("empty DATA", _OPEN_STREAM, _many(_frame(_DATA, 0, 1, b""))),
    Flood("DATA of one byte", _OPEN_STREAM, _many(_frame(_DATA, 0, 1, b"x"))),
    Flood("frames of an unknown type", _H2, _many(_frame(_UNKNOWN, 0, 0, b""))),
    Flood(
        "empty CONTINUATION",
        _H2 + _frame(_HEADERS, 0, 1, _REQUEST),
        _many(_frame(_CONTINUATION, 0, 1, b"")),
    ),
)


def _masked(first: int, payload: bytes = b"") -> bytes:
    return bytes((first, 0x80 | len(payload), 0, 0, 0, 0)) + payload


_TEXT, _PING_FRAME, _PONG_FRAME, _FIRST, _NEXT = 0x81, 0x89, 0x8A, 0x01, 0x00
WEBSOCKET_FLOODS: Final = (
    Flood("WebSocket pong", b"", _many(_masked(_PONG_FRAME))),
    Flood("WebSocket ping", b"", _many(_masked(_PING_FRAME))),
    Flood("WebSocket fragments", _masked(_FIRST, b"{"), _many(_masked(_NEXT))),
    Flood("WebSocket messages of no byte", b"", _many(_masked(_TEXT))),
)


def measure() -> Iterator[Figure]:
    with skerry() as ready:
        before = _leases(ready["http"])
        quiet = uvloop.run(_asking(ready["http"], QUIET_S))
        p50 = percentile(quiet, 0.5)
        yield Figure("/healthz, nobody else there: p50", p50 * 1e3, "ms")
        for flood, port, via in _floods(ready):
            during = _during(flood, port, via, ready)
            p99 = percentile(during, 0.99)
            yield Figure(
                f"/healthz during {via} {flood.name}: p99",
                p99 / p50,
                "x the quiet p50",
                at_most=BOUND if flood.is_noise else None,
                note=f"{p99 * 1e3:.1f} ms, the worst {max(during) * 1e3:.0f} ms, {len(during)} answers",
                peer=p50 * 1e3,
                peer_unit="ms",
                peer_name="quiet p50",
            )
        after = _leases(ready["http"])
        yield Figure("leads won again during all of them", after.leads - before.leads, "", at_most=0)
        yield Figure("sessions of the node that ended", after.sessions - before.sessions, "", at_most=0)


def _floods(ready: dict[str, Any]) -> Iterator[tuple[Flood, int, str]]:
    http, grpc = urlsplit(ready["http"]), int(ready["grpc"].rpartition(":")[2])
    assert http.port is not None
    host = http.netloc
    token = uvloop.run(_token(ready["http"]))
    upgrade = (
        f"GET /api/subscribe HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        f"Authorization: Bearer {token}\r\n\r\n"
    ).encode()
    for flood in WEBSOCKET_FLOODS:
        opening = upgrade + flood.opening
        yield Flood(flood.name, opening, flood.block, goodbye=_CLOSE), http.port, "HTTP"
    request = f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    # Requests like all others, each of which is answered: load, which is printed and not promised.
    ahead = Flood("requests sent ahead", b"", _many(request), is_noise=False)
    yield ahead, http.port, "HTTP"
    upload = f"POST /nowhere HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000000000000\r\n\r\n".encode()
    yield Flood("a body that nobody wants", upload, bytes(_BLOCK)), http.port, "HTTP"
    for via in ("gRPC", "gRPC with TLS"):
        for flood in H2_FLOODS:
            yield flood, grpc, via


def _during(flood: Flood, port: int, via: str, ready: dict[str, Any]) -> list[float]:
    """How long `/healthz` took each time while `flood` went on."""
    context = _client_context(ready) if "TLS" in via else None
    "".encode("idna")  # what is loaded later has to be readable for another user
    flooder = multiprocessing.get_context("fork").Process(target=_flood, args=(flood, port, context))
    flooder.start()
    try:
        return uvloop.run(_asking(ready["http"], FLOOD_S))
    finally:
        if flooder.pid is not None and flooder.is_alive():
            os.kill(flooder.pid, signal.SIGKILL)
        flooder.join()


def _client_context(ready: dict[str, Any]) -> ssl.SSLContext:
    """A member's certificate that was stolen: without one nobody gets past the handshake."""
    context = ssl.create_default_context(cafile=ready["ca"])
    context.load_cert_chain(ready["client_cert"], ready["client_key"])
    context.set_alpn_protocols(["h2"])
    return context


async def _asking(url: str, seconds: float) -> list[float]:
    taken: list[float] = []
    async with wires(url, 1) as (wire,):
        until = time.perf_counter() + seconds
        while (begun := time.perf_counter()) < until:
            await wire.ask("GET", "/healthz")
            taken.append(time.perf_counter() - begun)
            await asyncio.sleep(0.001)
    return taken


async def _token(url: str) -> str:
    async with wires(url, 1) as (wire,):
        made = await wire.ask("POST", "/token/", b'{"role":"viewer","ttl_s":3600}')
    return str(json.loads(made)["token"])


def _leases(url: str) -> Leases:
    """What the server says of them, once the node has its session."""
    while not _sum(told := _read(f"{url}/metrics"), "skerry_node_sessions "):
        time.sleep(0.1)
    leads = _read(f"{url}/events?after=0&follow=false&kind=server.leads").count("event: server.leads")
    return Leases(leads, int(_sum(told, _ENDED_SESSIONS)))


def _read(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


def _sum(metrics: str, name: str) -> float:
    return sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(name))


# The flooder: one process, one thread, plain sockets.


def _flood(flood: Flood, port: int, context: ssl.SSLContext | None) -> None:
    """For ever, on all connections. Told to stop, it does not wait to be cut off: it dials again."""
    os.nice(19)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    selector = selectors.DefaultSelector()
    for _ in range(CONNECTIONS):
        _dial(flood, port, context, selector)
    while True:
        for key, ready in selector.select():
            sock, unsent = key.fileobj, key.data
            assert isinstance(sock, socket.socket)
            try:
                if ready & selectors.EVENT_READ:
                    _hear(sock, flood.goodbye)
                if ready & selectors.EVENT_WRITE:
                    rest = unsent[sock.send(unsent) :] or _next_block(flood)
                    selector.modify(sock, _BOTH, rest)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                pass
            except OSError:
                selector.unregister(sock)
                sock.close()
                _dial(flood, port, context, selector)


def _next_block(flood: Flood) -> memoryview:
    if not flood.recurs:
        raise ConnectionError("there are no more streams on this connection")
    return memoryview(flood.block)


def _hear(sock: socket.socket, goodbye: bytes) -> None:
    heard = sock.recv(_BLOCK)
    if not heard or goodbye in heard:
        raise ConnectionError("the server has closed, or says that it will")


def _dial(flood: Flood, port: int, context: ssl.SSLContext | None, selector: selectors.BaseSelector) -> None:
    while True:
        try:
            sock = socket.create_connection(("127.0.0.1", port), timeout=5.0)
            if context is not None:
                sock = context.wrap_socket(sock, server_hostname="localhost")
        except OSError:
            time.sleep(0.01)
        else:
            sock.setblocking(False)
            selector.register(sock, _BOTH, memoryview(flood.opening + flood.block))
            return

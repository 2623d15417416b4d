"""Accepting connections on one bound socket: how many, TLS or not, and why one was turned away.

`skerry.wire.grpc.server` and `skerry.wire.neighbours.serving` own listeners; a connection that passed is its
own matter. Each accepted socket has one task from its first byte to its last: the sockets held are the
tasks that run. Nothing a client does ends the loop: what goes wrong with one of them is logged and counted.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar, cast

import structlog
from prometheus_client import Counter, Gauge

from skerry.kit import metrics
from skerry.kit.backoff import Backoff
from skerry.kit.tls import on_refusal
from skerry.wire.grpc.handshakes import TurnedAway, explain

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Measures:
    """What is counted of listeners."""

    held: Gauge  # by listener
    refused: Counter  # by listener and reason


GRPC: Final = Measures(
    metrics.gauge("skerry_grpc_connections", "gRPC connections held", ["listener"]),
    metrics.counter(
        "skerry_grpc_connections_refused_total", "gRPC connections turned away", ["listener", "reason"]
    ),
)

_TLS_RECORD: Final = 0x16  # the first byte of a TLS handshake; no HTTP/2 connection begins so
_ACCEPTS_PER_WAKE: Final = 64  # then the loop gets to the others
_BACKOFF: Final = Backoff(first_s=0.1, cap_s=5.0)
_SHUTDOWN_S: Final = 1.0  # for the peer's half of a TLS goodbye
_OUT_OF_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Accepted(Protocol):
    """A connection: a protocol of asyncio, whose `closed` is done once there is nothing left of it."""

    @property
    def closed(self) -> asyncio.Future[None]: ...

    def abort(self) -> None: ...


C = TypeVar("C", bound=Accepted)


class Listener(Generic[C]):
    """One listening socket. Without `tls` all is plaintext; without `plaintext` all is TLS."""

    def __init__(
        self,
        name: str,
        sock: socket.socket,
        connection: Callable[[], C],
        *,
        tls: ssl.SSLContext | None,
        plaintext: bool,
        max_connections: int,
        handshake_timeout_s: float,
        backoff: Backoff = _BACKOFF,
        measures: Measures = GRPC,
    ) -> None:
        if tls is None and not plaintext:
            raise ValueError("a listener needs TLS or leave for plaintext")
        self._name = name
        self._sock = sock
        self._make_connection = connection
        self._tls = tls
        self._plaintext = plaintext
        self._max_connections = max_connections
        self._handshake_timeout_s = handshake_timeout_s
        self._backoff = backoff
        self._measures = measures
        self._failures = 0
        self._is_full = False
        self._loop = asyncio.get_running_loop()
        self._resume: asyncio.TimerHandle | None = None
        self._attending: set[asyncio.Task[None]] = set()
        self._welcoming: set[asyncio.Task[None]] = set()
        self.connections: set[C] = set()
        sock.setblocking(False)
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Accept nothing more and drop those who are still shaking hands."""
        if self._sock.fileno() < 0:
            return
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()
        for task in self._welcoming:
            task.cancel()

    async def drained(self) -> None:
        """Wait until no connection is left."""
        while self._attending:
            await asyncio.wait(self._attending)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_WAKE):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_ROOM:
                    self._pause(error)
                    return
                continue  # such as ECONNABORTED: the client left the queue before its turn
            self._failures = 0
            if len(self._attending) >= self._max_connections:
                sock.close()
                self._tell_full()
                continue
            self._is_full = False
            sock.setblocking(False)
            self._attend(sock, _address_text(address))

    def _pause(self, error: OSError) -> None:
        """Out of descriptors or memory: the waiting connections stay in the kernel's queue for a while."""
        delay = self._backoff.delay(self._failures)
        self._failures += 1
        log.error("listener.paused", listener=self._name, error=error.strerror, for_s=round(delay, 2))
        self._loop.remove_reader(self._sock)
        self._resume = self._loop.call_later(delay, self._loop.add_reader, self._sock, self._accept)

    def _tell_full(self) -> None:
        self._measures.refused.labels(self._name, "limit").inc()
        if not self._is_full:  # once for every time it fills up, not once per client
            self._is_full = True
            log.warning("listener.full", listener=self._name, connections=self._max_connections)

    def _attend(self, sock: socket.socket, address: str) -> None:
        task = self._loop.create_task(self._serve(sock, address))
        self._attending.add(task)
        self._welcoming.add(task)
        self._measures.held.labels(self._name).inc()
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._attending.discard(task)
        self._welcoming.discard(task)
        self._measures.held.labels(self._name).dec()

    async def _serve(self, sock: socket.socket, address: str) -> None:
        try:
            connection = await self._connect(sock, await self._greet(sock))
        except TurnedAway as reason:
            self._measures.refused.labels(self._name, reason.slug).inc()
            tell = log.debug if reason.is_ordinary else log.warning
            tell("connection.refused", listener=self._name, peer=address, reason=reason.slug, why=str(reason))
            return
        except Exception as error:
            self._measures.refused.labels(self._name, "fault").inc()
            log.error("connection.failed", listener=self._name, peer=address, exc_info=error)
            return
        task = asyncio.current_task()
        assert task is not None
        self._welcoming.discard(task)
        self.connections.add(connection)
        try:
            await connection.closed
        finally:
            connection.abort()
            self.connections.discard(connection)

    async def _greet(self, sock: socket.socket) -> ssl.SSLContext | None:
        """How to go on with the client, by its first byte; closes the socket of one that is turned away."""
        try:
            async with asyncio.timeout(self._handshake_timeout_s):
                return self._choose(await _first_byte(sock))
        except TimeoutError:
            sock.close()
            raise TurnedAway("silent", "it sent nothing in time") from None
        except OSError as error:
            sock.close()
            raise TurnedAway("left", f"it left: {error.strerror}", is_ordinary=True) from None
        except BaseException:
            sock.close()
            raise

    async def _connect(self, sock: socket.socket, tls: ssl.SSLContext | None) -> C:
        """Give the socket to a transport, which closes it whatever happens."""
        # Made here, not taken from the loop's answer: uvloop returns its own TLS protocol in place of ours.
        connection = self._make_connection()
        # The loop may see only that the client left; the TLS object knows why it had been refused.
        refusals: list[ssl.SSLError] = []
        on_refusal.set(refusals.append)  # for this task, which makes no other connection
        try:
            await self._loop.connect_accepted_socket(
                lambda: cast(asyncio.Protocol, connection),
                sock,
                ssl=tls,
                ssl_handshake_timeout=self._handshake_timeout_s if tls else None,
                ssl_shutdown_timeout=_SHUTDOWN_S if tls else None,
            )
        except OSError as error:
            raise explain(refusals[0] if refusals else error) from None
        return connection

    def _choose(self, first: bytes) -> ssl.SSLContext | None:
        """The TLS context for a client that began with `first`, None for plaintext."""
        if not first:
            raise TurnedAway("left", "it closed without a word", is_ordinary=True)
        if first[0] == _TLS_RECORD:
            if self._tls is None:
                raise TurnedAway("tls", "it spoke TLS, and this listener has no certificate to show")
            return self._tls
        if not self._plaintext:
            raise TurnedAway("plaintext", "it spoke without TLS, and this listener takes only TLS")
        return None


async def _first_byte(sock: socket.socket) -> bytes:
    """The first byte, left where it is; empty if the client closed."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            pass
        readable = loop.create_future()
        loop.add_reader(sock, _wake, readable)
        try:
            await readable
        finally:
            loop.remove_reader(sock)


def _wake(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


def _address_text(address: object) -> str:
    if isinstance(address, tuple):
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "unix"

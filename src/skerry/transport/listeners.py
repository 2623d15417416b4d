"""A listener: accepts connections on one bound socket, with or without TLS.

`skerry.transport.http.server`, `skerry.transport.grpc.server` and `skerry.transport.links.members.server` own
listeners, and handle accepted connections. `skerry.transport.admission` decides which connection gets a slot,
before any input of the client is read. Each accepted socket has one task from its first byte to its last.
Nothing a client does ends the loop: errors of one connection are logged and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import msgspec
import structlog
from prometheus_client import Counter, Gauge

from skerry.kit import listening_sockets, metrics
from skerry.kit.backoff import Backoff
from skerry.kit.networks import Network
from skerry.kit.service_manager import InheritedSocket
from skerry.kit.tls import on_refusal, pace_reads
from skerry.transport.access import peers
from skerry.transport.admission import (
    FLOODED,
    SOURCE_LIMIT,
    UNNAMED,
    AdmissionLimits,
    AdmissionRefused,
    ConnectionAdmission,
    ConnectionSlot,
)
from skerry.transport.handshake_errors import ConnectionRejected, rejection_of
from skerry.transport.pacing import pacer_of

log = structlog.get_logger(__name__)


class ListenerMetrics(msgspec.Struct, frozen=True):
    """What is counted of listeners."""

    held: Gauge  # by listener
    refused: Counter  # by listener and reason


GRPC_LISTENER_METRICS: Final = ListenerMetrics(
    metrics.gauge("skerry_grpc_connections", "gRPC connections held", ["listener"]),
    metrics.counter(
        "skerry_grpc_connections_refused_total", "gRPC connections rejected", ["listener", "reason"]
    ),
)

_TLS_RECORD: Final = 0x16  # the first byte of a TLS handshake; no HTTP/2 connection begins so
# Between two connections of refused sources: so they cannot keep the loop busy by dialling.
_AFTER_FLOODER_S: Final = 0.001
_ACCEPTS_PER_WAKE: Final = 1  # then the loop gets to the others; what follows an accept is the dear part
_ACCEPT_S: Final = 0.0003  # what a connection takes until it is made
_BACKOFF: Final = Backoff(first_s=0.1, cap_s=5.0)
HANDSHAKE_GRACE_S: Final = 1.0  # for clients that were accepted last before a handover
_SHUTDOWN_S: Final = 1.0  # for the peer's half of a TLS goodbye
# Connections without a slot that get an error, where the protocol has one; more are closed without it.
MAX_REFUSED: Final = 64
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class AcceptedConnection(Protocol):
    """A connection: a protocol of asyncio, whose `closed` is done at its end."""

    @property
    def closed(self) -> asyncio.Future[None]: ...

    def abort(self) -> None: ...


C = TypeVar("C", bound=AcceptedConnection)


class _ConnectionHandle:
    """The state of one connection, by which it can be dropped.

    Before there is a connection its socket is shut down, so that whatever it waits for fails at once. Its
    task is not cancelled: one that has not started would not close its socket, and uvloop does not call
    `connection_lost` if it is interrupted while it creates the transport.
    """

    __slots__ = ("connection", "is_dropped", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.connection: AcceptedConnection | None = None
        self.is_dropped = False

    def drop(self) -> None:
        self.is_dropped = True
        if self.connection is not None:
            self.connection.abort()
        else:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)

    async def last(self, connection: AcceptedConnection) -> None:
        """Wait until the connection, which was made, has ended; end it if it was dropped meanwhile."""
        self.connection = connection
        if self.is_dropped:
            connection.abort()
        try:
            await connection.closed
        finally:
            connection.abort()


class ListenerOptions(msgspec.Struct, frozen=True):
    """What a listener takes. Without `tls` all is plaintext; without `plaintext` all is TLS."""

    tls: ssl.SSLContext | None
    plaintext: bool
    limits: AdmissionLimits
    handshake_timeout_s: float
    trusted_uids: frozenset[int]  # local users that have reserved slots
    detects_tls: bool = (
        True  # False: what begins wrong, or not at all, is a matter of TLS and of the connection
    )
    networks: Sequence[Network] | None = None  # clients from other networks are disconnected
    measures: ListenerMetrics = GRPC_LISTENER_METRICS


class Listener(Generic[C]):
    """One listening socket. `connection` creates one with a slot. `refusal` creates one that sends its client
    the reason why it has none; without it such a client is disconnected."""

    def __init__(
        self,
        name: str,
        sock: socket.socket,
        options: ListenerOptions,
        connection: Callable[[ConnectionSlot], C],
        refusal: Callable[[], C] | None = None,
    ) -> None:
        if options.tls is None and not options.plaintext:
            raise ValueError("a listener needs TLS or leave for plaintext")
        self._name = name
        self._sock = sock
        self._options = options
        self._tls = options.tls
        self._make_connection = connection
        self._make_refusal = refusal
        self._refused = 0
        self._measures = options.measures
        self._failures = 0
        self._logged_refusals: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._pacer = pacer_of(self._loop)
        self._has_waited = False
        self._admission = ConnectionAdmission(
            options.limits, options.trusted_uids, self._loop.time, options.networks
        )
        self._resume: asyncio.TimerHandle | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._welcoming: set[_ConnectionHandle] = set()
        self.connections: set[C] = set()
        sock.setblocking(False)
        self._loop.add_reader(sock, self._accept)

    @property
    def is_accepting(self) -> bool:
        return self._sock.fileno() >= 0

    def close(self) -> None:
        """Accept nothing more, and drop connections in their handshake: soon, if another process goes on with
        the socket, since their clients could not know that they must come again."""
        if self._sock.fileno() < 0:
            return
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._sock)
        is_shared = isinstance(self._sock, InheritedSocket) or listening_sockets.current().is_shared
        if not is_shared:
            with contextlib.suppress(OSError):
                # A child that was forked and has not reached its program yet holds the socket too, and while
                # anybody does it would go on taking connections.
                self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        if is_shared:
            self._loop.call_later(HANDSHAKE_GRACE_S, self._drop_handshakes)
        else:
            self._drop_handshakes()

    def _drop_handshakes(self) -> None:
        for handle in list(self._welcoming):
            handle.drop()

    async def drained(self) -> None:
        """Wait until no connection is left."""
        while self._serving:
            await asyncio.wait(self._serving)

    def _accept(self) -> None:
        if not self._pacer.has_time and not self._has_waited:
            self._has_waited = True  # for one turn of the loop, which others have used up
            return
        self._has_waited = False
        self._pacer.spend(_ACCEPT_S)
        for _ in range(_ACCEPTS_PER_WAKE):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause(error)
                    return
                continue  # such as ECONNABORTED: the client left the queue
            self._failures = 0
            sock.setblocking(False)
            if not self._admit(sock, _address_text(address)):
                self._rest(_AFTER_FLOODER_S)
                return

    def continue_connection(self, sock: socket.socket) -> None:
        """Serve a connection that the process before has accepted, and on which nothing is half done."""
        with contextlib.suppress(OSError):  # the client has left
            sock.setblocking(False)
            self._admit(sock, _address_text(sock.getpeername()))
            return
        sock.close()

    def _admit(self, sock: socket.socket, address: str) -> bool:
        """False if its source floods, has all its slots or is not served: the next connection waits."""
        handle = _ConnectionHandle(sock)
        try:
            slot = self._admission.admit(peers.peer_of(sock), handle.drop)
        except AdmissionRefused as reason:
            self._note_refused(reason, address)
            if reason.slug in (FLOODED, UNNAMED):
                sock.close()
                return False
            if self._make_refusal is None or self._tls is not None or self._refused >= MAX_REFUSED:
                sock.close()
            else:
                self._refused += 1
                task = self._supervise(handle, self._serve_refusal(handle, self._make_refusal()))
                task.add_done_callback(self._refusal_left)
            return reason.slug != SOURCE_LIMIT
        self._logged_refusals.clear()
        task = self._supervise(handle, self._serve(handle, address, slot))
        task.add_done_callback(lambda _: self._admission.leave(slot))
        return True

    def _pause(self, error: OSError) -> None:
        """Out of descriptors or memory: the waiting connections stay in the kernel's queue for a while."""
        delay = _BACKOFF.delay(self._failures)
        self._failures += 1
        log.error("listener.paused", listener=self._name, error=error.strerror, for_s=round(delay, 2))
        self._rest(delay)

    def _rest(self, delay: float) -> None:
        """Who comes meanwhile waits in the kernel's queue."""
        self._loop.remove_reader(self._sock)
        self._resume = self._loop.call_later(delay, self._loop.add_reader, self._sock, self._accept)

    def _note_refused(self, reason: AdmissionRefused, address: str) -> None:
        self._measures.refused.labels(self._name, reason.slug).inc()
        if (
            reason.slug not in self._logged_refusals
        ):  # once until there are free slots again, not once per client
            self._logged_refusals.add(reason.slug)
            event = "listener.unnamed" if reason.slug == UNNAMED else "listener.full"
            log.warning(event, listener=self._name, peer=address, why=str(reason))

    def _supervise(self, handle: _ConnectionHandle, serving: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(serving)
        self._serving.add(task)
        self._welcoming.add(handle)
        self._measures.held.labels(self._name).inc()
        task.add_done_callback(partial(self._left, handle))
        return task

    def _refusal_left(self, _: asyncio.Task[None]) -> None:
        self._refused -= 1

    async def _serve_refusal(self, handle: _ConnectionHandle, connection: C) -> None:
        with contextlib.suppress(OSError):  # it left before it was answered
            await self._loop.connect_accepted_socket(lambda: cast(asyncio.Protocol, connection), handle.sock)
            await handle.last(connection)

    def _left(self, handle: _ConnectionHandle, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        self._welcoming.discard(handle)
        self._measures.held.labels(self._name).dec()

    async def _serve(self, handle: _ConnectionHandle, address: str, slot: ConnectionSlot) -> None:
        try:
            connection = await self._connect(handle.sock, await self._detect_tls(handle.sock), slot)
        except ConnectionRejected as reason:
            self._measures.refused.labels(self._name, reason.slug).inc()
            log_refusal = log.debug if reason.is_ordinary else log.warning
            log_refusal(
                "connection.refused", listener=self._name, peer=address, reason=reason.slug, why=str(reason)
            )
            return
        except Exception as error:
            self._measures.refused.labels(self._name, "fault").inc()
            log.error("connection.failed", listener=self._name, peer=address, exc_info=error)
            return
        self._welcoming.discard(handle)
        self.connections.add(connection)
        try:
            await handle.last(connection)
        finally:
            self.connections.discard(connection)

    async def _detect_tls(self, sock: socket.socket) -> ssl.SSLContext | None:
        """Decide by the first byte of the client; closes the socket of a rejected one."""
        if not self._options.detects_tls:
            return self._tls
        try:
            async with asyncio.timeout(self._options.handshake_timeout_s):
                return self._choose(await _first_byte(sock))
        except TimeoutError:
            sock.close()
            raise ConnectionRejected("silent", "it sent nothing in time") from None
        except OSError as error:
            sock.close()
            raise ConnectionRejected("left", f"it left: {error.strerror}", is_ordinary=True) from None
        except BaseException:
            sock.close()
            raise

    async def _connect(self, sock: socket.socket, tls: ssl.SSLContext | None, slot: ConnectionSlot) -> C:
        """Give the socket to a transport, which closes it whatever happens."""
        # Made here, not taken from the loop's answer: uvloop returns its own TLS protocol in place of ours.
        connection = self._make_connection(slot)
        # The loop may see only that the client left; the TLS object knows why it had been refused.
        refusals: list[ssl.SSLError] = []
        on_refusal.set(refusals.append)  # for this task, which makes no other connection
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: cast(asyncio.Protocol, connection),
                sock,
                ssl=tls,
                ssl_handshake_timeout=self._options.handshake_timeout_s if tls else None,
                ssl_shutdown_timeout=_SHUTDOWN_S if tls else None,
            )
        except OSError as error:
            raise rejection_of(refusals[0] if refusals else error) from None
        if tls is not None:
            undo = pace_reads(transport, self._loop)
            connection.closed.add_done_callback(lambda _: undo())
        return connection

    def _choose(self, first: bytes) -> ssl.SSLContext | None:
        """The TLS context for a client that began with `first`, None for plaintext."""
        if not first:
            raise ConnectionRejected("left", "it closed without sending anything", is_ordinary=True)
        if first[0] == _TLS_RECORD:
            if self._tls is None:
                raise ConnectionRejected("tls", "it used TLS, and this listener has no certificate")
            return self._tls
        if not self._options.plaintext:
            raise ConnectionRejected("plaintext", "it did not use TLS, and this listener accepts only TLS")
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

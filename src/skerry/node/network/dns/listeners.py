"""Sockets of the name server: datagrams and connections at one address.

Each turn of the loop takes a limited number of datagrams, so that the agent goes on under a flood. A
connection is closed when it is idle, when its client does not read, or when it sends too long a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final, cast

import structlog

from skerry.kit import listening_sockets
from skerry.node.network.bridge_namespace import OWN_NAMESPACE, BridgeNamespace
from skerry.node.network.dns.budgets import ClientLimit
from skerry.node.network.dns.messages import MAX_MESSAGE, MAX_QUERY
from skerry.node.network.dns.resolver import Client, Resolver

log = structlog.get_logger(__name__)

_PER_TURN: Final = 32  # datagrams
_BUFFER: Final = 1024 * 1024  # bytes of datagrams that the kernel keeps for us
_BACKLOG: Final = 64
_PIPELINE: Final = 16  # questions of a connection that wait for their answers
MAX_CONNECTIONS: Final = 256
MAX_CONNECTIONS_PER_CLIENT: Final = 16

Accepts = Callable[[str], bool]


class DnsListener:
    """One address, by datagrams and by connections."""

    def __init__(
        self,
        address: str,
        resolver: Resolver,
        accepts: Accepts,
        connections: ClientLimit,
        *,
        idle_s: float,
        namespace: BridgeNamespace = OWN_NAMESPACE,
    ) -> None:
        """`accepts` tells whether a client is answered at all; `namespace` has the address."""
        self.address = address
        self._resolver = resolver
        self._accepts = accepts
        self._connections = connections
        self._idle_s = idle_s
        self._namespace = namespace
        self._datagrams: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._open: set[_Connection] = set()

    async def open(self, port: int) -> DnsListener:
        """Listen. Raises OSError, and then on nothing."""
        # This first: a port that is chosen here is less likely to be in use for datagrams than the reverse.
        stream = _bind(self._namespace, socket.SOCK_STREAM, self.address, port)
        try:
            loop = asyncio.get_running_loop()
            try:
                port = stream.getsockname()[1]
                self._datagrams = _bind(self._namespace, socket.SOCK_DGRAM, self.address, port)
                self._server = await loop.create_server(self._connect, sock=stream, backlog=_BACKLOG)
            except BaseException:
                stream.close()
                raise
            loop.add_reader(self._datagrams, self._receive, self._datagrams)
        except BaseException:
            await self.close()
            raise
        return self

    @property
    def port(self) -> int:
        assert self._datagrams is not None
        return int(self._datagrams.getsockname()[1])

    async def close(self) -> None:
        if self._datagrams is not None:
            asyncio.get_running_loop().remove_reader(self._datagrams)
            self._datagrams.close()
            self._datagrams = None
        if self._server is not None:
            self._server.close()
            for connection in tuple(self._open):
                connection.abort()
            await self._server.wait_closed()
            self._server = None

    def _receive(self, datagrams: socket.socket) -> None:
        for _ in range(_PER_TURN):
            try:
                packet, sender = datagrams.recvfrom(MAX_QUERY + 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:  # of an earlier answer, which could not be delivered
                log.debug("dns.datagram_lost", error=repr(error))
                continue
            if self._accepts(sender[0]):
                self._resolver.handle(packet, Client(sender[0], self.address), self._answerer(sender))

    def _answerer(self, sender: tuple[str, int]) -> Callable[[bytes], None]:
        def answer(message: bytes) -> None:
            if self._datagrams is not None:
                with contextlib.suppress(OSError):  # its buffer is full, or the client is gone
                    self._datagrams.sendto(message, sender)

        return answer

    def _connect(self) -> asyncio.Protocol:
        return _Connection(self)


class _Connection(asyncio.Protocol):
    """Questions and answers, each after its length."""

    def __init__(self, listener: DnsListener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._client = Client("", listener.address, MAX_MESSAGE)
        self._received = bytearray()
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        listener = self._listener
        peer = transport.get_extra_info("peername")
        self._client = self._client._replace(address=peer[0] if peer else "")
        if not listener._accepts(self._client.address) or not listener._connections.acquire(
            self._client.address
        ):
            self._transport.abort()
            return
        self._is_counted = True
        listener._open.add(self)
        self._transport.set_write_buffer_limits(high=MAX_MESSAGE)
        self._restart_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._is_counted:
            self._listener._connections.release(self._client.address)
            self._listener._open.discard(self)
        self._transport = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._take_questions()

    def pause_writing(self) -> None:
        """The client does not read; the timer ends that if it goes on."""
        self._pause()

    def resume_writing(self) -> None:
        self._resume()

    def _restart_timer(self) -> None:
        """From a whole question or its answer on, so that a client cannot keep a place by single bytes."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._listener._idle_s, self.abort)

    def _pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _take_questions(self) -> None:
        while self._waiting < _PIPELINE and len(self._received) >= 2:
            length = int.from_bytes(self._received[:2], "big")
            if length > MAX_QUERY:
                self.abort()
                return
            if len(self._received) < 2 + length:
                return
            packet = bytes(self._received[2 : 2 + length])
            del self._received[: 2 + length]
            self._restart_timer()
            self._waiting += 1
            if not self._listener._resolver.handle(packet, self._client, self._answer):
                self.abort()  # it may not ask now, or what it sent is no question
                return
        if self._waiting >= _PIPELINE:
            self._pause()

    def _answer(self, message: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(len(message).to_bytes(2, "big") + message)
        self._restart_timer()
        self._waiting -= 1
        if self._waiting == _PIPELINE - 1:  # it was paused
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._resume()
        self._take_questions()


def _bind(namespace: BridgeNamespace, kind: socket.SocketKind, address: str, port: int) -> socket.socket:
    name = f"dns {kind.name} {address}"
    inherited = listening_sockets.current().adopt(name, (address, port), kind)
    if inherited is not None:
        if port in (0, inherited.getsockname()[1]):
            return inherited
        inherited.close()
    bound = namespace.open_socket(socket.AF_INET, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        if kind is socket.SOCK_STREAM:
            # Connections of an earlier agent may linger. Not for datagrams, of which two programs would then
            # share the address.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        bound.bind((address, port))
    except BaseException:
        bound.close()
        raise
    listening_sockets.current().register(name, bound)
    return bound

"""The gRPC server: its services, its listeners, and how it stops.

The daemon makes one, gives it bound sockets and TLS contexts, and stops it. Which services there are is the
daemon's choice; `skerry.transport.grpc.health` adds health and reflection. TLS contexts must offer `h2` by
ALPN.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from grpclib._typing import IServable

from skerry.kit import listening_sockets, unix_addresses
from skerry.kit.clock import Clock, SystemClock
from skerry.model import errors
from skerry.model.settings import GrpcSettings
from skerry.transport import unix_sockets
from skerry.transport.access.gate import AccessGate
from skerry.transport.access.peers import is_loopback
from skerry.transport.admission import AdmissionLimits
from skerry.transport.grpc.connections import ConnectionLimits, GrpcServerConnection
from skerry.transport.grpc.dispatcher import GrpcDispatcher, methods_of
from skerry.transport.listeners import HANDSHAKE_GRACE_S, Listener, ListenerOptions

log = structlog.get_logger(__name__)

_LAST_WORDS_S: Final = 1.0  # for calls that were cancelled to tell their clients


class GrpcServer:
    """Serves the same services on every listener. An RPC without an access row is refused."""

    def __init__(
        self,
        services: Sequence[IServable],
        gate: AccessGate,
        settings: GrpcSettings,
        *,
        clock: Clock | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._settings = settings
        self._gate = gate
        calls = GrpcDispatcher(
            methods_of(services),
            gate,
            clock or SystemClock(),
            max_message_bytes=settings.max_message_bytes,
        )
        self._connection = partial(GrpcServerConnection, calls, limits or ConnectionLimits())
        self._listeners: list[Listener[GrpcServerConnection]] = []
        self._paths: list[Path] = []
        gate.listen(self._end_refused)

    async def listen_tcp(self, sock: socket.socket, tls: ssl.SSLContext | None, *, plaintext: bool) -> None:
        """Serve on a bound TCP socket and own it from then on. Plaintext is taken only on loopback."""
        host = sock.getsockname()[0]
        if plaintext and not is_loopback(host):
            raise errors.FailedPrecondition(
                f"{host} is not loopback; gRPC without TLS is served only on loopback"
            )
        sock.listen(1024)
        self._listen("tcp", sock, tls, plaintext=plaintext)

    async def listen_unix(self, path: Path, tls: ssl.SSLContext) -> None:
        """Serve on a new unix socket at `path`, always with TLS and client certificates."""
        if tls.verify_mode is not ssl.CERT_REQUIRED:
            raise ValueError("others may connect to the socket, so its TLS context must require certificates")
        if len(os.fsencode(path)) > unix_addresses.MAX_BYTES:
            raise errors.FailedPrecondition(
                f"{path} is longer than the {unix_addresses.MAX_BYTES} bytes that clients can dial; choose a "
                "shorter path with --socket"
            )
        self._listen(
            "unix", unix_sockets.bind(path, unix_sockets.permissions_of(self._settings)), tls, plaintext=False
        )
        self._paths.append(path)

    async def stop(self, within_s: float) -> None:
        """Accept nothing more, let calls end for `within_s` seconds, then cancel them."""
        for listener in self._listeners:
            listener.close()
        for path in self._paths:
            unix_sockets.remove_stale(path)
        self._stop_connections()
        late = None
        if listening_sockets.current().is_shared:  # handshakes that go on are finished
            late = asyncio.get_running_loop().call_later(HANDSHAKE_GRACE_S, self._stop_connections)
        if not await self._drained(within_s):
            log.warning("server.cancels_calls", connections=len(self._open()), after_s=within_s)
            for connection in self._open():
                connection.cancel()
            if not await self._drained(_LAST_WORDS_S):
                for connection in self._open():
                    connection.abort()
                if not await self._drained(_LAST_WORDS_S):
                    log.error("server.left_calls", connections=len(self._open()))
        if late is not None:
            late.cancel()
        self._listeners.clear()
        self._paths.clear()

    def _stop_connections(self) -> None:
        for connection in self._open():
            if not connection.is_stopping:
                connection.stop()

    def _end_refused(self) -> None:
        """End the connections, with all their calls, whose certificates do not count any more."""
        for connection in self._open():
            if not self._gate.still_accepts(connection.peer):
                log.warning("connection.revoked", peer=connection.peer.address)
                connection.abort()

    def _listen(self, name: str, sock: socket.socket, tls: ssl.SSLContext | None, *, plaintext: bool) -> None:
        options = ListenerOptions(
            tls=tls,
            plaintext=plaintext,
            limits=AdmissionLimits(self._settings.max_connections, self._settings.max_connections_per_source),
            handshake_timeout_s=self._settings.handshake_timeout_s,
            trusted_uids=self._gate.trusted_uids,
        )
        self._listeners.append(Listener(name, sock, options, self._connection))
        log.info("grpc.listening", listener=name, tls=tls is not None, plaintext=plaintext)

    def _open(self) -> list[GrpcServerConnection]:
        return [connection for listener in self._listeners for connection in listener.connections]

    async def _drained(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                for listener in self._listeners:
                    await listener.drained()
        except TimeoutError:
            return False
        return True

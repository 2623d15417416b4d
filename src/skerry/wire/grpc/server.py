"""The gRPC server: its services, its listeners, and how it stops.

The daemon makes one, gives it bound sockets and TLS contexts, and stops it. Which services there are is the
daemon's choice; `skerry.wire.grpc.standard` adds health and reflection. TLS contexts must offer `h2` by ALPN.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from grpclib._typing import IServable

from skerry.kit.clock import Clock, SystemClock
from skerry.model import errors
from skerry.model.settings import GrpcSettings
from skerry.wire.gate import Gate
from skerry.wire.grpc import sockets
from skerry.wire.grpc.calls import Calls, methods_of
from skerry.wire.grpc.connections import Connection, Limits
from skerry.wire.grpc.listener import Listener
from skerry.wire.peers import is_loopback

log = structlog.get_logger(__name__)

_LAST_WORDS_S: Final = 1.0  # for calls that were cancelled to tell their clients


class GrpcServer:
    """Serves the same services on every listener. An RPC without an access row is refused."""

    def __init__(
        self,
        services: Sequence[IServable],
        gate: Gate,
        settings: GrpcSettings,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._settings = settings
        calls = Calls(
            methods_of(services),
            gate,
            clock or SystemClock(),
            max_message_bytes=settings.max_message_bytes,
        )
        self._connection = partial(Connection, calls, limits or Limits())
        self._listeners: list[Listener[Connection]] = []
        self._paths: list[Path] = []

    async def listen_tcp(self, sock: socket.socket, tls: ssl.SSLContext | None, *, plaintext: bool) -> None:
        """Serve on a bound TCP socket and own it from then on. Plaintext is taken only on loopback."""
        host = sock.getsockname()[0]
        if plaintext and not is_loopback(host):
            raise errors.Refused(f"{host} is not loopback; gRPC without TLS is served only on loopback")
        sock.listen(1024)
        self._listen("tcp", sock, tls, plaintext=plaintext)

    async def listen_unix(self, path: Path, tls: ssl.SSLContext) -> None:
        """Serve on a new unix socket at `path`, always with TLS and client certificates."""
        if tls.verify_mode is not ssl.CERT_REQUIRED:
            raise ValueError(
                "anybody can connect to the socket, so its TLS context must require certificates"
            )
        self._listen("unix", sockets.bind(path), tls, plaintext=False)
        self._paths.append(path)

    async def stop(self, within_s: float) -> None:
        """Accept nothing more, let calls end for `within_s` seconds, then cancel them."""
        for listener in self._listeners:
            listener.close()
        for path in self._paths:
            sockets.remove_stale(path)
        for connection in self._open():
            connection.stop()
        if not await self._drained(within_s):
            log.warning("server.cancels_calls", connections=len(self._open()), after_s=within_s)
            for connection in self._open():
                connection.cancel()
            if not await self._drained(_LAST_WORDS_S):
                for connection in self._open():
                    connection.abort()
                if not await self._drained(_LAST_WORDS_S):
                    log.error("server.left_calls", connections=len(self._open()))
        self._listeners.clear()
        self._paths.clear()

    def _listen(self, name: str, sock: socket.socket, tls: ssl.SSLContext | None, *, plaintext: bool) -> None:
        listener = Listener(
            name,
            sock,
            self._connection,
            tls=tls,
            plaintext=plaintext,
            max_connections=self._settings.max_connections,
            handshake_timeout_s=self._settings.handshake_timeout_s,
        )
        self._listeners.append(listener)
        log.info("grpc.listening", listener=name, tls=tls is not None, plaintext=plaintext)

    def _open(self) -> list[Connection]:
        return [connection for listener in self._listeners for connection in listener.connections]

    async def _drained(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                for listener in self._listeners:
                    await listener.drained()
        except TimeoutError:
            return False
        return True

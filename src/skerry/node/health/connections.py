"""Connections to a port of an instance, from inside of its network namespace, for gRPC checks and metrics.

The instance's own address is dialled first, as others would; a server that listens on the loopback address
alone is found there. `http_probe` and `grpc_probe` speak over a connection; checks by HTTP and TCP, which run
far more often, do without it (`socket_probe`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Awaitable
from types import TracebackType
from typing import Final, NamedTuple

_LOOPBACK: Final = "127.0.0.1"
CHUNK: Final = 64 * 1024


class ProbeTarget(NamedTuple):
    """A port, and the addresses that are tried one after the other."""

    hosts: tuple[str, ...]
    port: int

    @staticmethod
    def of(address: str, port: int) -> ProbeTarget:
        """Without an `address` only the loopback address is tried."""
        return ProbeTarget((address, _LOOPBACK) if address else (_LOOPBACK,), port)


class ProbeConnection:
    """`async with ProbeConnection(opening, target) as connection:` closes it, connected or not."""

    def __init__(self, opening: Awaitable[socket.socket], target: ProbeTarget) -> None:
        """`opening` comes to a socket that is not connected and does not block."""
        self._opening = opening
        self._hosts = target.hosts
        self.port = target.port
        self.host = self._hosts[0]

    async def __aenter__(self) -> ProbeConnection:
        """Raises OSError."""
        self._socket = await self._opening
        try:
            await self._connect()
        except BaseException:
            self._socket.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        for host in self._hosts:
            self.host = host
            try:
                number = self._socket.connect_ex((host, self.port))
                if number == errno.EINPROGRESS:
                    await loop.sock_connect(self._socket, (host, self.port))
                elif number:
                    raise OSError(number, os.strerror(number))
                return
            except ConnectionRefusedError:
                if host == self._hosts[-1]:
                    raise

    async def send(self, data: bytes) -> None:
        with contextlib.suppress(BlockingIOError):
            data = data[self._socket.send(data) :]  # a request is small, and the connection new
        if data:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def receive(self) -> bytes:
        """Some bytes; none if the other side has closed it."""
        return await asyncio.get_running_loop().sock_recv(self._socket, CHUNK)

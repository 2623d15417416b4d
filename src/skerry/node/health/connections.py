"""Connections for checks: to a port of an instance, from inside of its network namespace.

The instance's own address is dialled first, as others would; a server that listens on the loopback address
alone is found there. What is said over a connection is `http_probe`'s and `grpc_probe`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Awaitable
from types import TracebackType
from typing import Final

_LOOPBACK: Final = "127.0.0.1"
_CHUNK: Final = 64 * 1024


class ProbeConnection:
    """`async with ProbeConnection(opening, address, port) as connection:` closes it, connected or not."""

    def __init__(self, opening: Awaitable[socket.socket], address: str, port: int) -> None:
        """`opening` comes to a socket that is not connected and does not block. Without an `address` only the
        loopback address is tried."""
        self._opening = opening
        self._hosts = (address, _LOOPBACK) if address else (_LOOPBACK,)
        self.port = port
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
                    # A handshake on one machine is over by now. To find that out by a second call is cheaper
                    # than to wait for the loop.
                    number = self._socket.connect_ex((host, self.port))
                if number == errno.EALREADY:
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
        return await asyncio.get_running_loop().sock_recv(self._socket, _CHUNK)

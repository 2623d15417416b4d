"""The way into a container that is called: connections to one port of one process, kept between calls.

A connection leads to that process or nowhere. As long as it lives its address is its own, so a connection is
good if the process still lives after it was made; what a dead process had, somebody else may have by then. A
container without a network is entered by its namespace. Knows nothing of containers or calls.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from pathlib import Path
from typing import Final

from skerry.kit.clock import Clock
from skerry.node.kernel import namespaces
from skerry.node.workers.http_client import WorkerHttpConnection

# A connection that is closed just as a call goes out has that call fail, and nobody knows whether it was
# made. Servers close those that nobody uses, some after two seconds: ours are closed long before. And some
# close every one without saying so: the first must last for a moment before any is used again. No second one
# is made in that moment: a server that answers one connection after the other would leave it waiting.
_KEPT_S: Final = 1.0
_PROOF_S: Final = 0.02
_CONNECT_S: Final = 5.0
_LOOPBACK: Final = "127.0.0.1"
_ENDED: Final = "its process has ended"


class PortClosed(Exception):
    """Nobody opens: the process has ended, or does not listen."""


class PortConnections:
    """One port of one process."""

    def __init__(self, process: int, host: str, port: int, clock: Clock, *, namespace: int = -1) -> None:
        """`process` is a pidfd, and `namespace` one of a network, if `host` is not in ours; both are closed
        with the door."""
        self._process = process
        self._namespace = namespace
        self._host = host
        self._port = port
        self._clock = clock
        self._idle: list[WorkerHttpConnection] = []
        self._used: set[WorkerHttpConnection] = set()
        self._poll = select.poll()
        self._poll.register(process, select.POLLIN)
        self._is_closed = False
        self._server_keeps: bool | None = None  # its connections; None until it has shown that
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        loop.add_reader(process, self._end)

    @classmethod
    def to(cls, pid: int, address: str, port: int, clock: Clock, *, group: str) -> PortConnections:
        """To a process that was in the cgroup `group` when this began, and to no other that has its number
        by now; without an address, by its own loopback. Raises PortClosed if it has ended."""
        opened: list[int] = []
        try:
            opened.append(os.pidfd_open(pid))
            if not address:
                opened.append(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))
            if f"/{group}/" not in Path(f"/proc/{pid}/cgroup").read_text():
                raise ProcessLookupError
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            raise PortClosed(_ENDED) from None
        process, namespace = (*opened, -1)[:2]
        return cls(process, address or _LOOPBACK, port, clock, namespace=namespace)

    @property
    def has_ended(self) -> bool:
        """True as soon as the process has, whether or not the loop has got to know it."""
        return self._is_closed or self.ended.done() or bool(self._poll.poll(0))

    async def enter(self) -> WorkerHttpConnection:
        """A connection, to be given back or closed. Raises PortClosed."""
        self._check()
        if self._server_keeps is None and self._idle:
            await self._see_whether_it_keeps()
        if (kept := self._take_idle()) is not None:
            self._used.add(kept)
            return kept
        try:
            async with asyncio.timeout(_CONNECT_S):
                connection = await WorkerHttpConnection.open(self._make_socket(), self._host, self._port)
        except TimeoutError:
            raise PortClosed(f"port {self._port} takes no connection") from None
        except OSError as error:
            raise PortClosed(f"nothing listens on port {self._port}: {error.strerror}") from None
        try:
            self._check()
        except PortClosed:
            connection.close()
            raise
        self._used.add(connection)
        return connection

    def give_back(self, connection: WorkerHttpConnection) -> None:
        """It is kept for the next, if it is good for more."""
        self._used.discard(connection)
        if connection.is_usable and self._server_keeps is not False and not self.has_ended:
            connection.idle_since = self._clock.monotonic()
            self._idle.append(connection)
        else:
            connection.close()

    def discard(self, connection: WorkerHttpConnection) -> None:
        """It is closed."""
        self._used.discard(connection)
        connection.close()

    def close(self) -> None:
        """Cut every connection. Again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        asyncio.get_running_loop().remove_reader(self._process)
        self._cut()
        self.ended.cancel()
        os.close(self._process)
        if self._namespace >= 0:
            os.close(self._namespace)

    async def _see_whether_it_keeps(self) -> None:
        """Its first connection, from its first answer on: once in the life of a server."""
        idle_s = self._clock.monotonic() - self._idle[0].idle_since
        if idle_s < _PROOF_S:
            await asyncio.sleep(_PROOF_S - idle_s)
        if self._server_keeps is None and self._idle:
            self._server_keeps = self._idle[0].is_usable

    def _take_idle(self) -> WorkerHttpConnection | None:
        """One that can be relied on, if there is one."""
        now = self._clock.monotonic()
        while self._idle and now - self._idle[0].idle_since >= _KEPT_S:
            self._idle.pop(0).close()
        while self._server_keeps and self._idle:
            kept = self._idle.pop()
            if kept.is_usable:
                return kept
            self._server_keeps = False
            kept.close()
        return None

    def _check(self) -> None:
        if self.has_ended:
            raise PortClosed(_ENDED)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process)
        if not self.ended.done():
            self.ended.set_result(None)
        self._cut()

    def _cut(self) -> None:
        for connection in (*self._idle, *self._used):
            connection.close()
        self._idle.clear()
        self._used.clear()

    def _make_socket(self) -> socket.socket:
        if self._namespace < 0:
            return socket.socket()

        def enter_and_make() -> socket.socket:
            namespaces.enter_namespace(self._namespace)
            return socket.socket()

        return namespaces.in_own_thread(enter_and_make)

"""Connections to one port of one process in a container, kept between calls.

A connection reaches that process or fails. While the process lives its address is its own, so a connection is
valid if the process is still alive after it was made; afterwards the address may be reused. A container
without a network is reached through its namespace. Knows nothing of containers or calls.
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

# A connection that is closed just as a call is sent fails that call, and it is unknown whether it ran.
# Servers close
# idle ones, some after two seconds: ours are closed long before. And some close every one without announcing
# it:
# the first must last for a moment before any is reused. No second one is opened in that moment: a server that
# handles one connection after the other would leave it waiting.
_IDLE_LIMIT_S: Final = 1.0
_PROOF_S: Final = 0.02
_CONNECT_S: Final = 5.0
_LOOPBACK: Final = "127.0.0.1"
_ENDED: Final = "its process has ended"


class PortClosed(Exception):
    """The process has ended, or does not listen."""


class PortConnections:
    """Connections to one port of one process."""

    def __init__(self, process: int, host: str, port: int, clock: Clock, *, namespace: int = -1) -> None:
        """`process` is a pidfd, and `namespace` a descriptor of a network namespace, if `host` is not in
        ours; both are closed with this."""
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
        self._keeps_alive: bool | None = None  # whether it keeps connections open; None until that is known
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        loop.add_reader(process, self._end)

    @classmethod
    def to(cls, pid: int, address: str, port: int, clock: Clock, *, group: str) -> PortConnections:
        """To a process that was in the cgroup `group` when this began, not one that reused its pid; without
        an address, through its own loopback. Raises PortClosed if it has ended."""
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
        """True as soon as the process has, whether or not the loop has noticed."""
        return self._is_closed or self.ended.done() or bool(self._poll.poll(0))

    async def acquire(self) -> WorkerHttpConnection:
        """A connection, to be returned or discarded. Raises PortClosed."""
        self._check()
        if self._keeps_alive is None and self._idle:
            await self._probe_keep_alive()
        if (idle := self._take_idle()) is not None:
            self._used.add(idle)
            return idle
        try:
            async with asyncio.timeout(_CONNECT_S):
                connection = await WorkerHttpConnection.open(self._make_socket(), self._host, self._port)
        except TimeoutError:
            raise PortClosed(f"port {self._port} accepts no connection") from None
        except OSError as error:
            raise PortClosed(f"nothing listens on port {self._port}: {error.strerror}") from None
        try:
            self._check()
        except PortClosed:
            connection.close()
            raise
        self._used.add(connection)
        return connection

    def release(self, connection: WorkerHttpConnection) -> None:
        """Keep it for the next call, if it is usable."""
        self._used.discard(connection)
        if connection.is_usable and self._keeps_alive is not False and not self.has_ended:
            connection.idle_since = self._clock.monotonic()
            self._idle.append(connection)
        else:
            connection.close()

    def discard(self, connection: WorkerHttpConnection) -> None:
        """Close it."""
        self._used.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close every connection. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        asyncio.get_running_loop().remove_reader(self._process)
        self._cut()
        self.ended.cancel()
        os.close(self._process)
        if self._namespace >= 0:
            os.close(self._namespace)

    async def _probe_keep_alive(self) -> None:
        """Wait after its first reply: once per server."""
        idle_s = self._clock.monotonic() - self._idle[0].idle_since
        if idle_s < _PROOF_S:
            await asyncio.sleep(_PROOF_S - idle_s)
        if self._keeps_alive is None and self._idle:
            self._keeps_alive = self._idle[0].is_usable

    def _take_idle(self) -> WorkerHttpConnection | None:
        """A reliable one, if there is one."""
        now = self._clock.monotonic()
        while self._idle and now - self._idle[0].idle_since >= _IDLE_LIMIT_S:
            self._idle.pop(0).close()
        while self._keeps_alive and self._idle:
            idle = self._idle.pop()
            if idle.is_usable:
                return idle
            self._keeps_alive = False
            idle.close()
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

"""Front processes: started when there is use for them, supervised, and the links by which they serve.

Connections whose requests are direct are assigned to a front (`front_connection`), which does their I/O; the
server keeps a descriptor of its own, its slot, its peer and all that is known of it. Requests come over the
link as frames, many with one read, and are served in the order of their arrival by the same code as all
others: a front has no part in access, the queue, concurrency or counts. See docs/adr/0075.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, cast

import structlog

from skerry.kit import child_process, tasks
from skerry.kit.backoff import Backoff
from skerry.transport.http import front_frames as frames
from skerry.transport.http.front_metrics import FRONT_METRICS

log = structlog.get_logger(__name__)

_MODULE: Final = "skerry.transport.http.front_process"
_BACKOFF: Final = Backoff(first_s=0.2, cap_s=30.0)
_HEALTHY_AFTER_S: Final = 60.0  # a front that ran so long starts again at once
_END_S: Final = 2.0  # for a front to end with its link


class AssignedConnection(Protocol):
    """A connection at a front, as its link knows it."""

    def front_request(self, head: int, body: bytes) -> None:
        """A request with one of the heads that were assigned."""
        ...

    def front_returned(self, data: bytes) -> None:
        """It is the server's again, and `data` comes first."""
        ...

    def front_closed(self) -> None:
        """It has ended, or its front has."""
        ...


class FrontLease(NamedTuple):
    """A assigned connection, as its owner knows it."""

    link: FrontLink
    number: int

    def respond(self, response: frames.ResponseFrame) -> None:
        self.link.write(frames.encode_response(self.number, response))

    def decline(self) -> None:
        """The request that came last takes the server: have the connection returned with it."""
        self.link.write(frames.encode_frame(frames.DECLINE, self.number))

    def end(self) -> None:
        """The owner has ended the connection, or has it back."""
        self.link.forget(self.number)


class FrontLink(asyncio.Protocol):
    """The server's end of the link to one front."""

    def __init__(self, descriptors: socket.socket) -> None:
        self._descriptors = descriptors
        self._connections: dict[int, AssignedConnection] = {}
        self._last = 0
        self._transport: asyncio.WriteTransport | None = None
        self._reader = frames.FrameReader(self._handle)
        self.ended = asyncio.Event()

    @property
    def connections(self) -> int:
        return len(self._connections)

    def assign(
        self, connection: AssignedConnection, sock: socket.socket, heads: list[bytes]
    ) -> FrontLease | None:
        """Have the front read and write `sock`; None if it cannot."""
        if self._transport is None or self.ended.is_set():
            return None
        number = self._last + 1
        message = frames.encode_assignment(number, heads)
        if len(message) > frames.MAX_MESSAGE:
            return None
        try:
            socket.send_fds(self._descriptors, [message], [sock.fileno()])
        except OSError:  # it has many to take, or has ended
            return None
        self._last = number
        self._connections[number] = connection
        FRONT_METRICS.assigned += 1
        return FrontLease(self, number)

    def write(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    def forget(self, number: int) -> None:
        if self._connections.pop(number, None) is not None:
            FRONT_METRICS.assigned -= 1

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._descriptors.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()
        for connection in list(self._connections.values()):
            connection.front_closed()
        for number in list(self._connections):
            self.forget(number)

    def _handle(self, kind: int, number: int, payload: bytes) -> None:
        connection = self._connections.get(number)
        if connection is None:
            return  # it was ended here meanwhile
        if kind == frames.REQUEST:
            FRONT_METRICS.requests += 1
            connection.front_request(payload[0], payload[1:])
            return
        self.forget(number)
        if kind == frames.RETURN:
            FRONT_METRICS.returns += 1
            connection.front_returned(payload)
        else:
            connection.front_closed()


class FrontProcess(Protocol):
    """A front that runs."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int: ...

    def kill(self) -> None: ...


# Starts a front with its ends of the link and of the socket for descriptors, which are closed here then.
StartFront = Callable[[socket.socket, socket.socket], Awaitable[FrontProcess]]


class FrontPool:
    """`has_fronts()`, which starts them, `assign(...)` connections, then `await stop()`."""

    def __init__(self, count: int, *, keep_alive_s: float, start: StartFront | None = None) -> None:
        self._count = count
        self._keep_alive_s = keep_alive_s
        self._start = start or self._start_process
        self._links: list[FrontLink] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopped = False
        self.pids: set[int] = set()  # of fronts that run

    def has_fronts(self) -> bool:
        """Whether one runs; the first who asks has them started."""
        if not self._tasks and not self._is_stopped:
            loop = asyncio.get_running_loop()
            self._tasks = [
                loop.create_task(self._supervise(index), name=f"front.{index}")
                for index in range(self._count)
            ]
        return bool(self._links)

    def assign(
        self, connection: AssignedConnection, sock: socket.socket, heads: list[bytes]
    ) -> FrontLease | None:
        """Assign to the front with the fewest connections; None if that is not possible now."""
        if not self._links:
            return None
        return min(self._links, key=lambda link: link.connections).assign(connection, sock, heads)

    async def stop(self) -> None:
        """End all fronts; the connections that are assigned end."""
        self._is_stopped = True
        await tasks.cancel_and_wait(self._tasks)

    async def _supervise(self, index: int) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            started = loop.time()
            try:
                await self._run(index)
            except OSError as error:
                log.error("front.failed", front=index, error=error.strerror or str(error))
            if loop.time() - started >= _HEALTHY_AFTER_S:
                failures = 0
            FRONT_METRICS.ends += 1
            delay_s = _BACKOFF.delay(failures)
            failures += 1
            log.warning("front.ended", front=index, restart_s=round(delay_s, 2))
            await asyncio.sleep(delay_s)

    async def _run(self, index: int) -> None:
        """One front from its start to its end."""
        ours, theirs = socket.socketpair()
        descriptors, their_descriptors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for sock in (ours, descriptors):
            sock.setblocking(False)
        link = FrontLink(descriptors)
        process = None
        try:
            with theirs, their_descriptors:
                process = await self._start(theirs, their_descriptors)
            await asyncio.get_running_loop().create_connection(lambda: link, sock=ours)
            self._links.append(link)
            self.pids.add(process.pid)
            FRONT_METRICS.running += 1
            log.info("front.started", front=index, pid=process.pid)
            try:
                await tasks.race(link.ended.wait(), process.wait())
            finally:
                self._links.remove(link)
                self.pids.discard(process.pid)
                FRONT_METRICS.running -= 1
        finally:
            link.close()
            ours.close()
            if process is not None:
                await _reap(process)

    async def _start_process(self, link: socket.socket, descriptors: socket.socket) -> FrontProcess:
        passed = [link.fileno(), descriptors.fileno()]
        return await child_process.start(
            [sys.executable, "-m", _MODULE, *map(str, passed), str(self._keep_alive_s)],
            stderr=None,
            pass_fds=passed,
            cwd="/",
            start_new_session=True,
        )


def front_count(configured: int, cores: int | None = None) -> int:
    """How many fronts `functions.fronts` means here: as many as it says, or for -1 by the cores that this
    process may use. On two a front would only move work, with one more process to wake. A call takes the
    server more time than one front, and each further front makes batches smaller."""
    if configured >= 0:
        return configured
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    return 0 if cores <= 2 else 1


async def _reap(process: FrontProcess) -> None:
    """Its link has ended, and so does it; else it is killed."""
    try:
        async with asyncio.timeout(_END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()

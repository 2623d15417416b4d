"""The process of one guest's network, as the agent uses it.

It is in the namespace of the uplink (`skerry.node.guest_networks.uplink`), where it runs the same network
and mesh as a node does. It ends with the agent; what it made stays, and the next one adopts it. If it is
killed it is started again.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import structlog

from skerry.kit import json_codec
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.node.guest_networks import messages
from skerry.node.guest_networks.messages import (
    Answer,
    Call,
    CloseNetwork,
    NetworkCondition,
    NodeReports,
    OpenNetwork,
    Reply,
    Request,
)
from skerry.node.guest_networks.uplink import run_inside
from skerry.node.network.attachments import Attachment

log = structlog.get_logger(__name__)

_MODULE: Final = "skerry.daemon.guest_network"
_REPLY_S: Final = 60.0
_END_S: Final = 10.0
_MAX_PENDING: Final = 16 * 1024 * 1024  # bytes that the process has not read yet


class GuestNetworkEvents(Protocol):
    """Receives what the process says by itself."""

    def reported(self, reports: NodeReports) -> None: ...

    def ended(self) -> None: ...


class GuestNetworkProcess:
    """One run of the process; created by `start`."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        events: GuestNetworkEvents,
    ) -> None:
        self._child = child
        self._reader = reader
        self._writer = writer
        self._events = events
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._is_over = False
        self.warnings: tuple[str, ...] = ()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, namespace: Path, options: OpenNetwork, events: GuestNetworkEvents
    ) -> tuple[GuestNetworkProcess, Mapping[str, Attachment]]:
        """Start it in the network namespace mounted on `namespace`; returns its attachments too. Raises
        Unavailable, FailedPrecondition (the subnet)."""
        ours, theirs = socket.socketpair()
        with theirs:
            child = await asyncio.to_thread(run_inside, namespace, lambda: _spawn(theirs))
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours, limit=messages.MAX_LINE)
        process = cls(child, reader, writer, events)
        try:
            reply = await process.call(options)
        except BaseException:
            await process.end()
            raise
        return process, {each.owner: each for each in reply.attached}

    @property
    def is_over(self) -> bool:
        return self._is_over

    async def call(self, call: Call) -> Reply:
        """Raises the error of the process, or Unavailable."""
        reply = self.send(call)
        try:
            async with asyncio.timeout(_REPLY_S):
                answer = await reply
        except TimeoutError:
            raise errors.Unavailable("the network of a guest does not answer; it is started again") from None
        answer.raise_error()
        return answer

    def send(self, call: Call) -> asyncio.Future[Reply]:
        """Without waiting; calls are done in order, but for attaching and detaching. Raises Unavailable."""
        if self._is_over:
            raise _gone()
        if self._writer.transport.get_write_buffer_size() > _MAX_PENDING:
            raise errors.Overloaded("the network of a guest is sent more than it can take")
        self._number += 1
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = reply
        messages.write_line(self._writer, Request(self._number, call))
        return reply

    async def close(self) -> tuple[Attachment, ...]:
        """End it in good order; the attachments that stay. Raises Unavailable."""
        try:
            return (await self.call(CloseNetwork())).attached
        finally:
            await self.end()

    async def end(self) -> None:
        """End it; it leaves what it made."""
        await cancel_and_wait([self._reading])
        self._fail_waiting()
        self._writer.close()
        await asyncio.to_thread(_reap, self._child)

    async def _read(self) -> None:
        try:
            while line := await messages.read_line(self._reader):
                self._take(json_codec.decode(line, Answer))  # type: ignore[arg-type]
        finally:
            self._is_over = True
            self._fail_waiting()
            self._events.ended()

    def _take(self, answer: Answer) -> None:
        match answer:
            case Reply():
                if (waiting := self._waiting.pop(answer.number, None)) is not None and not waiting.done():
                    waiting.set_result(answer)
            case NodeReports():
                self._events.reported(answer)
            case NetworkCondition():
                self.warnings = answer.warnings

    def _fail_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.done():
                each.set_exception(_gone())
                each.exception()  # a caller that does not wait need not know


def _spawn(theirs: socket.socket) -> subprocess.Popen[bytes]:
    descriptor = theirs.fileno()
    return subprocess.Popen(
        [sys.executable, "-m", _MODULE, str(descriptor)],
        stdin=subprocess.DEVNULL,
        pass_fds=[descriptor],
        cwd="/",
        start_new_session=True,
    )


def _reap(child: subprocess.Popen[bytes]) -> None:
    """Its input has ended: it ends by itself, or else is killed."""
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _gone() -> errors.Unavailable:
    return errors.Unavailable("the network of a guest has ended; it is started again")

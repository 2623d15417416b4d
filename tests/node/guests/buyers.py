"""Whoever borrows a cell, for tests: the other end of a tunnel, speaking as a control plane does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from skerry.model import errors
from skerry.model.ids import InstanceId
from skerry.model.node_messages import NodeHello, OrderUpdate, ReportAck, ServerMessage, SessionConfig
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.transport.links.nodes import messages, tunnel_connection
from skerry.transport.proto import nodes_pb2 as pb
from tests.node.agent.instances import worlds
from tests.support.waiting import eventually

QUICK = replace(worlds.TERMS, restart_base_s=0.01, restart_cap_s=0.05)


class End:
    """One end of a tunnel in memory."""

    def __init__(self, to: asyncio.Queue[bytes | errors.SkerryError | None]) -> None:
        self._to = to
        self.incoming: asyncio.Queue[bytes | errors.SkerryError | None] = asyncio.Queue(8)
        self.failure: errors.SkerryError | None = None

    async def receive(self) -> bytes | None:
        frame = await self.incoming.get()
        if isinstance(frame, errors.SkerryError):
            self.failure = frame
            raise frame
        return frame

    async def send(self, frame: bytes) -> None:
        await self._to.put(frame)

    async def end(self) -> None:
        await self._to.put(None)

    async def fail(self, error: errors.SkerryError) -> None:
        await self._to.put(error)


def tunnel() -> tuple[End, End]:
    """Both ends."""
    ours = End(asyncio.Queue())
    theirs = End(ours.incoming)
    ours._to = theirs.incoming
    return ours, theirs


class Buyer:
    """A control plane that gives orders over one tunnel and acknowledges what it is told."""

    def __init__(self, welcome: SessionConfig = QUICK, *, acknowledges: bool = True) -> None:
        self.near, self.far = tunnel()  # the far end is the node's
        self.welcome = welcome
        self.acknowledges = acknowledges
        self.hello: NodeHello | None = None
        self.reports: list[InstanceReport] = []
        self.heartbeats = 0
        self.failure: errors.SkerryError | None = None
        self._link: tunnel_connection.TunnelMessageStream[pb.ToNode, pb.FromNode] = (
            tunnel_connection.TunnelMessageStream(self.near, pb.FromNode)
        )
        self._sequence = 0
        self._tasks: list[asyncio.Future[None]] = []

    def begin(self, serve: Callable[[End], Awaitable[None]]) -> None:
        """`serve` is the node's, for the far end."""
        self._tasks = [asyncio.ensure_future(serve(self.far)), asyncio.ensure_future(self._listen())]

    async def _listen(self) -> None:
        try:
            self.hello = tunnel_connection.decode_first_hello(await self._link.recv_message())
            await self._link.send_message(messages.encode_welcome(self.welcome))
            while (message := await self._link.recv_message()) is not None:
                await self._receive(message)
        except errors.SkerryError as error:
            self.failure = error

    async def _receive(self, message: pb.FromNode) -> None:
        match message.WhichOneof("message"):
            case "heartbeat":
                self.heartbeats += 1
            case "reports":
                batch = messages.decode_reports(message.reports)
                self.reports += batch.reports
                if self.acknowledges:
                    await self.say(ReportAck(batch.sequence))

    async def say(self, *down: ServerMessage) -> None:
        for each in down:
            for part in messages.encode_server_message(each):
                await self._link.send_message(part)

    async def order(self, *orders: InstanceOrder, whole: bool = True) -> None:
        await self.welcomed()
        self._sequence += 1
        await self.say(OrderUpdate(self._sequence, is_full=whole, orders=orders))

    async def welcomed(self) -> NodeHello:
        return await eventually(lambda: self.hello, what="the node says hello")

    def last(self, instance: str = worlds.ID) -> InstanceReport | None:
        told = [report for report in self.reports if report.instance == instance]
        return told[-1] if told else None

    def statuses(self, instance: str = worlds.ID) -> list[str]:
        """Each once in a row: what is told again after a connect is no news."""
        told = [str(report.status) for report in self.reports if report.instance == InstanceId(instance)]
        return [status for at, status in enumerate(told) if at == 0 or told[at - 1] != status]

    async def until(self, status: str, instance: str = worlds.ID) -> InstanceReport:
        def reported() -> InstanceReport | None:
            last = self.last(instance)
            return last if last is not None and str(last.status) == status else None

        return await eventually(reported, what=f"{instance} is {status}, not {self.last(instance)}")

    def hang_up(self) -> None:
        self.far.incoming.put_nowait(errors.Unavailable("the tunnel was closed at its other end"))

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

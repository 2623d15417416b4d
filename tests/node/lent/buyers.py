"""Whoever borrows a cell, for tests: the other end of a tunnel, speaking as a control plane does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from skerry.model import errors
from skerry.model.ids import InstanceId
from skerry.model.orders import Order, Report
from skerry.model.sessions import Acknowledged, Down, Hello, Orders, Welcome
from skerry.wire.nodes import links, messages
from skerry.wire.proto import nodes_pb2 as pb
from tests.node.instances import worlds
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

    def __init__(self, welcome: Welcome = QUICK, *, acknowledges: bool = True) -> None:
        self.near, self.far = tunnel()  # the far end is the node's
        self.welcome = welcome
        self.acknowledges = acknowledges
        self.hello: Hello | None = None
        self.reports: list[Report] = []
        self.heartbeats = 0
        self.failure: errors.SkerryError | None = None
        self._link: links.Link[pb.ToNode, pb.FromNode] = links.Link(self.near, pb.FromNode)
        self._sequence = 0
        self._tasks: list[asyncio.Future[None]] = []

    def begin(self, serve: Callable[[End], Awaitable[None]]) -> None:
        """`serve` is the node's, for the far end."""
        self._tasks = [asyncio.ensure_future(serve(self.far)), asyncio.ensure_future(self._listen())]

    async def _listen(self) -> None:
        try:
            self.hello = links.hello_of(await self._link.recv_message())
            await self._link.send_message(messages.told_welcome(self.welcome))
            while (message := await self._link.recv_message()) is not None:
                await self._hear(message)
        except errors.SkerryError as error:
            self.failure = error

    async def _hear(self, message: pb.FromNode) -> None:
        match message.WhichOneof("message"):
            case "heartbeat":
                self.heartbeats += 1
            case "reports":
                batch = messages.reports_of(message.reports)
                self.reports += batch.reports
                if self.acknowledges:
                    await self.say(Acknowledged(batch.sequence))

    async def say(self, *down: Down) -> None:
        for each in down:
            for part in messages.told(each):
                await self._link.send_message(part)

    async def order(self, *orders: Order, whole: bool = True) -> None:
        await self.welcomed()
        self._sequence += 1
        await self.say(Orders(self._sequence, is_whole=whole, orders=orders))

    async def welcomed(self) -> Hello:
        return await eventually(lambda: self.hello, what="the node says hello")

    def last(self, instance: str = worlds.ID) -> Report | None:
        told = [report for report in self.reports if report.instance == instance]
        return told[-1] if told else None

    def statuses(self, instance: str = worlds.ID) -> list[str]:
        """Each once in a row: what is told again after a connect is no news."""
        told = [str(report.status) for report in self.reports if report.instance == InstanceId(instance)]
        return [status for at, status in enumerate(told) if at == 0 or told[at - 1] != status]

    async def until(self, status: str, instance: str = worlds.ID) -> Report:
        def reached() -> Report | None:
            last = self.last(instance)
            return last if last is not None and str(last.status) == status else None

        return await eventually(reached, within=60, what=f"{instance} is {status}, not {self.last(instance)}")

    def hang_up(self) -> None:
        self.far.incoming.put_nowait(errors.Unavailable("the tunnel was closed at its other end"))

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

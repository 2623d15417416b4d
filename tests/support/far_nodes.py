"""A node that is played by a test: what it does with its end of each tunnel to an instance."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from skerry.control.sessions.tunnels import TunnelBroker, TunnelEndpoint
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.streams import StreamRequest

Play = Callable[[TunnelEndpoint], Awaitable[None]]


class FarNode:
    """The way to a node that does what `play` says with its end of each tunnel."""

    def __init__(self, play: Play) -> None:
        self.asked: list[StreamRequest] = []
        self.ended: list[str] = []
        self._play = play
        self._tunnels = TunnelBroker()
        self._tasks: list[asyncio.Future[None]] = []

    def open_tunnel(
        self, node: NodeId, instance: InstanceId, ask: StreamRequest
    ) -> AbstractAsyncContextManager[TunnelEndpoint]:
        assert node == "n1"
        self.asked.append(ask)
        return self._tunnels.open(node, lambda id: self._tasks.append(asyncio.ensure_future(self._dial(id))))

    async def _dial(self, id: str) -> None:
        async with self._tunnels.dialled(NodeId("n1"), id) as end:
            try:
                await self._play(end)
                await end.end()
            except errors.SkerryError as error:
                await end.fail(error)
                self.ended.append(error.slug)
            else:
                self.ended.append("well")

    async def close(self) -> None:
        await cancel_and_wait(self._tasks)

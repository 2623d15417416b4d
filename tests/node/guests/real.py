"""A real node that lends cells: real cgroups and containers, and a buyer over a tunnel in memory."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skerry.kit.clock import SystemClock
from skerry.model.images import Image, ImageAccess, PullProgress
from skerry.model.node_messages import TunnelRequest
from skerry.model.orders import InstanceOrder
from skerry.model.statuses import DesiredStatus
from skerry.model.streams import GuestSessionRequest
from skerry.node.agent.instances.backends import InstanceBackends
from skerry.node.agent.instances.instances import NodeInstances
from skerry.node.agent.instances.tunnel_handler import TunnelHandler
from skerry.node.guests.leased_cells import LeasedCells
from skerry.node.images.images import Images
from skerry.transport.links.nodes.tunnel_connection import TunnelConnection
from tests.node.agent.instances import worlds
from tests.node.containers.real import Agent, Ground
from tests.node.guests.buyers import QUICK, Buyer, End
from tests.node.guests.ground import CONTRACT, contract
from tests.support.waiting import eventually


class AnyImages:
    """Images for guests that come from anywhere, for machines without a registry."""

    def __init__(self, images: Images) -> None:
        self._images = images

    async def ensure(
        self,
        reference: str,
        *,
        access: ImageAccess,
        owner: str,
        on_progress: Callable[[PullProgress], None],
    ) -> Image:
        return await self._images.ensure(reference, access=access, owner=owner, on_progress=on_progress)

    def release(self, owner: str) -> None:
        self._images.release(owner)


@dataclass
class Lender:
    """A node that is up."""

    agent: Agent
    leased: LeasedCells
    instances: NodeInstances
    tunnels: TunnelHandler
    buyers: list[Buyer] = field(default_factory=list)

    async def lend(self, wanted: InstanceOrder | None = None) -> None:
        wanted = wanted or contract()
        await self.instances.apply([wanted], is_full=False)
        await eventually(lambda: self.instances.copy(wanted.instance).history.status == "RUNNING")

    def buyer(self) -> Buyer:
        buyer = Buyer()
        self.buyers.append(buyer)

        async def serve(end: End) -> None:
            await self.tunnels.serve(TunnelRequest("t", CONTRACT, GuestSessionRequest()), end)

        buyer.begin(serve)
        return buyer

    async def clear(self) -> None:
        """All that was lent is taken back."""
        await self.instances.apply([], is_full=True)
        await eventually(lambda: not self.instances._controllers, within=90)


@contextlib.asynccontextmanager
async def lender(ground: Ground) -> AsyncIterator[Lender]:
    async with ground.agent() as agent:
        clock, folder = SystemClock(), ground.folder
        leased = await LeasedCells(
            folder / "lent",
            agent.cells,
            agent.containers,
            AnyImages(agent.images),
            ground.settings,
            clock,
            connect=TunnelConnection,
        ).open()
        instances = await NodeInstances(
            folder / "instances", InstanceBackends(agent.containers, agent.images, leased), clock
        ).open()
        await instances.set_config(QUICK)
        here = Lender(agent, leased, instances, TunnelHandler(instances, agent.containers, leased))
        try:
            yield here
        finally:
            for buyer in here.buyers:
                await buyer.leave()
            await instances.close()
            await leased.close()


def guests_order(
    *arguments: str, desired: DesiredStatus = DesiredStatus.RUNNING, **more: Any
) -> InstanceOrder:
    return worlds.order(
        desired, uri=Ground.reference, **({"arguments": arguments or ("sleep", "1000")} | more)
    )


def group_of(ground: Ground, cell: str, controller: str) -> Path:
    """Where the limits of a cell are in the file system of cgroups."""
    top = Path("/sys/fs/cgroup")
    v1 = top / controller / ground.root / cell
    return v1 if v1.is_dir() else top / ground.root / cell

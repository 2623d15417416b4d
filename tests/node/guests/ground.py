"""A node in memory that lends cells: agents on it come and go, and so do those who borrow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.cells import own_name
from skerry.model.containers import ContainerState, ContainerView
from skerry.model.ids import InstanceId
from skerry.model.node_messages import TunnelRequest
from skerry.model.orders import InstanceOrder
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.statuses import DesiredStatus
from skerry.model.streams import GuestSessionRequest, StreamRequest
from skerry.model.workloads import InstanceSpec, WorkloadKind
from skerry.node.agent.instances.backends import InstanceBackends
from skerry.node.agent.instances.instances import NodeInstances
from skerry.node.agent.instances.tunnel_handler import TunnelHandler
from skerry.node.containers.containers import Containers
from skerry.node.guests.leased_cells import LeasedCells
from skerry.node.guests.policy import guest_name
from skerry.transport.links.nodes.tunnel_connection import TunnelConnection
from tests.node.agent.instances import worlds
from tests.node.agent.instances.far_ends import FakeTunnel
from tests.node.containers.fakes import FakeCells, Process
from tests.node.containers.nodes import Node, unmark_record
from tests.node.guests.buyers import QUICK, Buyer, End
from tests.support.waiting import eventually

CONTRACT = InstanceId("contract-01hx")
CELL = "i-contract-01hx"
OWN = own_name(CELL)
BOUGHT = Resources(Millicores(500), Megabytes(64), Gigabytes(2))


def contract(
    desired: DesiredStatus = DesiredStatus.RUNNING,
    *,
    id: InstanceId = CONTRACT,
    resources: Resources = BOUGHT,
    **more: Any,
) -> InstanceOrder:
    spec = InstanceSpec(
        name="contract",
        uri=f"contract:{id}",
        kind=WorkloadKind.CELL,
        resources=resources,
        devices=more.pop("devices", ()),
    )
    return InstanceOrder(id, more.pop("generation", 1), spec, desired)


class Ground:
    """The machine, and what is up on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = Node(folder)
        self.machine = self.node.machine
        self.containers: Containers
        self.leased: LeasedCells
        self.instances: NodeInstances
        self.tunnels: TunnelHandler
        self._buyers: list[Buyer] = []
        self._serving: list[asyncio.Future[None]] = []

    async def open(self, *, max_instances: int = 256) -> None:
        self.containers = await self.node.agent()
        clock, images = self.machine.clock, self.node.images
        self.leased = await LeasedCells(
            self.folder / "lent",
            FakeCells(self.machine),  # type: ignore[arg-type]
            self.containers,
            images,
            self.node.settings,
            clock,
            connect=TunnelConnection,
            max_instances=max_instances,
        ).open()
        self.instances = await NodeInstances(
            self.folder / "instances", InstanceBackends(self.containers, images, self.leased), clock
        ).open()
        await self.instances.set_config(QUICK)
        self.tunnels = TunnelHandler(self.instances, self.containers, self.leased)

    def downgrade(self, *, has_owners: bool) -> None:
        """Have everything as a version left it that did not mark the names of its own cells."""
        self.node.downgrade(has_owners=has_owners)
        for path in (self.folder / "lent").glob("*/cell.json"):
            unmark_record(path, has_owners=has_owners)

    async def leave(self) -> None:
        """The agent ends, and the machine goes on."""
        for buyer in self._buyers:
            await buyer.leave()
        await cancel_and_wait(self._serving)
        await self.instances.close()
        await self.leased.close()
        await self.node.leave()

    async def lend(self, wanted: InstanceOrder | None = None) -> None:
        wanted = wanted or contract()
        await self.instances.apply([wanted], is_full=False)
        await self.until("RUNNING", wanted.instance)

    async def until(self, status: str, id: InstanceId = CONTRACT) -> None:
        await eventually(lambda: self.status(id) == status, what=f"{id} is {status}, not {self.status(id)}")

    def status(self, id: InstanceId = CONTRACT) -> str:
        try:
            return str(self.instances.copy(id).history.status)
        except errors.NotFound:
            return ""

    def buyer(self, id: InstanceId = CONTRACT, **more: Any) -> Buyer:
        """Somebody who is at the door."""
        buyer = Buyer(**more)
        self._buyers.append(buyer)

        async def serve(end: End) -> None:
            await self.tunnels.serve(TunnelRequest("t", id, GuestSessionRequest()), end)

        buyer.begin(serve)
        return buyer

    def request(self, request: StreamRequest, id: InstanceId = CONTRACT) -> FakeTunnel:
        tunnel = FakeTunnel()
        wanted = TunnelRequest("t", id, request)
        self._serving.append(asyncio.ensure_future(self.tunnels.serve(wanted, tunnel)))
        return tunnel

    def view(self, instance: str = worlds.ID, cell: str = CELL) -> ContainerView | None:
        """The container of a guest's instance."""
        try:
            return self.containers.get(guest_name(cell, InstanceId(instance)))
        except errors.NotFound:
            return None

    def process(self, instance: str = worlds.ID, cell: str = CELL) -> Process:
        return self.machine.main(f"{cell}/{guest_name(cell, InstanceId(instance))}")

    async def later(self, condition: Callable[[], Any], *, within: float = 20) -> None:
        """Wait for it; meanwhile time goes by quickly."""

        def look() -> Any:
            self.machine.clock.advance(1)
            return condition()

        await eventually(look, within=within)

    def runs(self, instance: str = worlds.ID) -> bool:
        view = self.view(instance)
        return view is not None and view.state is ContainerState.RUNNING

    def folders(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "lent").iterdir())

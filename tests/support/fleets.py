"""A control plane's knowledge of nodes, on a store in memory and a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from skerry.control.census import Mirror
from skerry.control.events import EventLog
from skerry.control.nodes import Nodes
from skerry.kit import jsonio
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import give_up
from skerry.model.events import Event
from skerry.model.ids import InstanceId, NodeId
from skerry.model.nodes import Facts, Node
from skerry.model.room import Gigabytes, Megabytes, Millicores, Room
from skerry.model.settings import EventSettings, FleetSettings
from skerry.model.statuses import Desired, Status
from skerry.model.workloads import Instance, Observed, Spec
from skerry.store.memory import MemoryStore
from tests.support.waiting import eventually

FINGERPRINT = "00000000" + "ab" * 28  # subnets are given from the pool's first on
FACTS = Facts("amd64", "Debian 12", "6.1.0", "0.1")
ROOM = Room(Millicores(4000), Megabytes(8000), Gigabytes(100))


@dataclass
class Fleet:
    """One server of a cloud, as far as nodes are concerned."""

    store: MemoryStore
    clock: ManualClock
    mirror: Mirror
    nodes: Nodes

    async def join(self, id: str, *, name: str = "", subnet: str = "", foreign: bool = False) -> Node:
        return await self.nodes.register(
            id, name or f"machine-{id}", FACTS, ROOM, {}, subnet=subnet, foreign=foreign
        )

    async def hear(self, *ids: str) -> None:
        """Let this server hear these nodes, and everybody know it."""
        for id in ids:
            self.nodes.pulse.heard(NodeId(id))
        await self.nodes.pulse.beat()
        await eventually(lambda: all(self.nodes.alive(NodeId(id)) for id in ids))

    async def pass_time(self, seconds: float) -> None:
        """Move the clock, in steps that this server does not miss, and let everybody notice."""
        until = self.clock.now() + seconds
        while (left := until - self.clock.now()) > 0:
            self.clock.advance(min(left, 2.0))
            await self.nodes.pulse.beat()
            await self.store.expire()
        await self.settle()

    async def settle(self) -> None:
        await self.mirror.caught_up()
        for _ in range(3):
            await asyncio.sleep(0)
        self.nodes.tell_of_losses()
        await self.nodes.settle()

    async def bind(self, instance: Instance) -> None:
        revision = await self.store.commit([self.mirror.records.put(instance)])
        await self.mirror.seen(revision)

    async def events(self, kind: str) -> list[Event]:
        entries = (await self.store.range("event/")).entries
        return [e for e in (jsonio.decode(entry.value, Event) for entry in entries) if e.kind == kind]


@asynccontextmanager
async def fleet_on(
    store: MemoryStore,
    clock: ManualClock,
    settings: FleetSettings | None = None,
    *,
    server: str = "http://one:8080",
    fingerprint: str = FINGERPRINT,
) -> AsyncIterator[Fleet]:
    """One server on this store, with its loops."""
    mirror = Mirror(store)
    nodes = Nodes(
        store,
        EventLog(store, clock, EventSettings()),
        mirror,
        clock,
        settings or FleetSettings(),
        fingerprint=fingerprint,
        server=server,
    )
    loops = [asyncio.ensure_future(mirror.run()), asyncio.ensure_future(nodes.run())]
    try:
        await mirror.ready()
        await nodes.ready()
        yield Fleet(store, clock, mirror, nodes)
    finally:
        await give_up(loops)


def instance_on(
    node: str | None,
    id: str = "i1",
    *,
    status: Status = Status.RUNNING,
    generation: int = 1,
    desired: Desired = Desired.RUNNING,
) -> Instance:
    return Instance(
        InstanceId(id),
        Spec(name="web", uri="example.org/web:1"),
        created_at=0.0,
        observed=Observed(status, 0.0),
        desired=desired,
        node=None if node is None else NodeId(node),
        generation=generation,
    )

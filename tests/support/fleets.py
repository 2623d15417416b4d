"""A control plane's knowledge of nodes, on a store in memory and a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceTable
from skerry.control.nodes.pause_aware_clock import TICK_S
from skerry.control.nodes.registry import NodeRegistry
from skerry.kit import json_codec
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model.container_options import NodeFeature
from skerry.model.events import Event
from skerry.model.ids import InstanceId, NodeId
from skerry.model.node_messages import NodeHello
from skerry.model.nodes import Node, NodeFacts
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.settings import EventSettings, FleetSettings
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec, ObservedState
from skerry.store.local.memory import MemoryStore
from tests.support.waiting import eventually

FINGERPRINT = "00000000" + "ab" * 28  # subnets are given from the pool's first on
FACTS = NodeFacts("amd64", "Debian 12", "6.1.0", "0.1", runs_checks=True, features=tuple(NodeFeature))
ROOM = Resources(Millicores(4000), Megabytes(8000), Gigabytes(100))


@dataclass
class Fleet:
    """One server of a cloud, as far as nodes are concerned."""

    store: MemoryStore
    clock: ManualClock
    instance_table: InstanceTable
    nodes: NodeRegistry

    async def join(
        self,
        id: str,
        *,
        name: str = "",
        subnet: str = "",
        occupied: Sequence[str] = (),
        former: Sequence[str] = (),
        foreign: bool = False,
    ) -> Node:
        hello = NodeHello(
            name or f"machine-{id}",
            FACTS,
            ROOM,
            subnet=subnet,
            occupied=tuple(occupied),
            former=tuple(former),
        )
        return await self.nodes.register(id, hello, foreign=foreign)

    async def hear(self, *ids: str) -> None:
        """Let this server hear these nodes, and everybody know it."""
        for id in ids:
            self.nodes.heartbeats.received(NodeId(id))
        await self.nodes.heartbeats.publish()
        await eventually(lambda: all(self.nodes.heartbeat(NodeId(id)) for id in ids))

    async def pass_time(self, seconds: float) -> None:
        """Move the clock, in steps that this server does not miss, and let everybody notice."""
        until = self.clock.now() + seconds
        while (left := until - self.clock.now()) > 0:
            self.clock.advance(min(left, TICK_S))
            self.nodes.heartbeat_clock.tick()
            await self.nodes.heartbeats.publish()
            await self.store.expire()
        await self.settle()

    async def settle(self) -> None:
        await self.instance_table.sync()
        for _ in range(3):
            await asyncio.sleep(0)
        self.nodes.notify_overdue()
        await self.nodes.update_all()

    async def bind(self, instance: Instance) -> None:
        revision = await self.store.commit([self.instance_table.put(instance.id, instance)])
        await self.instance_table.wait_for_change(revision)

    async def events(self, kind: str) -> list[Event]:
        entries = (await self.store.range("event/")).entries
        return [e for e in (json_codec.decode(entry.value, Event) for entry in entries) if e.kind == kind]


def advance(seconds: float, *servers: Fleet) -> None:
    """Move the clock, which is one for all `servers`, in steps that none of them misses."""
    clock = servers[0].clock
    until = clock.now() + seconds
    while (left := until - clock.now()) > 0:
        clock.advance(min(left, TICK_S))
        for server in servers:
            server.nodes.heartbeat_clock.tick()


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
    instance_table = InstanceTable(store)
    nodes = NodeRegistry(
        store,
        EventLog(store, clock, EventSettings()),
        instance_table,
        clock,
        settings or FleetSettings(),
        fingerprint=fingerprint,
        server=server,
    )
    loops = [asyncio.ensure_future(instance_table.run()), asyncio.ensure_future(nodes.run())]
    try:
        await instance_table.ready()
        await nodes.ready()
        yield Fleet(store, clock, instance_table, nodes)
    finally:
        await cancel_and_wait(loops)


def instance_on(
    node: str | None,
    id: str = "i1",
    *,
    status: InstanceStatus = InstanceStatus.RUNNING,
    generation: int = 1,
    desired: DesiredStatus = DesiredStatus.RUNNING,
) -> Instance:
    return Instance(
        InstanceId(id),
        InstanceSpec(name="web", uri="example.org/web:1"),
        created_at=0.0,
        observed=ObservedState(status, 0.0),
        desired=desired,
        node=None if node is None else NodeId(node),
        generation=generation,
    )

"""The real control plane of one server on a store of the test, with or without anybody who decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from skerry.control import transitions
from skerry.control.census import Mirror
from skerry.control.events import EventLog
from skerry.control.instances import Instances
from skerry.control.leading import Leader
from skerry.control.nodes import Nodes
from skerry.control.reconciling import Reconciler
from skerry.control.sessions import Sessions
from skerry.control.workloads import Workloads
from skerry.control.writing import Writer
from skerry.kit.clock import Clock
from skerry.kit.tasks import give_up
from skerry.model.ids import NodeId
from skerry.model.nodes import Facts, Node
from skerry.model.orders import Report
from skerry.model.room import Gigabytes, Megabytes, Millicores, Room
from skerry.model.settings import FleetSettings
from skerry.model.statuses import Status
from skerry.model.workloads import Instance
from skerry.store.protocol import Store

ROOM = Room(Millicores(4000), Megabytes(8000), Gigabytes(100))


@dataclass
class Control:
    """What a server serves."""

    store: Store
    events: EventLog
    clock: Clock
    mirror: Mirror
    workloads: Workloads
    nodes: Nodes
    instances: Instances
    sessions: Sessions

    async def join(self, id: str, **labels: str) -> Node:
        """A node that is heard here."""
        node = await self.nodes.register(id, f"machine-{id}", Facts("amd64", "Debian 12"), ROOM, labels)
        self.nodes.pulse.heard(node.id)
        await self.nodes.pulse.beat()
        return node

    async def bind(self, id: str, node: str) -> Instance:
        """Place it there, though nobody decides."""
        writer = Writer(self.store, self.events, self.mirror)
        step = await writer.change(
            id, lambda known: transitions.bind(known.value, NodeId(node), at=self.clock.now())
        )
        assert step is not None
        return step.after

    async def report(self, id: str, *statuses: Status, **more: object) -> None:
        """What its node saw of it."""
        one = self.instances.get(id)
        reports = [
            Report(one.id, one.generation, status, self.clock.now(), **more)  # type: ignore[arg-type]
            for status in statuses
        ]
        await self.instances.reported(one.node, reports)


@asynccontextmanager
async def control_on(
    store: Store, events: EventLog, clock: Clock, *, leads: bool = False
) -> AsyncIterator[Control]:
    """One server; with `leads` it also places what is to be placed."""
    settings = FleetSettings()
    mirror = Mirror(store)
    workloads = Workloads(store, events, clock, mirror)
    nodes = Nodes(store, events, mirror, clock, settings, fingerprint="ab" * 32, server="http://here")
    reconciler = Reconciler(
        store, events, clock, settings, mirror=mirror, workloads=workloads, standings=nodes
    )
    instances = Instances(
        store,
        events,
        clock,
        mirror=mirror,
        workloads=workloads,
        standings=nodes,
        explain=reconciler.explain,
    )
    sessions = Sessions(nodes, instances, settings)
    leader = Leader(store, events, clock, name="here", lease_s=settings.leader_lease_s)
    works = [mirror.run(), workloads.run(), nodes.run()]
    if leads:
        works.append(reconciler.run(leader))
    loops = [asyncio.ensure_future(work) for work in works]
    try:
        for part in (mirror, workloads, nodes):
            await part.ready()
        yield Control(store, events, clock, mirror, workloads, nodes, instances, sessions)
    finally:
        sessions.close()
        await give_up(loops)

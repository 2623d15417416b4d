"""The real control plane of one server on a store of the test, with or without anybody who decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceTable
from skerry.control.instances import transitions
from skerry.control.instances.registry import InstanceRegistry
from skerry.control.instances.writer import TransitionWriter
from skerry.control.jobs.controller import JobController
from skerry.control.jobs.registry import JobRegistry
from skerry.control.jobs.table import JobTable
from skerry.control.leadership.election import LeaderElection
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.placement.reconciler import Reconciler
from skerry.control.schedules.controller import CallNames, ScheduleController
from skerry.control.schedules.registry import ScheduleRegistry
from skerry.control.schedules.table import ScheduleTable
from skerry.control.services.controller import ServiceController
from skerry.control.services.registry import ServiceRegistry
from skerry.control.services.tables import ServiceTables
from skerry.control.sessions.node_session import NodeSessions
from skerry.control.workloads.registry import WorkloadRegistry
from skerry.kit.clock import Clock
from skerry.kit.tasks import cancel_and_wait
from skerry.model.container_options import NodeFeature
from skerry.model.ids import NodeId
from skerry.model.network import NamespaceEgress
from skerry.model.node_messages import NodeHello
from skerry.model.nodes import Node, NodeFacts
from skerry.model.orders import InstanceReport
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.settings import FleetSettings
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance
from skerry.store.protocol import Store

ROOM = Resources(Millicores(4000), Megabytes(8000), Gigabytes(100))


@dataclass
class Control:
    """What a server serves."""

    store: Store
    events: EventLog
    clock: Clock
    instance_table: InstanceTable
    workloads: WorkloadRegistry
    nodes: NodeRegistry
    instances: InstanceRegistry
    sessions: NodeSessions
    services: ServiceRegistry
    jobs: JobRegistry
    schedules: ScheduleRegistry

    async def join(self, id: str, **labels: str) -> Node:
        """A node that is heard here."""
        hello = NodeHello(
            f"machine-{id}",
            NodeFacts("amd64", "Debian 12", runs_checks=True, features=tuple(NodeFeature)),
            ROOM,
            labels,
        )
        node = await self.nodes.register(id, hello)
        self.nodes.heartbeats.heard(node.id)
        await self.nodes.heartbeats.beat()
        return node

    async def bind(self, id: str, node: str) -> Instance:
        """Place it there, though nobody decides."""
        writer = TransitionWriter(self.events, self.instance_table)
        return await writer.change(
            id, lambda known: transitions.bind(known.value, NodeId(node), at=self.clock.now())
        )

    async def report(self, id: str, *statuses: InstanceStatus, **more: object) -> None:
        """What its node saw of it."""
        one = self.instances.get(id)
        reports = [
            InstanceReport(one.id, one.generation, status, self.clock.now(), **more)  # type: ignore[arg-type]
            for status in statuses
        ]
        await self.instances.reported(one.node, reports)


@asynccontextmanager
async def control_on(
    store: Store, events: EventLog, clock: Clock, *, leads: bool = False, egress: tuple[str, ...] = ()
) -> AsyncIterator[Control]:
    """One server; with `leads` it also places what is to be placed. `egress` is the setting."""
    settings = FleetSettings(egress=egress)
    instance_table = InstanceTable(store)
    workloads = WorkloadRegistry(store, events, clock, instance_table)
    nodes = NodeRegistry(
        store, events, instance_table, clock, settings, fingerprint="ab" * 32, server="http://here"
    )
    reconciler = Reconciler(
        store, events, clock, settings, instance_table=instance_table, workloads=workloads, conditions=nodes
    )
    instances = InstanceRegistry(
        store,
        events,
        clock,
        instance_table=instance_table,
        workloads=workloads,
        conditions=nodes,
        explain=reconciler.explain,
        egress=NamespaceEgress.parse(settings.egress),
    )
    sessions = NodeSessions(nodes, instances, settings)
    tables = ServiceTables(store)
    services = ServiceRegistry(
        store,
        events,
        clock,
        tables=tables,
        instance_table=instance_table,
        conditions=nodes,
        placement=reconciler,
    )
    controller = ServiceController(
        store, events, clock, tables=tables, instance_table=instance_table, conditions=nodes
    )
    job_table, schedule_table = JobTable(store), ScheduleTable(store)
    jobs = JobRegistry(store, events, clock, job_table, instance_table)
    schedules = ScheduleRegistry(store, events, clock, schedule_table, lambda name: name == "there")
    job_controller = JobController(store, events, clock, settings, jobs=job_table, instances=instance_table)
    schedule_controller = ScheduleController(
        store,
        events,
        clock,
        schedules=schedule_table,
        jobs=job_table,
        calls=CallNames("mark", 3600.0),
    )
    leader = LeaderElection(store, events, clock, name="here", lease_s=settings.leader_lease_s)
    works = [instance_table.run(), workloads.run(), nodes.run(), tables.run()]
    works += [job_table.run(), schedule_table.run()]
    if leads:
        works += [leader.run(), reconciler.run(leader), controller.run(leader)]
        works += [job_controller.run(leader), schedule_controller.run(leader)]
    loops = [asyncio.ensure_future(work) for work in works]
    try:
        for part in (instance_table, workloads, nodes, tables, job_table, schedule_table):
            await part.ready()
        yield Control(
            store,
            events,
            clock,
            instance_table,
            workloads,
            nodes,
            instances,
            sessions,
            services,
            jobs,
            schedules,
        )
    finally:
        sessions.close()
        await cancel_and_wait(loops)

"""The real control plane of one server on a store of the test, with or without anybody who decides."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network

from skerry.control.alerts.registry import AlertRegistry
from skerry.control.alerts.tables import AlertTables
from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceTable
from skerry.control.instances import transitions
from skerry.control.instances.registry import InstanceRegistry
from skerry.control.instances.writer import TransitionWriter
from skerry.control.jobs.controller import JobController
from skerry.control.jobs.registry import JobRegistry
from skerry.control.jobs.table import JobTable
from skerry.control.leadership.election import LeaderElection
from skerry.control.mesh.peers import MeshPeers
from skerry.control.mesh.tables import MeshTables
from skerry.control.namespaces.admission import AdmissionStore
from skerry.control.namespaces.policies import RecordedPolicies
from skerry.control.namespaces.registry import NamespaceRegistry
from skerry.control.namespaces.usage import has_same_use, instance_use, snapshot_use, volume_use
from skerry.control.network.explanations import ConnectionExplainer
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.placement.reconciler import Reconciler
from skerry.control.routes.registry import RouteRegistry
from skerry.control.routes.table import RouteTable
from skerry.control.schedules.controller import CallNames, ScheduleController
from skerry.control.schedules.registry import ScheduleRegistry
from skerry.control.schedules.table import ScheduleTable
from skerry.control.secrets.delivery import SecretDeliveries
from skerry.control.secrets.followers import SecretFollowing, ServiceFollower, WorkloadFollower
from skerry.control.secrets.registry import SecretRegistry
from skerry.control.secrets.rotation import KeyRotation
from skerry.control.secrets.users import SecretUsers
from skerry.control.secrets.vault import SecretVault
from skerry.control.services.controller import ServiceController
from skerry.control.services.registry import ServiceRegistry
from skerry.control.services.tables import ServiceTables
from skerry.control.sessions.feeds import SessionFeeds
from skerry.control.sessions.node_session import NodeSessions
from skerry.control.snapshots.object_stores import StoreSource
from skerry.control.snapshots.registry import SnapshotRegistry
from skerry.control.snapshots.tables import OperationTable, OperationTables, SnapshotTable
from skerry.control.tls.deps import TlsDeps
from skerry.control.tls.registry import TlsRegistry
from skerry.control.tls.tables import TlsTable
from skerry.control.volumes.orders import VolumeOrders
from skerry.control.volumes.registry import VolumeRegistry
from skerry.control.volumes.reports import VolumeReports
from skerry.control.volumes.table import VolumeTable
from skerry.control.volumes.users import VolumeUsers
from skerry.control.workloads.registry import WorkloadRegistry
from skerry.daemon.volumes import TemplateTables
from skerry.kit.clock import Clock
from skerry.kit.tasks import cancel_and_wait
from skerry.model.container_options import NodeFeature
from skerry.model.ids import Namespace, NodeId
from skerry.model.mesh import MeshEncryption
from skerry.model.network import NamespaceEgress
from skerry.model.node_messages import NodeHello
from skerry.model.nodes import Node, NodeFacts
from skerry.model.orders import InstanceReport
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.settings import FleetSettings
from skerry.model.snapshot_settings import SnapshotSettings
from skerry.model.statuses import InstanceStatus
from skerry.model.tls_certificates import InternalDomains, NoWantedDomains
from skerry.model.tls_settings import TlsSettings
from skerry.model.workloads import Instance
from skerry.store.protocol import Store
from tests.support.alerts import Observed, sender
from tests.support.secrets import MemoryKeyFile

ROOM = Resources(Millicores(4000), Megabytes(8000), Gigabytes(100))


@dataclass
class Control:
    """What a server serves."""

    store: AdmissionStore
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
    namespaces: NamespaceRegistry
    secrets: SecretRegistry
    rotation: KeyRotation
    volumes: VolumeRegistry
    volume_orders: VolumeOrders
    snapshots: SnapshotRegistry
    connections: ConnectionExplainer
    tls: TlsRegistry
    routes: RouteRegistry
    mesh_tables: MeshTables
    mesh: MeshPeers
    alerts: AlertRegistry
    observed: Observed  # by alerts

    async def join(self, id: str, **labels: str) -> Node:
        """A node that is heard here."""
        hello = NodeHello(
            f"machine-{id}",
            NodeFacts("amd64", "Debian 12", runs_checks=True, features=tuple(NodeFeature)),
            ROOM,
            labels,
        )
        node = await self.nodes.register(id, hello)
        self.nodes.heartbeats.received(node.id)
        await self.nodes.heartbeats.publish()
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
    backend: Store, events: EventLog, clock: Clock, *, leads: bool = False, egress: tuple[str, ...] = ()
) -> AsyncIterator[Control]:
    """One server; with `leads` it also places what is to be placed. `egress` is the setting."""
    settings = FleetSettings(egress=egress)
    store = AdmissionStore(backend)
    instance_table = InstanceTable(store)
    store.count(
        instance_table,
        instance_use,
        is_exempt=lambda instance: instance.is_adopted,
        has_same=has_same_use,
    )
    vault = SecretVault(store, MemoryKeyFile(), clock)
    await vault.open()  # a second server of a test has no key, and needs none
    secrets = SecretRegistry(
        store, events, clock, vault, users=lambda namespace, kind, name: users.of(namespace, kind, name)
    )
    volume_table = VolumeTable(store)
    store.count(volume_table, volume_use, is_exempt=lambda volume: volume.node is not None)
    workloads = WorkloadRegistry(store, events, clock, instance_table, secrets)
    nodes = NodeRegistry(
        store, events, instance_table, clock, settings, fingerprint="ab" * 32, server="http://here"
    )
    reconciler = Reconciler(
        store,
        events,
        clock,
        settings,
        instance_table=instance_table,
        workloads=workloads,
        conditions=nodes,
    )
    reconciler.follow_quotas(store.quotas)
    reconciler.follow_volumes(volume_table)
    tables, job_table, schedule_table = ServiceTables(store), JobTable(store), ScheduleTable(store)
    reports = VolumeReports(events, clock, volume_table)
    volume_orders = VolumeOrders(volume_table, reports)
    templates = TemplateTables(tables, job_table, schedule_table)
    volumes = VolumeRegistry(
        store,
        events,
        clock,
        table=volume_table,
        users=VolumeUsers(instance_table, templates.uses),
        conditions=nodes,
        reports=reports,
    )
    snapshot_table, operation_table = SnapshotTable(store), OperationTable(store)
    store.count(snapshot_table, snapshot_use)
    snapshots = SnapshotRegistry(
        events,
        clock,
        tables=OperationTables(operation_table, snapshot_table, volume_table, instance_table),
        nodes=nodes,
        free=reconciler.free,
        stores=StoreSource(SnapshotSettings()),
    )
    policies = RecordedPolicies(store.quotas.table, NamespaceEgress.parse(settings.egress), instance_table)
    instances = InstanceRegistry(
        store,
        events,
        clock,
        instance_table=instance_table,
        workloads=workloads,
        conditions=nodes,
        explain=reconciler.explain,
        policies=policies,
    )
    instances.follow_volumes(volumes)
    deliveries = SecretDeliveries(
        secrets,
        instance_table.index,
        functions=list,
        runs_functions=lambda node: False,
        registry_of=lambda image: image.partition("/")[0],
    )
    feeds = SessionFeeds(secrets=deliveries, volumes=volume_orders)
    sessions = NodeSessions(nodes, instances, settings, feeds=feeds)
    instances.follow_policies(sessions.policy_changed)
    services = ServiceRegistry(
        store,
        events,
        clock,
        tables=tables,
        instance_table=instance_table,
        conditions=nodes,
        placement=reconciler,
    )
    services.use_secrets(secrets)
    services.follow_volumes(volumes)
    controller = ServiceController(
        store,
        events,
        clock,
        tables=tables,
        instance_table=instance_table,
        conditions=nodes,
    )
    controller.follow_quotas(store.quotas)
    controller.follow_volumes(volume_table)
    jobs = JobRegistry(store, events, clock, job_table, instance_table, secrets=secrets, mounts=volumes)
    schedules = ScheduleRegistry(
        store, events, clock, schedule_table, lambda name: name == "there", secrets=secrets
    )
    users = SecretUsers(instance_table, workloads, tables, job_table, schedule_table, list)
    following = SecretFollowing(
        secrets, [ServiceFollower(services, secrets), WorkloadFollower(workloads, secrets), schedules]
    )
    job_controller = JobController(store, events, clock, settings, jobs=job_table, instances=instance_table)
    job_controller.follow_quotas(store.quotas)

    def object_counts() -> dict[Namespace, Counter[str]]:
        return {name: Counter(instance=count) for name, count in instance_table.index.counts().items()}

    schedule_controller = ScheduleController(
        store,
        events,
        clock,
        schedules=schedule_table,
        jobs=job_table,
        calls=CallNames("mark", 3600.0),
    )
    leader = LeaderElection(store, events, clock, name="here", lease_s=settings.leader_lease_s)
    works = [store.quotas.table.run(), instance_table.run(), workloads.run(), nodes.run(), tables.run()]
    works += [job_table.run(), schedule_table.run(), volume_table.run()]
    works += [one.run() for one in secrets.tables.values()]
    tls_table = TlsTable(store)
    route_table = RouteTable(store)
    works += [snapshot_table.run(), operation_table.run(), tls_table.run(), route_table.run()]
    mesh_tables = MeshTables(store, clock)
    mesh = MeshPeers(nodes, mesh_tables, MeshEncryption.WIREGUARD)
    works += [mesh_tables.run(), mesh.run()]
    alert_tables, observed = AlertTables.of(store), Observed()
    works += [alert_tables.rules.run(), alert_tables.states.run()]
    if leads:
        works += [leader.run(), reconciler.run(leader), controller.run(leader)]
        works += [job_controller.run(leader), schedule_controller.run(leader), following.run(leader)]
    loops = [asyncio.ensure_future(work) for work in works]
    try:
        await store.quotas.table.ready()
        parts = (volume_table, snapshot_table, operation_table, route_table, secrets, tls_table, mesh_tables)
        for part in (
            instance_table,
            workloads,
            nodes,
            tables,
            job_table,
            schedule_table,
            *parts,
            *alert_tables,
        ):
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
            NamespaceRegistry(events, clock, store.quotas, object_counts),
            secrets,
            KeyRotation(store, vault, events, clock),
            volumes,
            volume_orders,
            snapshots,
            ConnectionExplainer(
                instance_table,
                nodes,
                policies,
                tables.services,
                IPv4Network(settings.subnets),
                IPv4Network(settings.service_subnet),
            ),
            TlsRegistry(
                TlsDeps(
                    tls_table, vault, events, clock, TlsSettings(acme_terms_agreed=True), InternalDomains()
                ),
                NoWantedDomains(),
            ),
            RouteRegistry(store, events, clock, route_table),
            mesh_tables,
            mesh,
            AlertRegistry(
                alert_tables, vault, events, clock, sender(), observed.sources(), url="http://hub:1323"
            ),
            observed,
        )
    finally:
        sessions.close()
        await cancel_and_wait(loops)

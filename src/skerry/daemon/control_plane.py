"""The control plane of this process: workloads, instances and nodes, placed and reconciled.

Called by `skerry.daemon.server_role`. Every server of a cloud serves all of it; which one of them decides is
settled by the lease of `skerry.control.leadership.election`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import IPv4Network

import msgspec
from grpclib._typing import IServable

from skerry.control.cluster.members import MemberDirectory
from skerry.control.cluster.servers import ServerDirectory
from skerry.control.instance_index import InstanceTable
from skerry.control.instances.registry import InstanceRegistry
from skerry.control.leadership.election import LeaderElection
from skerry.control.namespaces.policies import RecordedPolicies
from skerry.control.network.explanations import ConnectionExplainer
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.placement.reconciler import Reconciler
from skerry.control.recovery import order_receipts
from skerry.control.recovery.claims import ClaimProcessor
from skerry.control.routes.reports import RouteReports
from skerry.control.secrets.followers import ServiceFollower, WorkloadFollower
from skerry.control.secrets.users import SecretUsers
from skerry.control.sessions.cell_lister import CellLister
from skerry.control.sessions.feeds import SessionFeeds
from skerry.control.sessions.node_session import NodeSessions
from skerry.control.volumes.table import VolumeTable
from skerry.control.workloads.registry import WorkloadRegistry
from skerry.daemon import jobs, mesh, namespaces, network, routes, services, snapshots, tls, volumes
from skerry.daemon.jobs import JobParts
from skerry.daemon.mesh import MeshParts
from skerry.daemon.routes import RouteParts
from skerry.daemon.secrets import SecretParts
from skerry.daemon.server_base import ServerBase
from skerry.daemon.services import ServiceParts
from skerry.daemon.snapshots import SnapshotParts
from skerry.daemon.tls import TlsParts
from skerry.daemon.volumes import VolumeParts
from skerry.functions.registry.registry import FunctionRegistry
from skerry.model.authority_bundle import TrustedAuthorities
from skerry.model.callers import Role
from skerry.model.ids import NodeId
from skerry.model.network import NamespaceEgress
from skerry.transport.links.nodes.code_transfer import CodeService
from skerry.transport.links.nodes.departure import DepartureService
from skerry.transport.links.nodes.service import NodeSessionService, ServerTunnelService
from skerry.transport.links.nodes.tunnel_router import TunnelRouter
from skerry.wire.kudo import grpc_services
from skerry.wire.kudo.context import KudoContext
from skerry.wire.own.namespaces.endpoints import NamespaceContext
from skerry.wire.own.secrets.context import SecretContext


class ControlPlaneParts(msgspec.Struct, frozen=True):
    """The parts that are served."""

    instance_table: InstanceTable
    nodes: NodeRegistry
    instances: InstanceRegistry
    reconciler: Reconciler
    tunnels: TunnelRouter
    kudo: KudoContext
    services: ServiceParts
    jobs: JobParts
    namespaces: NamespaceContext
    secrets: SecretContext
    volumes: VolumeParts
    snapshots: SnapshotParts
    mesh: MeshParts
    tls: TlsParts
    routes: RouteParts
    grpc_services: list[IServable]
    sessions: NodeSessions
    servers: ServerDirectory
    members: MemberDirectory
    leader: LeaderElection
    ready: Callable[[], Awaitable[None]]  # when what is in the store is known
    place: Callable[[], None]  # begin to place instances, and to stand for election


def start(base: ServerBase, functions: FunctionRegistry, secrets: SecretParts) -> ControlPlaneParts:
    """Begin to read what is in the store, and to act on it."""
    store, events, clock, settings, loops = (
        base.store,
        base.events,
        base.clock,
        base.settings.fleet,
        base.loops,
    )
    instance_table = InstanceTable(store)
    volume_table = VolumeTable(store)
    namespaces.begin(base, instance_table, functions, volume_table)
    workloads = WorkloadRegistry(store, events, clock, instance_table, secrets.registry)
    nodes = NodeRegistry(
        store,
        events,
        instance_table,
        clock,
        settings,
        fingerprint=base.authority.fingerprint,
        server=base.addresses.url,
    )
    reconciler = Reconciler(
        store,
        events,
        clock,
        settings,
        instance_table=instance_table,
        workloads=workloads,
        conditions=nodes,
        settled=base.history.settled,
    )
    reconciler.follow_quotas(base.store.quotas)
    reconciler.follow_volumes(volume_table)
    volume_parts = volumes.start(base, volume_table, instance_table, nodes)
    policies = RecordedPolicies(
        base.store.quotas.table, NamespaceEgress.parse(settings.egress), instance_table
    )
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
    instances.follow_volumes(volume_parts.registry)
    loops.forever("instances", instance_table.run, critical=True)
    loops.forever("workloads", workloads.run, critical=True)
    loops.forever("nodes", nodes.run, critical=True)
    route_reports = RouteReports()
    service_parts = services.start(
        base,
        instance_table,
        nodes,
        instances,
        reconciler,
        volume_parts,
        secrets=secrets.registry,
        routes=route_reports,
    )
    job_parts = jobs.start(base, instance_table, functions, secrets.registry, volume_parts)
    service_registry = service_parts.context.services
    secrets.set_users(
        SecretUsers(
            instance_table,
            workloads,
            service_registry.tables,
            *job_parts.tables,
            functions.all,
        )
    )
    servers = ServerDirectory(
        store,
        name=base.addresses.url,
        address=base.addresses.for_nodes(),
        lease_s=math.ceil(settings.suspect_after_s),
    )
    members = MemberDirectory(store, nodes)
    loops.forever("servers", servers.run)
    loops.forever("members", members.run)

    def is_member(node: NodeId) -> bool:
        return nodes.condition(node) is not None and nodes.get(node).member is not None

    mesh_parts = mesh.start(base, nodes)
    network_feed = network.start(
        nodes, service_registry.tables, instance_table, policies, base.settings.fleet.service_subnet
    )
    mesh_parts.feed(network_feed)
    route_parts = routes.start(base, nodes, network_feed, service_registry, route_reports, functions)
    tls_parts = tls.start(base, nodes, secrets, route_parts.domains)
    network_feed.add(tls_parts.edge)
    network_feed.add(base.identity.offline_feed)
    network_feed.add(base.rotation)
    network_feed.handle(TrustedAuthorities, base.rotation.trusted)
    deliveries = secrets.deliveries(
        instance_table, functions, is_member=is_member, serves=tls_parts.edge.may_have
    )
    feeds = SessionFeeds(
        servers, members, functions, base.identity, deliveries, volume_parts.orders, network_feed
    )
    claims = _claims(base, instance_table, workloads)
    sessions = NodeSessions(nodes, instances, settings, feeds=feeds, claims=claims, here=base.node)
    instances.follow_policies(sessions.policy_changed)
    mesh_parts.follow_sessions(sessions, base)
    loops.forever("sessions", sessions.run)
    tunnels = TunnelRouter(sessions, servers, base.certificates.client_context)
    snapshot_parts = snapshots.start(base, volume_table, instance_table, nodes, reconciler, tunnels)
    leader = _election(base)

    def place() -> None:
        loops.forever("leader", leader.run)
        loops.forever("placing", lambda: reconciler.run(leader))
        job_parts.lead(leader)
        service_parts.lead(leader)
        snapshot_parts.lead(leader)
        tls_parts.lead(leader)
        loops.forever("ca rotation", lambda: base.rotation.lead(leader, partial(_connected, base, nodes)))
        secrets.lead(
            leader,
            [
                ServiceFollower(service_registry, secrets.registry),
                WorkloadFollower(workloads, secrets.registry),
                job_parts.context.schedules,
                functions,
            ],
        )

    async def ready() -> None:
        await base.store.quotas.table.ready()
        parts = (
            volume_parts,
            snapshot_parts,
            service_parts,
            job_parts,
            route_parts,
            secrets,
            mesh_parts,
            tls_parts,
        )
        for part in (instance_table, workloads, nodes, members, *parts):
            await part.ready()

    return ControlPlaneParts(
        instance_table=instance_table,
        nodes=nodes,
        instances=instances,
        reconciler=reconciler,
        tunnels=tunnels,
        kudo=KudoContext(workloads, instances, nodes, tunnels, clock, CellLister(nodes, tunnels, clock)),
        services=service_parts,
        jobs=job_parts,
        namespaces=namespaces.context(
            base,
            instance_table,
            workloads,
            service_parts,
            job_parts,
            functions,
            {
                "volume": volume_table,
                "tls": tls_parts.table,
                "route": route_parts.table,
                **{kind.value: table for kind, table in secrets.registry.tables.items()},
            },
            ConnectionExplainer(
                instance_table,
                nodes,
                policies,
                service_registry.tables.services,
                IPv4Network(settings.subnets, strict=False),
                IPv4Network(settings.service_subnet),
            ),
        ),
        secrets=SecretContext(secrets.registry, secrets.rotation, lambda: max(0, len(servers.addresses) - 1)),
        volumes=volume_parts,
        snapshots=snapshot_parts,
        mesh=mesh_parts,
        tls=tls_parts,
        routes=route_parts,
        grpc_services=[
            *_node_services(base, nodes, sessions, functions, is_member),
            *grpc_services.services(instances, nodes, base.identity, clock, settings),
        ],
        sessions=sessions,
        servers=servers,
        members=members,
        leader=leader,
        ready=ready,
        place=place,
    )


def _claims(base: ServerBase, instance_table: InstanceTable, workloads: WorkloadRegistry) -> ClaimProcessor:
    return ClaimProcessor(
        base.store,
        base.events,
        base.history,
        instance_table=instance_table,
        workloads=workloads,
        # The same for all servers of this cloud, and secret.
        key=base.authority.derive(order_receipts.KEY_USE),
    )


def _connected(base: ServerBase, nodes: NodeRegistry) -> list[str]:
    """Nodes that are alive and have a certificate."""
    holders = {one.node or one.name for one in base.identity.certificates() if one.role == Role.NODE}
    return [node for node in holders if nodes.heartbeat(NodeId(node)) is not None]


def _election(base: ServerBase) -> LeaderElection:
    return LeaderElection(
        base.store,
        base.events,
        base.clock,
        name=base.addresses.url,
        lease_s=base.settings.fleet.leader_lease_s,
        is_alone=base.is_alone,
    )


def _node_services(
    base: ServerBase,
    nodes: NodeRegistry,
    sessions: NodeSessions,
    functions: FunctionRegistry,
    is_member: Callable[[NodeId], bool],
) -> list[IServable]:
    """The gRPC services that nodes, and other servers, call."""
    return [
        NodeSessionService(sessions, base.clock, is_revoked=base.identity.is_revoked),
        ServerTunnelService(sessions),
        DepartureService(nodes, base.identity, base.clock),
        CodeService(functions.archive, is_member=is_member),
    ]

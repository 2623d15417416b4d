"""The control plane of this process: workloads, instances and nodes, placed and reconciled.

Called by `skerry.daemon.server_role`. Every server of a cloud serves all of it; which one of them decides is
settled by the lease of `skerry.control.leadership.election`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from grpclib._typing import IServable

from skerry.control.cluster.members import MemberDirectory
from skerry.control.cluster.servers import ServerDirectory
from skerry.control.instance_index import InstanceTable
from skerry.control.instances.registry import InstanceRegistry
from skerry.control.leadership.election import LeaderElection
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.placement.reconciler import Reconciler
from skerry.control.recovery import order_receipts
from skerry.control.recovery.claims import ClaimProcessor
from skerry.control.services.autoscaler import ServiceAutoscaler
from skerry.control.services.controller import ServiceController
from skerry.control.services.registry import ServiceRegistry
from skerry.control.services.tables import ServiceTables
from skerry.control.sessions.node_session import NodeSessions, SessionFeeds
from skerry.control.workloads.registry import WorkloadRegistry
from skerry.daemon import jobs
from skerry.daemon.jobs import JobParts
from skerry.daemon.server_base import ServerBase
from skerry.functions.registry.registry import FunctionRegistry
from skerry.model.ids import NodeId
from skerry.model.network import NamespaceEgress
from skerry.store.sqlite.store import SqliteStore
from skerry.transport.links.nodes.code_transfer import CodeService
from skerry.transport.links.nodes.departure import DepartureService
from skerry.transport.links.nodes.service import NodeSessionService, ServerTunnelService
from skerry.transport.links.nodes.tunnel_router import TunnelRouter
from skerry.wire.kudo import grpc_services
from skerry.wire.kudo.context import KudoContext
from skerry.wire.own.services.context import ServiceContext


@dataclass(frozen=True, slots=True)
class ControlPlaneParts:
    """The parts that are served."""

    instance_table: InstanceTable
    nodes: NodeRegistry
    instances: InstanceRegistry
    reconciler: Reconciler
    tunnels: TunnelRouter
    kudo: KudoContext
    service_context: ServiceContext
    jobs: JobParts
    services: list[IServable]
    sessions: NodeSessions
    servers: ServerDirectory
    members: MemberDirectory
    leader: LeaderElection
    ready: Callable[[], Awaitable[None]]  # when what is in the store is known
    place: Callable[[], None]  # begin to place instances, and to lead if nobody does


def start(base: ServerBase, functions: FunctionRegistry) -> ControlPlaneParts:
    """Begin to read what is in the store, and to act on it."""
    store, events, clock, settings = base.store, base.events, base.clock, base.settings.fleet
    identity, history, loops, server = base.identity, base.history, base.loops, base.addresses.url
    instance_table = InstanceTable(store)
    workloads = WorkloadRegistry(store, events, clock, instance_table)
    nodes = NodeRegistry(
        store, events, instance_table, clock, settings, fingerprint=base.authority.fingerprint, server=server
    )
    reconciler = Reconciler(
        store,
        events,
        clock,
        settings,
        instance_table=instance_table,
        workloads=workloads,
        conditions=nodes,
        settled=history.settled,
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
    tables = ServiceTables(store)
    controller = ServiceController(
        store,
        events,
        clock,
        tables=tables,
        instance_table=instance_table,
        conditions=nodes,
        settled=history.settled,
    )
    autoscaler = ServiceAutoscaler(
        store,
        events,
        clock,
        tables=tables,
        instance_table=instance_table,
        load=instances.load,
        hears=lambda node: (beat := nodes.heartbeat(node)) is not None and beat.server == server,
        server=server,
    )
    job_parts = jobs.start(base, instance_table, functions)
    servers = ServerDirectory(
        store,
        name=server,
        address=base.addresses.for_nodes(),
        lease_s=math.ceil(settings.suspect_after_s),
    )
    members = MemberDirectory(store, nodes)
    sessions = NodeSessions(
        nodes,
        instances,
        settings,
        feeds=SessionFeeds(servers, members, functions, identity),
        claims=ClaimProcessor(
            store,
            events,
            history,
            instance_table=instance_table,
            workloads=workloads,
            # The same for all servers of this cloud, and nobody else's.
            key=base.authority.derive(order_receipts.KEY_USE),
        ),
        here=base.node,
    )
    leader = LeaderElection(
        store,
        events,
        clock,
        name=server,
        lease_s=settings.leader_lease_s,
        # Its file is locked for as long as it is open; in etcd there may be anybody.
        is_alone=isinstance(store, SqliteStore),
    )
    loops.forever("instances", instance_table.run, critical=True)
    loops.forever("workloads", workloads.run, critical=True)
    loops.forever("nodes", nodes.run, critical=True)
    loops.forever("services", tables.run, critical=True)
    loops.forever("servers", servers.run)
    loops.forever("members", members.run)
    loops.forever("sessions", sessions.run)

    def is_member(node: NodeId) -> bool:
        return nodes.condition(node) is not None and nodes.get(node).member is not None

    def place() -> None:
        loops.forever("leader", leader.run)
        loops.forever("placing", lambda: reconciler.run(leader))
        job_parts.lead(leader)
        loops.forever("services.controller", lambda: controller.run(leader))
        loops.forever("services.autoscaler", lambda: autoscaler.run(leader))

    async def ready() -> None:
        for part in (instance_table, workloads, nodes, members, tables, job_parts):
            await part.ready()

    tunnels = TunnelRouter(sessions, servers, base.certificates.client_context)
    return ControlPlaneParts(
        instance_table=instance_table,
        nodes=nodes,
        instances=instances,
        reconciler=reconciler,
        tunnels=tunnels,
        kudo=KudoContext(workloads, instances, nodes, tunnels, clock),
        service_context=ServiceContext(
            ServiceRegistry(
                store,
                events,
                clock,
                tables=tables,
                instance_table=instance_table,
                conditions=nodes,
                placement=reconciler,
            )
        ),
        jobs=job_parts,
        services=[
            NodeSessionService(sessions, clock, is_revoked=identity.is_revoked),
            ServerTunnelService(sessions),
            DepartureService(nodes, identity, clock),
            CodeService(functions.archive, is_member=is_member),
            *grpc_services.services(instances, nodes, identity, clock, settings),
        ],
        sessions=sessions,
        servers=servers,
        members=members,
        leader=leader,
        ready=ready,
        place=place,
    )

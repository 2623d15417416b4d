"""The control plane of this process: workloads, instances and nodes, placed and reconciled.

Called by `skerry.daemon.roles` for `up` and `server`. Every server of a cloud serves all of it; which one of
them decides is settled by the lease of `skerry.control.leading`.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from grpclib._typing import IServable

from skerry.control.census import Mirror
from skerry.control.events import EventLog
from skerry.control.identity import Identity
from skerry.control.instances import Instances
from skerry.control.leading import Leader
from skerry.control.members import Members
from skerry.control.nodes import Nodes
from skerry.control.reconciling import Reconciler
from skerry.control.servers import Servers
from skerry.control.sessions import Sessions
from skerry.control.workloads import Workloads
from skerry.functions.registry import Functions
from skerry.kit.clock import Clock
from skerry.kit.tasks import Keeper
from skerry.model.ids import NodeId
from skerry.model.settings import FleetSettings
from skerry.store.protocol import Store
from skerry.store.sqlite import SqliteStore
from skerry.wire.kudo import grpc_services
from skerry.wire.kudo.context import Kudo
from skerry.wire.nodes.code import CodeService
from skerry.wire.nodes.service import NodeService, ServerService
from skerry.wire.nodes.ways import Ways


@dataclass(frozen=True, slots=True)
class Cluster:
    """The parts that are served."""

    mirror: Mirror
    nodes: Nodes
    instances: Instances
    reconciler: Reconciler
    ways: Ways
    kudo: Kudo
    services: list[IServable]
    sessions: Sessions
    servers: Servers
    members: Members
    leader: Leader
    ready: Callable[[], Awaitable[None]]  # when what is in the store is known
    place: Callable[[], None]  # begin to place instances, and to lead if nobody does


def start(
    store: Store,
    events: EventLog,
    identity: Identity,
    clock: Clock,
    settings: FleetSettings,
    *,
    functions: Functions,
    fingerprint: str,
    server: str,
    grpc: str,
    node: NodeId,
    tls: ssl.SSLContext,
    loops: Keeper,
) -> Cluster:
    """Begin to read what is in the store, and to act on it. `server` is where people reach this process,
    `grpc` (HOST:PORT) where nodes do, and `node` what it is called as one; with `tls` it asks other servers
    for what only they can reach.
    """
    mirror = Mirror(store)
    workloads = Workloads(store, events, clock, mirror)
    nodes = Nodes(store, events, mirror, clock, settings, fingerprint=fingerprint, server=server)
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
    servers = Servers(store, name=server, address=grpc, lease_s=math.ceil(settings.suspect_after_s))
    members = Members(store, nodes)
    sessions = Sessions(
        nodes, instances, settings, servers=servers, members=members, functions=functions, here=node
    )
    leader = Leader(
        store,
        events,
        clock,
        name=server,
        lease_s=settings.leader_lease_s,
        # Its file is locked for as long as it is open; in etcd there may be anybody.
        is_alone=isinstance(store, SqliteStore),
    )
    loops.forever("instances", mirror.run, critical=True)
    loops.forever("workloads", workloads.run, critical=True)
    loops.forever("nodes", nodes.run, critical=True)
    loops.forever("servers", servers.run)
    loops.forever("members", members.run)

    def is_member(node: NodeId) -> bool:
        return nodes.standing(node) is not None and nodes.get(node).member is not None

    def place() -> None:
        loops.forever("placing", lambda: reconciler.run(leader))

    async def ready() -> None:
        for part in (mirror, workloads, nodes, members):
            await part.ready()

    ways = Ways(sessions, servers, tls)
    return Cluster(
        mirror=mirror,
        nodes=nodes,
        instances=instances,
        reconciler=reconciler,
        ways=ways,
        kudo=Kudo(workloads, instances, nodes, ways, clock),
        services=[
            NodeService(sessions, clock, counts=identity.counts),
            ServerService(sessions),
            CodeService(functions.archive, is_member=is_member),
            *grpc_services.services(instances, nodes, identity, clock),
        ],
        sessions=sessions,
        servers=servers,
        members=members,
        leader=leader,
        ready=ready,
        place=place,
    )

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
from skerry.control.nodes import Nodes
from skerry.control.reconciling import Reconciler
from skerry.control.servers import Servers
from skerry.control.sessions import Sessions
from skerry.control.workloads import Workloads
from skerry.kit.clock import Clock
from skerry.kit.tasks import Keeper
from skerry.model.settings import FleetSettings
from skerry.store.protocol import Store
from skerry.store.sqlite import SqliteStore
from skerry.wire.kudo import grpc_services
from skerry.wire.kudo.context import Kudo
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
    fingerprint: str,
    server: str,
    grpc: str,
    tls: ssl.SSLContext,
    loops: Keeper,
) -> Cluster:
    """Begin to read what is in the store, and to act on it. `server` is where people reach this process,
    `grpc` (HOST:PORT) where nodes do; with `tls` it asks other servers for what only they can reach.
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
    sessions = Sessions(nodes, instances, settings, servers=servers)
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

    def place() -> None:
        loops.forever("placing", lambda: reconciler.run(leader))

    async def ready() -> None:
        for part in (mirror, workloads, nodes):
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
            *grpc_services.services(instances, nodes, identity, clock),
        ],
        sessions=sessions,
        leader=leader,
        ready=ready,
        place=place,
    )

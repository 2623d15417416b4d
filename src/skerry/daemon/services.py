"""Services of this process: their controller, their autoscaler, and requests about them.

Called by `skerry.daemon.control_plane`. Every server serves requests; only the leader changes copies.
"""

from __future__ import annotations

import msgspec

from skerry.control.instance_index import InstanceTable
from skerry.control.instances.registry import InstanceRegistry
from skerry.control.leadership.election import LeaderElection
from skerry.control.network.service_addresses import ServiceAddressAllocator
from skerry.control.network.service_subnet import ServiceAddressPool
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.placement.reconciler import Reconciler
from skerry.control.routes.reports import RouteReports
from skerry.control.services.autoscaler import ServiceAutoscaler
from skerry.control.services.controller import ServiceController
from skerry.control.services.registry import ServiceRegistry
from skerry.control.services.tables import ServiceTables
from skerry.daemon.server_base import ServerBase
from skerry.daemon.volumes import VolumeParts
from skerry.model.ids import NodeId
from skerry.model.secret_versions import SecretVersions
from skerry.model.services import Service
from skerry.wire.own.services.context import ServiceContext


class ServiceParts(msgspec.Struct, frozen=True):
    """Services as they are served."""

    context: ServiceContext
    _base: ServerBase
    _tables: ServiceTables
    _controller: ServiceController
    _autoscaler: ServiceAutoscaler
    addresses: ServiceAddressAllocator

    async def ready(self) -> None:
        """Wait until the services in the store are known."""
        await self._tables.ready()
        await self.addresses.ready()

    def services(self) -> list[Service]:
        """All services."""
        return self._tables.services.values()

    def lead(self, leader: LeaderElection) -> None:
        """Begin to reconcile and scale services, while this server leads."""
        loops = self._base.loops
        loops.forever("services.controller", lambda: self._controller.run(leader))
        loops.forever("services.autoscaler", lambda: self._autoscaler.run(leader))
        loops.forever("services.addresses", lambda: self.addresses.lead(leader))


def start(
    base: ServerBase,
    instance_table: InstanceTable,
    nodes: NodeRegistry,
    instances: InstanceRegistry,
    reconciler: Reconciler,
    volumes: VolumeParts,
    *,
    secrets: SecretVersions,
    routes: RouteReports,
) -> ServiceParts:
    """Begin to read what is in the store."""
    store, events, clock, server = base.store, base.events, base.clock, base.addresses.url
    tables = volumes.templates.services = ServiceTables(store)
    controller = ServiceController(
        store,
        events,
        clock,
        tables=tables,
        instance_table=instance_table,
        conditions=nodes,
        settled=base.history.settled,
    )
    controller.follow_volumes(volumes.table)
    controller.follow_quotas(base.store.quotas)

    def is_live_here(node: NodeId) -> bool:
        beat = nodes.heartbeat(node)
        return beat is not None and beat.server == server

    autoscaler = ServiceAutoscaler(
        store,
        events,
        clock,
        tables=tables,
        instance_table=instance_table,
        load=instances.load,
        is_live_here=is_live_here,
        server=server,
    )
    autoscaler.follow_routes(routes)
    registry = ServiceRegistry(
        store,
        events,
        clock,
        tables=tables,
        instance_table=instance_table,
        conditions=nodes,
        placement=reconciler,
    )
    registry.use_secrets(secrets)
    registry.follow_volumes(volumes.registry)
    fleet = base.settings.fleet
    pool = ServiceAddressPool(fleet.service_subnet, fleet.subnets)
    addresses = ServiceAddressAllocator(store, clock, pool, tables)
    registry.assign_addresses(addresses)
    base.loops.forever("services", tables.run, critical=True)
    base.loops.forever("service addresses", addresses.run, critical=True)
    return ServiceParts(ServiceContext(registry), base, tables, controller, autoscaler, addresses)

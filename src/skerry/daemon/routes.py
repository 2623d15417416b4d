"""Routes of this process: their records and requests about them, what edge nodes are told, and what those
report.

Called by `skerry.daemon.control_plane`. Every server serves all of it.
"""

from __future__ import annotations

import msgspec

from skerry.control.network.feed import NetworkObjects
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.routes.objects import RouteObjects
from skerry.control.routes.problems import RouteProblems
from skerry.control.routes.registry import RouteRegistry
from skerry.control.routes.reports import RouteReports
from skerry.control.routes.table import RouteTable
from skerry.control.routes.wanted_domains import RouteDomains
from skerry.control.services.registry import ServiceRegistry
from skerry.daemon.server_base import ServerBase
from skerry.daemon.tls import internal_domains
from skerry.functions.registry.registry import FunctionRegistry
from skerry.model.routes import RouteLoad, ServiceWake
from skerry.wire.own.http_routes.context import RouteContext


class RouteParts(msgspec.Struct, frozen=True):
    """Routes as they are served."""

    table: RouteTable
    context: RouteContext
    domains: RouteDomains

    async def ready(self) -> None:
        """When what is in the store is known."""
        await self.table.ready()


def start(
    base: ServerBase,
    nodes: NodeRegistry,
    feed: NetworkObjects,
    services: ServiceRegistry,
    reports: RouteReports,
    functions: FunctionRegistry,
) -> RouteParts:
    """Begin to read what is in the store, and to tell edge nodes."""
    table = RouteTable(base.store)
    feed.add(RouteObjects(table, services.tables.services, nodes))
    feed.handle(RouteLoad, reports.loads_reported)
    feed.handle(ServiceWake, lambda node, wakes: reports.wakes_reported(node, wakes, services.wake))
    base.loops.forever("routes", table.run, critical=True)
    return RouteParts(
        table,
        RouteContext(
            RouteRegistry(base.store, base.events, base.clock, table),
            RouteProblems(services.tables.services, functions.get, nodes).of,
        ),
        RouteDomains(table, nodes, base.settings.tls, internal_domains(base.settings)),
    )

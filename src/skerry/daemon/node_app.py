"""The HTTP application of a node that has the setting `node.http`; others do not import it."""

from __future__ import annotations

from collections.abc import Callable

from skerry.daemon.function_apps import web_functions
from skerry.kit.clock import Clock
from skerry.model.settings import Settings
from skerry.transport.access.gate import Guard, allowed_hosts
from skerry.transport.http.dispatcher import HttpDispatcher, ServedHosts
from skerry.transport.http.runner import OWN, build_route
from skerry.wire.own import about, health_route, node_info
from skerry.wire.own.node_info import NodeInfoContext
from skerry.wire.own.web_functions import endpoints as web_function_endpoints
from skerry.wire.serverledge import routes as serverledge_routes
from skerry.wire.serverledge.context import ServerledgeContext


def build_node_app(
    settings: Settings,
    clock: Clock,
    gate: Guard,
    serverledge: ServerledgeContext | None,
    info: NodeInfoContext,
    *,
    own_names: Callable[[], frozenset[str]] = frozenset,
) -> HttpDispatcher:
    """The application of a node, which has only functions, health, and what it is."""
    routes = [build_route(about.show_metrics, OWN, None, settings.http)]
    routes.extend(build_route(declared, OWN, info, settings.http) for declared in node_info.ENDPOINTS)
    routes.extend(serverledge_routes.build_routes(serverledge, settings))
    return HttpDispatcher(
        prefix_routes={
            health_route.PATH: [health_route.build_health_route()],
            **serverledge_routes.build_prefix_routes(serverledge, settings),
            **web_function_endpoints.build_prefix_routes(web_functions(serverledge), settings),
        },
        routes=routes,
        guard=gate,
        hosts=ServedHosts(allowed_hosts(settings.node.http.rpartition(":")[0]), own_names),
        settings=settings.http,
        clock=clock,
        shapes=serverledge_routes.UNSERVED,
    )

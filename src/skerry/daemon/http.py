"""The HTTP application: the endpoints of all dialects with their contexts, behind one dispatcher.

Called once by the daemon. Every endpoint must have a row in `skerry.transport.access.rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from skerry.kit.clock import Clock
from skerry.kit.networks import Network
from skerry.model.settings import Settings
from skerry.transport.access.gate import AccessGate, AddressGate, Guard, allowed_hosts
from skerry.transport.http.dispatcher import HttpDispatcher
from skerry.transport.http.endpoints import Endpoint
from skerry.transport.http.runner import OWN, build_route
from skerry.wire.kudo import routes as kudo_routes
from skerry.wire.kudo.context import KudoContext
from skerry.wire.own import about, health, node_info
from skerry.wire.own import routes as own_routes
from skerry.wire.own.context import OwnContext
from skerry.wire.own.http_routes import routes as http_route_routes
from skerry.wire.own.http_routes.context import RouteContext
from skerry.wire.own.jobs import routes as job_routes
from skerry.wire.own.jobs.context import JobContext
from skerry.wire.own.market import routes as market_routes
from skerry.wire.own.market.context import MarketContext
from skerry.wire.own.mesh import endpoints as mesh_endpoints
from skerry.wire.own.mesh.endpoints import MeshContext
from skerry.wire.own.namespaces import endpoints as namespace_endpoints
from skerry.wire.own.namespaces.endpoints import NamespaceContext
from skerry.wire.own.node_info import NodeInfoContext
from skerry.wire.own.secrets import routes as secret_routes
from skerry.wire.own.secrets.context import SecretContext
from skerry.wire.own.services import routes as service_routes
from skerry.wire.own.services.context import ServiceContext
from skerry.wire.own.snapshots import routes as snapshot_routes
from skerry.wire.own.snapshots.context import SnapshotContext
from skerry.wire.own.tls import routes as tls_routes
from skerry.wire.own.tls.context import TlsContext
from skerry.wire.own.volumes import routes as volume_routes
from skerry.wire.own.volumes.context import VolumeContext
from skerry.wire.own.web_functions import endpoints as web_function_endpoints
from skerry.wire.own.web_functions.context import WebFunctionContext
from skerry.wire.rear import routes as rear_routes
from skerry.wire.rear.context import RearContext
from skerry.wire.serverledge import routes as serverledge_routes
from skerry.wire.serverledge.context import ServerledgeContext


class OwnerContexts(NamedTuple):
    """Of what makes instances of its own: services, and jobs with their schedules; of namespaces; and of the
    secrets and volumes that instances use."""

    services: ServiceContext
    jobs: JobContext
    namespaces: NamespaceContext
    secrets: SecretContext
    volumes: VolumeContext
    snapshots: SnapshotContext
    mesh: MeshContext
    tls: TlsContext
    routes: RouteContext


def build_app(
    own: OwnContext,
    gate: AccessGate,
    kudo: KudoContext,
    serverledge: ServerledgeContext | None = None,
    rear: RearContext | None = None,
    market: MarketContext | None = None,
    *,
    owners: OwnerContexts,
    own_names: Callable[[], frozenset[str]] = frozenset,
) -> HttpDispatcher:
    """The app that `HttpServer` serves; `own_names` is called for the Host check of names.

    Without `serverledge` this server has no functions, and without `rear` and `market` no market; those
    routes then say so.
    """
    plane = own.plane
    settings = plane.settings.http
    dialects: list[tuple[Iterable[Endpoint], Any]] = [
        (own_routes.ENDPOINTS, own),
        (kudo_routes.ENDPOINTS, kudo),
        (service_routes.ENDPOINTS, owners.services),
        (job_routes.ENDPOINTS, owners.jobs),
        (namespace_endpoints.ENDPOINTS, owners.namespaces),
        (secret_routes.ENDPOINTS, owners.secrets),
        (volume_routes.ENDPOINTS, owners.volumes),
        (snapshot_routes.ENDPOINTS, owners.snapshots),
        (mesh_endpoints.ENDPOINTS, owners.mesh),
        (tls_routes.ENDPOINTS, owners.tls),
        (http_route_routes.ENDPOINTS, owners.routes),
    ]
    routes = [
        build_route(declared, OWN, context, settings)
        for endpoints, context in dialects
        for declared in endpoints
        if declared is not health.healthz
    ]
    routes.extend(serverledge_routes.build_routes(serverledge, plane.settings))
    routes.extend(rear_routes.build_routes(rear, plane.settings))
    routes.extend(market_routes.build_routes(market, plane.settings))
    return HttpDispatcher(
        prefix_routes={
            "/healthz": [health.build_health_route()],
            **serverledge_routes.build_prefix_routes(serverledge, plane.settings),
            **web_function_endpoints.build_prefix_routes(_web_functions(serverledge), plane.settings),
        },
        routes=routes,
        guard=gate,
        hosts=allowed_hosts(settings.listen.rpartition(":")[0], settings.names),
        settings=settings,
        clock=plane.clock,
        own_names=own_names,
        shapes=serverledge_routes.UNSERVED,
    )


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
            "/healthz": [health.build_health_route()],
            **serverledge_routes.build_prefix_routes(serverledge, settings),
            **web_function_endpoints.build_prefix_routes(_web_functions(serverledge), settings),
        },
        routes=routes,
        guard=gate,
        hosts=allowed_hosts(settings.node.http.rpartition(":")[0]),
        settings=settings.http,
        clock=clock,
        own_names=own_names,
        shapes=serverledge_routes.UNSERVED,
    )


def build_web_app(
    settings: Settings, clock: Clock, gate: AccessGate, serverledge: ServerledgeContext
) -> HttpDispatcher:
    """The app of the socket for routes: web functions alone, under whatever name they are called. There is no
    local user and no cookie behind a request, so a web page can do no more than its own user."""
    context = WebFunctionContext(serverledge.functions, serverledge.invoker)
    return HttpDispatcher(
        prefix_routes={
            "/healthz": [health.build_health_route()],
            **web_function_endpoints.build_routed_prefix_routes(context, settings, gate),
        },
        routes=[],
        guard=gate,
        hosts=None,
        settings=settings.http,
        clock=clock,
    )


def _web_functions(serverledge: ServerledgeContext | None) -> WebFunctionContext | None:
    return None if serverledge is None else WebFunctionContext(serverledge.functions, serverledge.invoker)


def build_plain_app(
    settings: Settings,
    clock: Clock,
    rear: RearContext,
    networks: Iterable[Network],
    *,
    own_names: Callable[[], frozenset[str]] = frozenset,
) -> HttpDispatcher:
    """The app of the listener for buyers without credentials: what such buyers need of the market alone."""
    return HttpDispatcher(
        prefix_routes={},
        routes=rear_routes.build_plain_routes(rear, settings),
        guard=AddressGate(networks),
        hosts=allowed_hosts(settings.market.plain_listen.rpartition(":")[0], settings.http.names),
        settings=settings.http,
        clock=clock,
        own_names=own_names,
    )

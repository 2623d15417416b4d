"""The HTTP application: the endpoints of all dialects with their contexts, behind one dispatcher.

Called once by the daemon. Every endpoint must have a row in `skerry.transport.access.rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from skerry.console import routes as console_routes
from skerry.console.context import ConsoleContext
from skerry.daemon.function_apps import web_functions
from skerry.kit.clock import Clock
from skerry.kit.networks import Network
from skerry.model.settings import Settings
from skerry.transport.access.gate import AccessGate, AddressGate, allowed_hosts
from skerry.transport.http.dispatcher import HttpDispatcher, ServedHosts
from skerry.transport.http.endpoints import Endpoint
from skerry.transport.http.runner import OWN, build_route
from skerry.wire.kudo import routes as kudo_routes
from skerry.wire.kudo.context import KudoContext
from skerry.wire.own import backups, health, health_route
from skerry.wire.own import routes as own_routes
from skerry.wire.own.alerts import endpoints as alert_endpoints
from skerry.wire.own.alerts.endpoints import AlertContext
from skerry.wire.own.backups import BackupContext
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
from skerry.wire.own.secrets import routes as secret_routes
from skerry.wire.own.secrets.context import SecretContext
from skerry.wire.own.services import routes as service_routes
from skerry.wire.own.services.context import ServiceContext
from skerry.wire.own.snapshots import routes as snapshot_routes
from skerry.wire.own.snapshots.context import SnapshotContext
from skerry.wire.own.telemetry import endpoints as telemetry_endpoints
from skerry.wire.own.telemetry.endpoints import TelemetryContext
from skerry.wire.own.tls import routes as tls_routes
from skerry.wire.own.tls.context import TlsContext
from skerry.wire.own.volumes import routes as volume_routes
from skerry.wire.own.volumes.context import VolumeContext
from skerry.wire.own.web_functions import endpoints as web_function_endpoints
from skerry.wire.rear import routes as rear_routes
from skerry.wire.rear.context import RearContext
from skerry.wire.serverledge import routes as serverledge_routes
from skerry.wire.serverledge.context import ServerledgeContext


class OwnerContexts(NamedTuple):
    """Of what makes instances of its own: services, and jobs with their schedules; of namespaces; and of the
    secrets and volumes that instances use; and of the web console, which shows all of them."""

    services: ServiceContext
    jobs: JobContext
    namespaces: NamespaceContext
    secrets: SecretContext
    volumes: VolumeContext
    snapshots: SnapshotContext
    mesh: MeshContext
    tls: TlsContext
    routes: RouteContext
    backups: BackupContext
    telemetry: TelemetryContext
    alerts: AlertContext
    console: ConsoleContext | None = None  # None: there is no web console


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
        (backups.ENDPOINTS, owners.backups),
        (telemetry_endpoints.ENDPOINTS, owners.telemetry),
        (alert_endpoints.ENDPOINTS, owners.alerts),
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
    if owners.console is not None:
        routes.extend(console_routes.build_routes(owners.console, settings))
    return HttpDispatcher(
        prefix_routes={
            health_route.PATH: [health_route.build_health_route()],
            **serverledge_routes.build_prefix_routes(serverledge, plane.settings),
            **web_function_endpoints.build_prefix_routes(web_functions(serverledge), plane.settings),
        },
        routes=routes,
        guard=gate,
        hosts=ServedHosts(allowed_hosts(settings.listen.rpartition(":")[0], settings.names), own_names),
        settings=settings,
        clock=plane.clock,
        shapes=serverledge_routes.UNSERVED,
    )


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
        hosts=ServedHosts(
            allowed_hosts(settings.market.plain_listen.rpartition(":")[0], settings.http.names), own_names
        ),
        settings=settings.http,
        clock=clock,
    )

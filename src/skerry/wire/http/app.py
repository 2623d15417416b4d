"""The whole HTTP side as one ASGI app: every endpoint with what it works with, behind one front.

Called once by the daemon. Which endpoints there are is told by their rooms; what a caller may do, by
`skerry.wire.access`, without whose row nothing is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from starlette.routing import Route

from skerry.control.plane import Plane
from skerry.kit.clock import Clock
from skerry.model.settings import HttpSettings, Settings
from skerry.wire import access
from skerry.wire.gate import Gate, allowed_hosts
from skerry.wire.http.endpoints import Endpoint, Served
from skerry.wire.http.front import Front, Target
from skerry.wire.http.openapi import openapi_bytes
from skerry.wire.kudo import table as kudo_table
from skerry.wire.kudo.context import Kudo
from skerry.wire.market import table as market_table
from skerry.wire.market.context import MarketDesk
from skerry.wire.own import about, health
from skerry.wire.own import table as own_table
from skerry.wire.own.context import Own
from skerry.wire.rear import table as rear_table
from skerry.wire.rear.context import Rear
from skerry.wire.serverledge import table as serverledge_table
from skerry.wire.serverledge.context import Serverledge


def build_app(
    plane: Plane,
    gate: Gate,
    grpc_address: Callable[[], str],
    kudo: Kudo,
    serverledge: Serverledge | None = None,
    rear: Rear | None = None,
    desk: MarketDesk | None = None,
) -> Front:
    """The app that `HttpServer` serves; `grpc_address` is asked when a node joins.

    Without `serverledge` this server has no functions, and without `rear` and `desk` no market, for other
    clouds and for its own people; it says so where they are asked for.
    """
    own = Own.of(plane, grpc_address, openapi_bytes())
    settings = plane.settings.http

    rooms: list[tuple[Iterable[Endpoint], Any]] = [(own_table.ENDPOINTS, own), (kudo_table.ENDPOINTS, kudo)]
    behind = [
        _target(declared, context, settings)
        for endpoints, context in rooms
        for declared in endpoints
        if declared is not health.healthz
    ]
    behind.extend(serverledge_table.behind(serverledge, plane.settings))
    behind.extend(rear_table.behind(rear, plane.settings))
    behind.extend(market_table.behind(desk, plane.settings))
    return Front(
        bare={"/healthz": [health.bare()], **serverledge_table.bare(serverledge, plane.settings)},
        behind=[(_route(found), found) for found in behind],
        guard=gate,
        hosts=allowed_hosts(settings.listen.rpartition(":")[0], settings.names),
        settings=settings,
        clock=plane.clock,
    )


def build_node_app(settings: Settings, clock: Clock, gate: Gate, serverledge: Serverledge | None) -> Front:
    """The app of a node, which has functions alone, and tells how it is."""
    behind = [_target(about.show_metrics, None, settings.http)]
    behind.extend(serverledge_table.behind(serverledge, settings))
    return Front(
        bare={"/healthz": [health.bare()], **serverledge_table.bare(serverledge, settings)},
        behind=[(_route(found), found) for found in behind],
        guard=gate,
        hosts=allowed_hosts(settings.node.http.rpartition(":")[0]),
        settings=settings.http,
        clock=clock,
    )


def _target(declared: Endpoint, context: Any, settings: HttpSettings) -> Target:
    return Target(
        method=declared.method,
        template=declared.path,
        app=Served(declared, context),
        row=access.HTTP[declared.name],
        max_body_bytes=min(declared.max_body_bytes, settings.max_body_bytes),
        timeout_s=None if declared.streams else settings.request_timeout_s,
        is_quiet=declared.is_quiet,
    )


def _route(found: Target) -> Route:
    # The front takes the last slash off every path before it looks.
    return Route(found.template.rstrip("/") or "/", found.app, methods=[found.method])

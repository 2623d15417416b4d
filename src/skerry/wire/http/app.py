"""The whole HTTP side as one ASGI app: every endpoint with what it works with, behind one front.

Called once by the daemon. Which endpoints there are is told by their rooms; what a caller may do, by
`skerry.wire.access`, without whose row nothing is built.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import Route

from skerry.control.plane import Plane
from skerry.kit import jsonio
from skerry.wire import access
from skerry.wire.gate import Gate, allowed_hosts
from skerry.wire.http.endpoints import Endpoint, Served
from skerry.wire.http.front import Front, Target
from skerry.wire.http.openapi import openapi_document
from skerry.wire.own import health
from skerry.wire.own.context import Own
from skerry.wire.own.table import ENDPOINTS


def build_app(plane: Plane, gate: Gate, grpc_address: Callable[[], str]) -> Front:
    """The app that `HttpServer` serves; `grpc_address` is asked when a node joins."""
    own = Own.of(plane, grpc_address, jsonio.encode(openapi_document()))
    settings = plane.settings.http

    def target(declared: Endpoint) -> Target:
        return Target(
            method=declared.method,
            template=declared.path,
            app=Served(declared, own),
            row=access.HTTP[declared.name],
            max_body_bytes=min(declared.max_body_bytes, settings.max_body_bytes),
            timeout_s=None if declared.streams else settings.request_timeout_s,
            is_quiet=declared.is_quiet,
        )

    def route(found: Target) -> Route:
        # The front takes the last slash off every path before it looks.
        return Route(found.template.rstrip("/") or "/", found.app, methods=[found.method])

    behind = [target(declared) for declared in ENDPOINTS if declared is not health.healthz]
    return Front(
        bare={"/healthz": [health.bare()]},
        behind=[(route(found), found) for found in behind],
        guard=gate,
        hosts=allowed_hosts(settings.listen.rpartition(":")[0], settings.names),
        settings=settings,
        clock=plane.clock,
    )

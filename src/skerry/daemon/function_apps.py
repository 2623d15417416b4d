"""The HTTP application of the socket for routes: web functions.

Apart from `skerry.daemon.http`, which has the endpoints of a server, and `skerry.daemon.node_app`, which has
those of a node that listens on HTTP: a node imports none of those, nor what they work with.
"""

from __future__ import annotations

from skerry.kit.clock import Clock
from skerry.model.settings import Settings
from skerry.transport.access.gate import AccessGate
from skerry.transport.http.dispatcher import HttpDispatcher
from skerry.wire.own import health_route
from skerry.wire.own.web_functions import endpoints as web_function_endpoints
from skerry.wire.own.web_functions.context import WebFunctionContext
from skerry.wire.serverledge.context import ServerledgeContext


def build_web_app(
    settings: Settings, clock: Clock, gate: AccessGate, serverledge: ServerledgeContext
) -> HttpDispatcher:
    """The app of the socket for routes: web functions alone, under whatever name they are called. There is no
    local user and no cookie behind a request, so a web page can do no more than its own user."""
    context = WebFunctionContext(serverledge.functions, serverledge.invoker)
    return HttpDispatcher(
        prefix_routes={
            health_route.PATH: [health_route.build_health_route()],
            **web_function_endpoints.build_routed_prefix_routes(context, settings, gate),
        },
        routes=[],
        guard=gate,
        hosts=None,
        settings=settings.http,
        clock=clock,
    )


def web_functions(serverledge: ServerledgeContext | None) -> WebFunctionContext | None:
    """None: there are no functions."""
    return None if serverledge is None else WebFunctionContext(serverledge.functions, serverledge.invoker)

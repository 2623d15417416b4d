"""`/web/{function}` and all paths below: requests to web functions, as they are declared and served.

The same handler for every verb (`skerry.wire.own.web_functions.app`): what it declares here is for the
description of the API and for the access rules. HEAD is served with GET.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from skerry.model import errors
from skerry.model.settings import Settings
from skerry.transport.access import rules
from skerry.transport.access.gate import Guard
from skerry.transport.http.asgi import ASGIApp, Receive, Scope, Send
from skerry.transport.http.dispatcher import HttpRoute
from skerry.transport.http.endpoints import Endpoint, RawBody, RequestContext, endpoint
from skerry.wire.own.web_functions.app import RoutedWebFunctionApp, WebFunctionApp
from skerry.wire.own.web_functions.context import WebFunctionContext
from skerry.wire.own.web_functions.requests import PREFIX

_VERBS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_PATH: Final = "/web/{function}"
_NO_FUNCTIONS: Final = "this server has no functions"


class WebFunctionPath(msgspec.Struct, frozen=True):
    function: Annotated[
        str,
        Meta(
            min_length=1,
            description="Its name, or `NAMESPACE:NAME`; what follows after a slash is the handler's",
        ),
    ]


async def _declared(context: WebFunctionContext, call: RequestContext, path: WebFunctionPath) -> RawBody:
    """The whole request is the handler's: verb, path below the function, query, headers and body. So is the
    response, which is streamed as it comes; its status and headers are whatever the handler says.

    A function that fails before it has answered is 500 or 502, without details, which are in its logs.
    """
    raise AssertionError("served by WebFunctionApp")


def _declare(verb: str) -> Endpoint:
    declared = endpoint(
        verb,
        _PATH,
        summary=f"Send a {verb} request to a web function",
        raises=(errors.NotFound, errors.TooLarge, errors.Unavailable),
        media="*/*",
        extra_statuses={
            500: "The function failed.",
            502: "The function gave no valid response.",
            504: "The function did not answer in its time.",
        },
        is_quiet=True,
        streams=True,
    )(_declared)
    return msgspec.structs.replace(declared, operation=verb.lower())


ENDPOINTS: tuple[Endpoint, ...] = tuple(map(_declare, _VERBS))


def build_prefix_routes(context: WebFunctionContext | None, settings: Settings) -> dict[str, list[HttpRoute]]:
    """The routes for clients that call this server itself."""
    app = _refuse if context is None else WebFunctionApp(context)
    return {PREFIX: [_route(each, app, rules.HTTP_RULES[each.name], settings) for each in ENDPOINTS]}


def build_routed_prefix_routes(
    context: WebFunctionContext, settings: Settings, guard: Guard
) -> dict[str, list[HttpRoute]]:
    """The routes on the socket for a proxy, which check access themselves."""
    return {
        PREFIX: [
            _route(
                each,
                RoutedWebFunctionApp(context, guard, rules.HTTP_RULES[each.name]),
                rules.OPEN_RULE,
                settings,
            )
            for each in ENDPOINTS
        ]
    }


def _route(declared: Endpoint, app: ASGIApp, row: rules.AccessRule, settings: Settings) -> HttpRoute:
    return HttpRoute(
        method=declared.method,
        template=declared.path,
        app=app,
        row=row,
        max_body_bytes=settings.functions.max_params_bytes,
        timeout_s=None,  # a call has a time limit of its own
        is_quiet=True,
    )


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    raise errors.Unavailable(_NO_FUNCTIONS)

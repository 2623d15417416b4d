"""All endpoints of the console, and how they are served: forms as bodies, errors as pages."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace

from skerry.console import sign_in
from skerry.console.context import ConsoleContext
from skerry.console.pages import (
    certificates,
    events,
    function_calls,
    functions,
    http_routes,
    instances,
    jobs,
    map_page,
    market_contracts,
    market_ledger,
    market_offers,
    nodes,
    overview,
    schedules,
    secrets,
    services,
    tokens,
    volumes,
    workloads,
)
from skerry.console.rendering import HTML, SECURITY_HEADERS, Renderer
from skerry.model import errors
from skerry.model.settings import HttpSettings
from skerry.transport.access.console_rules import CONSOLE_RULES
from skerry.transport.access.sessions import SessionGate
from skerry.transport.http import decoding, responses
from skerry.transport.http.asgi import ASGIApp, Receive, Scope, Send
from skerry.transport.http.dispatcher import ErrorResponse, HttpRoute
from skerry.transport.http.endpoints import Endpoint
from skerry.transport.http.responses import HttpError
from skerry.transport.http.runner import OWN, BodyReader, Dialect, build_route

PAGES: tuple[Endpoint, ...] = (
    *overview.ENDPOINTS,
    *services.ENDPOINTS,
    *instances.ENDPOINTS,
    *workloads.ENDPOINTS,
    *nodes.ENDPOINTS,
    *map_page.ENDPOINTS,
    *volumes.ENDPOINTS,
    *secrets.ENDPOINTS,
    *http_routes.ENDPOINTS,
    *events.ENDPOINTS,
    *functions.ENDPOINTS,
    *function_calls.ENDPOINTS,
    *jobs.ENDPOINTS,
    *schedules.ENDPOINTS,
    *market_offers.ENDPOINTS,
    *market_contracts.ENDPOINTS,
    *market_ledger.ENDPOINTS,
    *tokens.ENDPOINTS,
    *certificates.ENDPOINTS,
)
ENDPOINTS: tuple[Endpoint, ...] = (*sign_in.ENDPOINTS, *PAGES)
# Asked by scripts and for files, so their errors are those of the API.
_PLAIN = (sign_in.root, sign_in.redeem, sign_in.asset)
_FORM = "application/x-www-form-urlencoded"
_UNAUTHENTICATED = 401


def build_routes(context: ConsoleContext, settings: HttpSettings) -> list[HttpRoute]:
    """The routes; those with an HTML error are last, so paths below `/console` that are nothing get one,
    too."""
    pages = Dialect(
        error_response=partial(_error_page, context.renderer), body_reader=_read_form, redacts=False
    )
    gate = SessionGate(context.plane.identity.console_sessions)
    routes = [
        build_route(
            declared,
            OWN if declared in _PLAIN else pages,
            context,
            settings,
            row=CONSOLE_RULES[declared.name],
        )
        for declared in (*_PLAIN, *(one for one in ENDPOINTS if one not in _PLAIN))
    ]
    routes = [
        replace(one, app=_or_list(one.app, one.template))
        if one.method == "GET" and "{" in one.template
        else one
        for one in routes
    ]
    return [replace(one, sessions=gate) if one.row.session else one for one in routes]


def _or_list(app: ASGIApp, template: str) -> ASGIApp:
    """A page that refreshes itself, and whose object was deleted, is left for the list of such objects."""
    above = template.partition("/{")[0].encode()

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except errors.NotFound:
            if b"hx-request" not in scope["state"]["headers"]:
                raise
            await responses.send_nothing(
                send, 200, ((b"hx-redirect", above), (b"content-length", b"0"), *SECURITY_HEADERS)
            )

    return serve


def _read_form(declared: Endpoint) -> BodyReader:
    kind = declared.inputs["body"]

    def read(data: bytes, scope: Scope) -> Any:
        media = scope["state"]["headers"].get(b"content-type", b"").decode("latin-1").partition(";")[0]
        if data and media.strip().lower() != _FORM:
            raise HttpError(415, "wrong-media-type", f"the console sends forms: Content-Type: {_FORM}")
        # An input that is left empty is one that was not given.
        given = b"&".join(part for part in data.split(b"&") if not part.endswith(b"="))
        return decoding.query(given, kind)

    return read


def _error_page(renderer: Renderer, error: errors.SkerryError | HttpError, request_id: str) -> ErrorResponse:
    """What is wrong and what to do, as a page; without a session, how to get one."""
    status, code, headers = responses.error_head(error)
    template = "signed_out.html" if status == _UNAUTHENTICATED else "error.html"
    text = renderer.plain(template, status=status, code=code, message=error.message, request_id=request_id)
    body = text.encode()
    headers += [
        (b"content-type", HTML.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *SECURITY_HEADERS,
    ]
    return status, headers, body

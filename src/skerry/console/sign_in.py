"""Signing in and out, the address `/`, the files of the console, and the stream of changes.

A link of `skerry console` has its one-time code behind `#`: the page that it opens sends the code in a
request of its own, so it is in no log, and nothing that merely fetches links uses it up. A link that another
site leads to asks for a click first, so that nobody is signed in to somebody else's session unawares.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console.context import ConsoleContext
from skerry.console.hub import Topic
from skerry.console.rendering import HTML, SECURITY_HEADERS, html
from skerry.control.identity.console_sessions import SESSION_S
from skerry.model import errors
from skerry.transport.access import sessions
from skerry.transport.http import sse
from skerry.transport.http.endpoints import RawBody, RequestContext, Response, StreamResponse, endpoint
from skerry.transport.http.responses import RouteNotFound, accepts

_FOREVER = (b"cache-control", b"public, max-age=31536000, immutable")
_MAX_TOPICS = 100
_MAX_POSITION = 64


class AssetPath(msgspec.Struct, frozen=True):
    hash: Annotated[str, Meta(max_length=64)]
    name: Annotated[str, Meta(max_length=64)]


class RedeemRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the page of a link sends."""

    code: Annotated[str, Meta(max_length=200)]


class StreamQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The topics of a page, with commas between, and the position at which it was read."""

    topics: Annotated[str, Meta(max_length=_MAX_TOPICS)]
    since: Annotated[str, Meta(max_length=_MAX_POSITION)] = ""


@endpoint("GET", "/", summary="The console, for browsers", media=HTML)
async def root(context: ConsoleContext, call: RequestContext) -> Response:
    """A browser is led to the console; for others there is nothing here."""
    if not accepts(call.headers, "text/html"):
        raise RouteNotFound("there is nothing at this path; /openapi.json lists all paths")
    return _redirect("/console")


@endpoint("GET", "/console/login", summary="Sign in", media=HTML)
async def login_page(context: ConsoleContext, call: RequestContext) -> Response:
    """Has a script that sends the code of the link."""
    is_led = call.headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin")
    return html(context.renderer.plain("login.html", is_led=is_led))


@endpoint("POST", "/console/login", summary="Redeem a code", status=204, raises=(errors.Unauthenticated,))
async def redeem(context: ConsoleContext, call: RequestContext, body: RedeemRequest) -> Response:
    """The browser gets a cookie with the session."""
    sessions.check_same_origin(call.headers)
    opened = await context.plane.identity.console_sessions.redeem(body.code, call.uid)
    cookie = sessions.set_cookie(call.headers, opened.text, SESSION_S)
    return Response(None, headers=(cookie, *SECURITY_HEADERS))


@endpoint("POST", "/console/logout", summary="Sign out", status=204, media=HTML)
async def logout(context: ConsoleContext, call: RequestContext) -> Response:
    """The session ends, on every server."""
    await context.plane.identity.console_sessions.close(sessions.session_text(call.headers))
    cookie = sessions.set_cookie(call.headers, "", 0)
    leave = (b"hx-redirect", b"/console/login")
    return Response(None, headers=(cookie, leave, *SECURITY_HEADERS))


@endpoint("GET", "/console/assets/{hash}/{name}", summary="A file of the console", is_quiet=True)
async def asset(context: ConsoleContext, call: RequestContext, path: AssetPath) -> Response:
    """Under the hash of its content, for ever."""
    found = context.renderer.assets.get(path.name, path.hash)
    if found is None:
        raise errors.NotFound("there is no such file; reload the page")
    takes_gzip = b"gzip" in call.headers.get(b"accept-encoding", b"")
    encoding = ((b"content-encoding", b"gzip"),) if takes_gzip else ()
    headers = (_FOREVER, (b"vary", b"accept-encoding"), *encoding, *SECURITY_HEADERS)
    return Response(
        RawBody(found.compressed if takes_gzip else found.content), headers=headers, media=found.media
    )


@endpoint(
    "GET", "/console/stream", summary="Changes", media=sse.MEDIA, streams=True, raises=(errors.Overloaded,)
)
async def stream(context: ConsoleContext, call: RequestContext, query: StreamQuery) -> StreamResponse:
    """Server-sent events: the names of topics that have changed since a position. A browser that connects
    again names the last one that it was sent, in a header."""
    try:
        topics = frozenset(map(Topic, filter(None, query.topics.split(","))))
    except ValueError:
        raise errors.Invalid(f"topics are {', '.join(Topic)}", field="topics") from None
    held = AsyncExitStack()
    held.enter_context(context.streams.take(call.caller.tenant))
    since = call.headers.get(b"last-event-id", b"").decode("latin-1")[:_MAX_POSITION] or query.since
    frames = context.hub.stream(topics, call.caller.scope, since)
    return StreamResponse(frames, sse.SSE_FORMAT, held, context.plane.settings.events.heartbeat_s)


def _redirect(path: str) -> Response:
    return Response(None, status=303, headers=((b"location", path.encode()), *SECURITY_HEADERS))


ENDPOINTS = (root, login_page, redeem, logout, asset, stream)

"""Streamed and late responses, which end with the client or with the server.

The source is an async iterator of parts; the writer stops when the client disconnects, when the server stops,
and when the reader does not read. It takes the next part only when the one before is with the kernel, so a
slow reader delays its own source and takes no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, NoReturn, TypeVar

import msgspec

from skerry.kit.tasks import cancel_and_wait, race
from skerry.model import errors
from skerry.transport.access import revalidation
from skerry.transport.http.asgi import Receive, Scope, Send
from skerry.transport.http.connection import HttpConnection
from skerry.transport.http.responses import ClientDisconnected

T = TypeVar("T")

# A reader that reads nothing for this long is disconnected.
STALL_S = 60.0


class StreamFormat(msgspec.Struct, frozen=True):
    """How a stream is written besides its parts."""

    media: str
    heartbeat: bytes = b""  # keeps a silent stream open, where the medium has something that means nothing
    goodbye: bytes = b""  # ends it when the server stops; without one it is broken off, as it is not whole


async def write(
    parts: AsyncGenerator[bytes, None],
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    format: StreamFormat,
    heartbeat_s: float | None = None,
    stall_s: float = STALL_S,
) -> None:
    """Send `parts` until they end, and close them in any case. Raises `ClientDisconnected` if the client does
    not read, and `Unauthenticated` when its credentials are not valid any more."""
    stopping: asyncio.Event | None = scope["state"].get("stopping")
    leaving = asyncio.ensure_future(_until_gone(receive))
    stop = asyncio.ensure_future((stopping or asyncio.Event()).wait())
    refused = asyncio.ensure_future(until_refused(scope))
    upcoming: asyncio.Future[bytes] = asyncio.ensure_future(anext(parts))
    try:
        await send({"type": "http.response.start", "status": 200, "headers": _headers(format)})
        is_last = scope["method"] == "HEAD"
        if is_last:
            await send({"type": "http.response.body", "body": b""})
        while not is_last:
            next_part: set[asyncio.Future[Any]] = {upcoming, leaving, stop, refused}
            await asyncio.wait(next_part, timeout=heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise ClientDisconnected
            if refused.done():
                refused.result()
            part = format.heartbeat
            if stop.done():
                if not format.goodbye:
                    raise errors.Unavailable("the server is stopping; try again")
                part, is_last = format.goodbye, True
            elif upcoming.done():
                try:
                    part = upcoming.result()
                    upcoming = asyncio.ensure_future(anext(parts))
                except StopAsyncIteration:
                    part, is_last = b"", True
            try:
                async with asyncio.timeout(stall_s):
                    await send({"type": "http.response.body", "body": part, "more_body": not is_last})
            except TimeoutError:
                raise ClientDisconnected from None
    finally:
        await cancel_and_wait((upcoming, leaving, stop, refused))
        await parts.aclose()


async def until_refused(scope: Scope) -> None:
    """Raises when the credentials of this request are not valid any more. Never ends otherwise."""
    authenticate = scope["state"].get("authenticate")
    if authenticate is None:  # a route without access rules, or with its own
        await asyncio.Event().wait()
    else:
        await revalidation.until_refused(authenticate)


async def run_until_disconnect(
    work: Coroutine[Any, Any, T], connection: HttpConnection, receive: Receive
) -> T:
    """The result of `work`, which may take long; it is cancelled if the client disconnects:
    `ClientDisconnected`."""
    connection.leave_at_eof()

    async def leave() -> NoReturn:
        await _until_gone(receive)
        raise ClientDisconnected

    return await race(work, leave())


def _headers(format: StreamFormat) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", format.media.encode()),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),  # proxies that would hold parts back
        (b"x-content-type-options", b"nosniff"),  # it may be output of any program
    ]


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""Server-sent events: how frames are written, and a writer that ends when anybody wants it to.

The source is an async iterator of frames; the writer adds heartbeats and stops at the client's leaving, at
the server's stop, and at a reader that does not read. It takes the next frame only when the one before is
with the kernel, so a slow reader holds up its own source and no memory. What is streamed is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from starlette.types import Receive, Scope, Send

from skerry.wire.http.answers import ClientGone

MEDIA = "text/event-stream"
HEARTBEAT = b": still here\n\n"
GOODBYE = b": the server stops; come back with Last-Event-ID\n\n"

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies that would hold frames back
]
# A reader that takes nothing for this long is let go; it can resume where it was.
STALL_S = 60.0


def frame(data: bytes, *, event: str = "", event_id: str = "") -> bytes:
    """One event; `data` may have several lines, `event` and `event_id` must not."""
    parts = []
    if event_id:
        parts.append(b"id: " + event_id.encode() + b"\n")
    if event:
        parts.append(b"event: " + event.encode() + b"\n")
    parts.extend(b"data: " + line + b"\n" for line in data.split(b"\n"))
    parts.append(b"\n")
    return b"".join(parts)


async def write(
    frames: AsyncGenerator[bytes, None],
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    heartbeat_s: float,
    stall_s: float = STALL_S,
) -> None:
    """Send `frames` until they end, and close them in any case. Raises `ClientGone` if nobody reads."""
    stopping: asyncio.Event | None = scope["state"].get("stopping")
    leaving = asyncio.ensure_future(_until_gone(receive))
    stop = asyncio.ensure_future((stopping or asyncio.Event()).wait())
    upcoming: asyncio.Future[bytes] = asyncio.ensure_future(anext(frames))
    try:
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        is_last = scope["method"] == "HEAD"
        if is_last:
            await send({"type": "http.response.body", "body": b""})
        while not is_last:
            news: set[asyncio.Future[Any]] = {upcoming, leaving, stop}
            await asyncio.wait(news, timeout=heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise ClientGone
            part = HEARTBEAT
            if stop.done():
                part, is_last = GOODBYE, True
            elif upcoming.done():
                try:
                    part = upcoming.result()
                    upcoming = asyncio.ensure_future(anext(frames))
                except StopAsyncIteration:
                    part, is_last = b"", True
            try:
                async with asyncio.timeout(stall_s):
                    await send({"type": "http.response.body", "body": part, "more_body": not is_last})
            except TimeoutError:
                raise ClientGone from None
    finally:
        await _end(upcoming, leaving, stop)
        await frames.aclose()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*futures: asyncio.Future[Any]) -> None:
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)

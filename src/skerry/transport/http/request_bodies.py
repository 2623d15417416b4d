"""Request bodies that cannot grow or dawdle: a `receive` that counts bytes and watches the time.

`dispatcher` puts it between the server and whatever reads the body. It decides nothing about the content.
"""

from __future__ import annotations

import asyncio

from skerry.model import errors
from skerry.transport.http.asgi import Message, Receive
from skerry.transport.http.responses import ClientDisconnected, HttpError


class BoundedBody:
    """Called like the `receive` it wraps, until the body is complete; raises as soon as a bound is passed."""

    __slots__ = ("_done", "_max_bytes", "_receive", "_seen", "_timeout_s")

    def __init__(self, receive: Receive, max_bytes: int, timeout_s: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._seen = 0
        self._done = False

    async def __call__(self) -> Message:
        if self._done:
            return await self._receive()  # only the news that the client went away can follow
        try:
            async with asyncio.timeout(self._timeout_s):
                message = await self._receive()
        except TimeoutError:
            raise HttpError(
                408,
                "slow-client",
                f"no part of the body came for {self._timeout_s:g} s; send it without pauses",
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        self._seen += len(message.get("body", b""))
        if self._seen > self._max_bytes:
            raise too_large(self._max_bytes)
        self._done = not message.get("more_body", False)
        return message


def too_large(max_bytes: int) -> errors.TooLarge:
    return errors.TooLarge(f"the body may have at most {max_bytes} bytes; send less")


async def read_whole(receive: Receive) -> bytes:
    """The whole body; how much that may be is the wrapper's matter."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnected
    if not message.get("more_body", False):
        return bytes(message.get("body", b""))
    parts = bytearray(message.get("body", b""))
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        parts += message.get("body", b"")
    return bytes(parts)

"""HTTP/1.1 on kept connections with as little of a client as can be: what is measured is the server.

One request at a time on each connection. Knows answers with a `content-length`, which is all that Skerry
sends to what is asked here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import urlsplit

_LENGTH = b"content-length: "


class Wire(asyncio.Protocol):
    """One connection."""

    def __init__(self, host: str) -> None:
        self._host = host.encode()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._parts: list[bytes] = []
        self._missing = -1  # bytes of the answer; unknown before its head is complete
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        if self._missing < 0:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            start = head.find(_LENGTH)
            self._missing = int(head[start + len(_LENGTH) :].split(b"\r", 1)[0]) if start >= 0 else 0
            self._head = head
        self._parts.append(data)
        self._missing -= len(data)
        if self._missing == 0 and self._answer is not None and not self._answer.done():
            self._answer.set_result((int(self._head[9:12]), b"".join(self._parts)))

    async def ask(self, method: str, target: str, body: bytes = b"", authorization: str = "") -> bytes:
        """The body of the answer; raises if that is no success."""
        assert self._transport is not None
        self._parts, self._missing, self._head = [], -1, b""
        self._answer = asyncio.get_running_loop().create_future()
        shown = b"authorization: %b\r\n" % authorization.encode() if authorization else b""
        self._transport.write(
            b"%b %b HTTP/1.1\r\nhost: %b\r\ncontent-length: %d\r\n%b\r\n%b"
            % (method.encode(), target.encode(), self._host, len(body), shown, body)
        )
        status, answer = await self._answer
        if not 200 <= status < 300:
            raise RuntimeError(f"{method} {target}: {status} {answer[:500].decode(errors='replace')}")
        return answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


@asynccontextmanager
async def wires(url: str, count: int) -> AsyncIterator[list[Wire]]:
    """So many connections to a server."""
    split = urlsplit(url)
    assert split.hostname is not None
    assert split.port is not None
    loop = asyncio.get_running_loop()
    opened = []
    try:
        for _ in range(count):
            _, wire = await loop.create_connection(lambda: Wire(split.netloc), split.hostname, split.port)
            opened.append(wire)
        yield opened
    finally:
        for wire in opened:
            wire.close()

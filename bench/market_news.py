"""REFRESH to 1,000 subscribers, each on a WebSocket of its own: from a change until the last one has it.

Half of them subscribe to everything and half by a selector. The clock starts before the change is asked for,
so making it durable is part of the time.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import uvloop

from bench.figures import Figure
from bench.market_deals import FLAVOR, OFFER
from bench.sellers import seller_wires
from bench.serving import percentile, skerry
from bench.wires import Wire

SUBSCRIBERS = 1000
ROUNDS = 20
SCOPES = ({"All": True}, {"Selector": {"MoreThanCpu": 1}})
_HANDSHAKE = (
    "GET /api/subscribe HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
_LONG, _LONGEST = 126, 127  # in the place of a short length: it follows in two bytes, or in eight


def measure() -> Iterator[Figure]:
    with skerry(role="server") as ready:
        times = uvloop.run(_rounds(ready["http"]))
    name = f"REFRESH to {SUBSCRIBERS:,} subscribers, until the last has it"
    yield Figure(f"{name}: p50", percentile(times, 0.5), "s")
    yield Figure(f"{name}: the worst of {ROUNDS}", max(times), "s", at_most=1.0)


async def _rounds(url: str) -> list[float]:
    async with seller_wires(url, 1) as (wire,):
        await wire.ask("POST", "/api/flavors", json.dumps(OFFER).encode())
        crowd = Crowd()
        await crowd.gather(url)
        try:
            return [await _round(wire, crowd) for _ in range(ROUNDS)]
        finally:
            crowd.leave()


async def _round(wire: Wire, crowd: Crowd) -> float:
    everybody = crowd.expect(SUBSCRIBERS)
    begun = time.perf_counter()
    body = {"FlavorID": FLAVOR, "Buyer": {"NodeID": "bench"}, "Partition": {"Cpu": 1, "Memory": 1}}
    held = json.loads(await wire.ask("POST", "/api/reserveflavor", json.dumps(body).encode()))
    await everybody
    taken = time.perf_counter() - begun
    everybody = crowd.expect(SUBSCRIBERS)
    await wire.ask("DELETE", f"/api/reservations/{held['TransactionID']}")
    await everybody
    return taken


class Crowd:
    """Subscribers, and how many messages they had."""

    def __init__(self) -> None:
        self._sockets: list[Subscriber] = []
        self._missing = 0
        self._done: asyncio.Future[None] | None = None

    async def gather(self, url: str) -> None:
        """All of them, each with its first snapshot: the word that it is subscribed, and the one flavor."""
        split = urlsplit(url)
        assert split.hostname is not None
        assert split.port is not None
        loop = asyncio.get_running_loop()
        everybody = self.expect(2 * SUBSCRIBERS)
        for number in range(SUBSCRIBERS):
            asked = json.dumps({"SubscribeMessage": SCOPES[number % len(SCOPES)]}).encode()
            subscriber = partial(Subscriber, self, split.netloc, asked)
            _, socket = await loop.create_connection(subscriber, split.hostname, split.port)
            self._sockets.append(socket)
        await everybody

    def expect(self, messages: int) -> asyncio.Future[None]:
        self._missing = messages
        self._done = asyncio.get_running_loop().create_future()
        return self._done

    def heard(self) -> None:
        self._missing -= 1
        if self._missing == 0 and self._done is not None:
            self._done.set_result(None)

    def leave(self) -> None:
        for socket in self._sockets:
            socket.leave()


class Subscriber(asyncio.Protocol):
    """One WebSocket, as far as it takes to count messages."""

    def __init__(self, crowd: Crowd, host: str, asked: bytes) -> None:
        self._crowd = crowd
        self._host = host
        self._asked = asked
        self._transport: asyncio.Transport | None = None
        self._unread = b""
        self._is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(_HANDSHAKE.format(host=self._host).encode())

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if not self._is_open:
            head, end, self._unread = self._unread.partition(b"\r\n\r\n")
            if not end:
                self._unread = head
                return
            if not head.startswith(b"HTTP/1.1 101"):
                raise RuntimeError(head.decode())
            self._is_open = True
            self._send(self._asked)
        while (size := self._size()) is not None and len(self._unread) >= size:
            if self._unread[0] & 0x0F == 1:  # text; the others are pings
                self._crowd.heard()
            self._unread = self._unread[size:]

    def _size(self) -> int | None:
        """Of the next frame; None if its head is not complete."""
        if len(self._unread) < 2:
            return None
        length = self._unread[1]
        more = {_LONG: 2, _LONGEST: 8}.get(length, 0)
        if len(self._unread) < 2 + more:
            return None
        return 2 + more + (int.from_bytes(self._unread[2 : 2 + more]) if more else length)

    def _send(self, message: bytes) -> None:
        assert self._transport is not None
        assert len(message) < _LONG
        mask = os.urandom(4)
        hidden = bytes(byte ^ mask[place % 4] for place, byte in enumerate(message))
        self._transport.write(bytes((0x81, 0x80 | len(message))) + mask + hidden)

    def leave(self) -> None:
        if self._transport is not None:
            self._transport.abort()

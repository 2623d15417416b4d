"""Parts of a name server for tests, without a network; and another resolver that plays what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import dnslib

from skerry.kit.clock import Clock, ManualClock
from skerry.node.network.dns.budgets import ClientLimit, WorkBudget
from skerry.node.network.dns.forwarder import Forwarder
from skerry.node.network.dns.listeners import DnsListener
from skerry.node.network.dns.reply_cache import ReplyCache
from skerry.node.network.dns.resolver import Client, Resolver
from skerry.node.network.dns.views import NameViews
from skerry.node.network.dns.zone import Zone

T = TypeVar("T")
LOCAL = "127.0.0.1"


def question(name: str, type: str = "A", *, edns: int = 0, id: int = 7) -> bytes:
    """A packet of a client."""
    record = dnslib.DNSRecord.question(name, type)
    record.header.id = id
    if edns:
        record.add_ar(dnslib.EDNS0(udp_len=edns))
    return bytes(record.pack())


def parsed(packet: bytes) -> dnslib.DNSRecord:
    return dnslib.DNSRecord.parse(packet)


def values(packet: bytes) -> list[str]:
    return sorted(str(each.rdata) for each in parsed(packet).rr)


def rcode(packet: bytes) -> str:
    return str(dnslib.RCODE[parsed(packet).header.rcode])


@dataclass
class Parts:
    """A resolver and what it is made of."""

    zone: Zone
    resolver: Resolver
    forwarder: Forwarder
    clock: Clock
    is_confirmed: bool = True
    client: Client = field(default=Client("10.64.0.9", "10.64.0.1"))

    async def ask(self, packet: bytes, client: Client | None = None) -> bytes:
        """The answer; raises TimeoutError if there is none."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if not self.resolver.handle(packet, client or self.client, answer.set_result):
            raise TimeoutError
        return await asyncio.wait_for(answer, 20)


def make(
    *,
    resolvers: Sequence[str] = (),
    port: int = 1,
    clock: Clock | None = None,
    rate: float = 1e6,
    cache: ReplyCache | None = None,
) -> Parts:
    clock = clock or ManualClock()
    zone = Zone("skerry")
    forwarder = Forwarder(lambda: resolvers, cache or ReplyCache(100, 100_000), clock, port=port)
    budget = WorkBudget(rate, rate * 10)
    parts: Parts
    resolver = Resolver(
        zone,
        NameViews(zone.namespace_of),
        forwarder,
        budget,
        clock,
        ttl_s=5,
        is_confirmed=lambda: parts.is_confirmed,
    )
    parts = Parts(zone, resolver, forwarder, clock)
    return parts


@contextlib.asynccontextmanager
async def serving(
    parts: Parts, *, idle_s: float = 20.0, connections: ClientLimit | None = None
) -> AsyncIterator[DnsListener]:
    """A listener on loopback."""
    listener = DnsListener(
        LOCAL, parts.resolver, lambda client: True, connections or ClientLimit(16, 64), idle_s=idle_s
    )
    await _with_free_port(lambda: listener.open(0))
    try:
        yield listener
    finally:
        await listener.close()
        await parts.resolver.close()


async def _with_free_port(listen: Callable[[], Awaitable[T]]) -> T:
    """A port that is free for datagrams may be in use for connections, or the other way round."""
    for _ in range(20):
        with contextlib.suppress(OSError):
            return await listen()
    return await listen()


Play = Callable[[dnslib.DNSRecord, bool], bytes | None]  # of a question, and whether it came by TCP


class FakeResolver(asyncio.DatagramProtocol):
    """Another resolver, on a port of loopback."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.asked: list[str] = []
        self.ports: set[int] = set()
        self.ids: set[int] = set()
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        assert self._transport is not None
        self.ports.add(addr[1])
        if (answer := self._answer(data, is_tcp=False)) is not None:
            self._transport.sendto(answer, addr)

    def _answer(self, data: bytes, *, is_tcp: bool) -> bytes | None:
        record = dnslib.DNSRecord.parse(data)
        self.ids.add(record.header.id)
        self.asked.append(str(record.q.qname))
        return self._play(record, is_tcp)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            length = int.from_bytes(await reader.readexactly(2), "big")
            answer = self._answer(await reader.readexactly(length), is_tcp=True)
            if answer is not None:
                writer.write(len(answer).to_bytes(2, "big") + answer)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def fake_resolver(play: Play, host: str = LOCAL, port: int = 0) -> AsyncIterator[FakeResolver]:
    loop = asyncio.get_running_loop()
    fake = FakeResolver(play)

    async def listen() -> tuple[socket.socket, asyncio.DatagramTransport]:
        stream = socket.create_server((host, port))
        fake.port = stream.getsockname()[1]
        try:
            return stream, (await loop.create_datagram_endpoint(lambda: fake, local_addr=(host, fake.port)))[
                0
            ]
        except OSError:
            stream.close()
            raise

    stream, transport = await _with_free_port(listen)
    server = await asyncio.start_server(fake.connected, sock=stream)
    try:
        yield fake
    finally:
        transport.close()
        server.close()
        await server.wait_closed()


def answering(address: str = "192.0.2.7", ttl: int = 60) -> Play:
    """One address for every name."""

    def play(record: dnslib.DNSRecord, is_tcp: bool) -> bytes:
        reply = record.reply()
        reply.add_answer(dnslib.RR(record.q.qname, rdata=dnslib.A(address), ttl=ttl))
        return bytes(reply.pack())

    return play

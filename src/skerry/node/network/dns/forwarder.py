"""Asks the machine's resolvers for names of others.

Every question gets a socket and an id of its own, both random, and an answer counts only if it comes from the
resolver that was asked, with that id and question. A resolver that does not answer is followed by the next;
an answer that did not fit a datagram is fetched by TCP. Equal questions that wait share one exchange.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from skerry.kit.clock import Clock
from skerry.kit.tasks import cancel_and_wait
from skerry.node.network.dns import messages
from skerry.node.network.dns.messages import Query, Unreadable, UpstreamReply
from skerry.node.network.dns.reply_cache import CachedReply, CacheKey, ReplyCache

log = structlog.get_logger(__name__)

PORT: Final = 53
_TIMEOUT_S: Final = 1.5  # of one datagram
_TCP_TIMEOUT_S: Final = 3.0
_ROUNDS: Final = 2  # every resolver is asked so often
_FINAL_CODES: Final = (messages.NOERROR, messages.NXDOMAIN)
_NO_EDNS_CODES: Final = (messages.FORMERR, messages.NOTIMP)  # of a resolver that does not know EDNS

Address = tuple[str, int]


class Forwarder:
    """Questions to the resolvers that `resolvers` lists, the first first."""

    def __init__(
        self,
        resolvers: Callable[[], Sequence[str]],
        cache: ReplyCache,
        clock: Clock,
        *,
        max_in_flight: int = 512,
        port: int = PORT,
    ) -> None:
        self._resolvers = resolvers
        self._cache = cache
        self._clock = clock
        self._max_in_flight = max_in_flight
        self._port = port
        self._flights: dict[CacheKey, asyncio.Task[UpstreamReply | None]] = {}
        self._preferred = ""  # the resolver that answered last

    def cached(self, query: Query) -> CachedReply | None:
        """What is known without asking."""
        return self._cache.get(CacheKey.of(query), self._clock.monotonic())

    async def resolve(self, query: Query) -> UpstreamReply | None:
        """The answer of a resolver; None if none gave one."""
        key = CacheKey.of(query)
        flight = self._flights.get(key)
        if flight is None:
            if len(self._flights) >= self._max_in_flight:
                return None
            flight = self._flights[key] = asyncio.create_task(self._query_all(query))
            flight.add_done_callback(lambda done: self._landed(key, done))
        return await asyncio.shield(flight)

    def _landed(self, key: CacheKey, flight: asyncio.Task[UpstreamReply | None]) -> None:
        del self._flights[key]
        if not flight.cancelled():
            reply = None if flight.exception() is not None else flight.result()
            self._cache.put(key, reply, self._clock.monotonic())

    async def close(self) -> None:
        await cancel_and_wait(list(self._flights.values()))

    async def _query_all(self, query: Query) -> UpstreamReply | None:
        last: UpstreamReply | None = None
        resolvers = sorted(self._resolvers(), key=lambda each: each != self._preferred)
        for _ in range(_ROUNDS):
            for resolver in resolvers:
                try:
                    reply = await self._query(query, resolver)
                except (OSError, TimeoutError, Unreadable, asyncio.IncompleteReadError) as error:
                    log.debug("dns.resolver_silent", resolver=resolver, error=repr(error))
                    continue
                if reply.rcode in _FINAL_CODES:
                    self._preferred = resolver
                    return reply
                last = reply
            if last is not None:
                break  # all that answer have said that they cannot
        return last

    async def _query(self, query: Query, resolver: str) -> UpstreamReply:
        reply = await self._by_udp(query, (resolver, self._port), has_edns=True)
        if reply.rcode in _NO_EDNS_CODES:
            reply = await self._by_udp(query, (resolver, self._port), has_edns=False)
        if reply.is_truncated:
            async with asyncio.timeout(_TCP_TIMEOUT_S):
                reply = await _by_tcp(query, (resolver, self._port))
        return reply

    async def _by_udp(self, query: Query, address: Address, *, has_edns: bool) -> UpstreamReply:
        id = secrets.randbelow(0x10000)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[UpstreamReply] = loop.create_future()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Exchange(query, id, answer), remote_addr=address
        )
        try:
            transport.sendto(messages.write_upstream_query(query, id, has_edns=has_edns))
            async with asyncio.timeout(_TIMEOUT_S):
                return await answer
        finally:
            transport.close()


class _Exchange(asyncio.DatagramProtocol):
    """One datagram to a resolver. The socket is connected, so the kernel drops those of others."""

    def __init__(self, query: Query, id: int, answer: asyncio.Future[UpstreamReply]) -> None:
        self._query = query
        self._id = id
        self._answer = answer

    def datagram_received(self, data: bytes, addr: object) -> None:
        if self._answer.done():
            return
        try:
            self._answer.set_result(messages.parse_upstream(data, self._query, self._id))
        except Unreadable as error:  # the answer may still come
            log.debug("dns.answer_ignored", reason=str(error))

    def error_received(self, exc: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(ConnectionError("the socket was closed"))


async def _by_tcp(query: Query, address: Address) -> UpstreamReply:
    id = secrets.randbelow(0x10000)
    reader, writer = await asyncio.open_connection(*address)
    try:
        packet = messages.write_upstream_query(query, id)
        writer.write(len(packet).to_bytes(2, "big") + packet)
        length = int.from_bytes(await reader.readexactly(2), "big")
        reply = messages.parse_upstream(await reader.readexactly(length), query, id)
    finally:
        writer.transport.abort()
    if reply.is_truncated:
        raise Unreadable("truncated by TCP")
    return reply

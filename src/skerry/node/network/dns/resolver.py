"""Answers packets of containers: from the zone, from memory, or through the machine's resolvers.

Sockets are `skerry.node.network.dns.listeners`. An answer is remembered with the bytes that asked for it, so
that the next equal packet costs a copy.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from skerry.kit import metrics
from skerry.kit.clock import Clock
from skerry.node.network.dns import messages
from skerry.node.network.dns.budgets import ClientLimit, WorkBudget
from skerry.node.network.dns.forwarder import Forwarder
from skerry.node.network.dns.messages import MAX_RECORDS, Query, Unreadable
from skerry.node.network.dns.views import NameView, NameViews
from skerry.node.network.dns.zone import LookupStatus, Zone, ZoneAnswer

log = structlog.get_logger(__name__)

QUESTIONS = metrics.counter("skerry_dns_questions_total", "Questions of containers, by outcome", ["outcome"])
_REMEMBERED = QUESTIONS.labels("remembered")
_ZONE = QUESTIONS.labels("zone")
_CACHED = QUESTIONS.labels("cached")
_FORWARDED = QUESTIONS.labels("forwarded")
_FAILED = QUESTIONS.labels("failed")
_REFUSED = QUESTIONS.labels("refused")
_DROPPED = QUESTIONS.labels("dropped")

_MEMORY: Final = 4096  # answers
_MEMORY_ANSWER: Final = 1500  # bytes; longer ones are not remembered
_VOLATILE_S: Final = 1.0  # how long other answers than those of the zone are remembered
_PARSE_TOKENS: Final = 1.0  # for reading a question
_BUILD_TOKENS: Final = 2.0  # for writing an answer
_FORWARD_TOKENS: Final = 3.0  # for asking others
_BYTES_PER_TOKEN: Final = 512

Respond = Callable[[bytes], None]


class Client(NamedTuple):
    """Who asks, at which address of this node, and how long a message it takes."""

    address: str
    here: str
    limit: int | None = None  # None: as its packet says, by datagram


class _Remembered(NamedTuple):
    answer: bytes
    version: int  # of the zone
    expires_at: float


class Resolver:
    """Answers of one node."""

    def __init__(
        self,
        zone: Zone,
        views: NameViews,
        forwarder: Forwarder,
        budget: WorkBudget,
        clock: Clock,
        *,
        ttl_s: int,
        is_confirmed: Callable[[], bool],
    ) -> None:
        """`is_confirmed`: this node knows that no name is missing in its zone."""
        self._zone = zone
        self._views = views
        self._forwarder = forwarder
        self._budget = budget
        self._clock = clock
        self._ttl_s = ttl_s
        self._is_confirmed = is_confirmed
        self._waiting = ClientLimit(per_client=64, in_all=512)
        self._memory: dict[tuple[object, ...], _Remembered] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, packet: bytes, client: Client, respond: Respond) -> bool:
        """Answer a packet, now or later; False if it is not answered."""
        now = self._clock.monotonic()
        if not self._budget.admit(client.address, now):
            _DROPPED.inc()
            return False
        view = self._views.of(client.address)
        key: tuple[object, ...] = (packet[2:], client.here, client.limit, view)
        if self._respond_from_memory(key, packet, now, respond):
            return True
        self._budget.charge(client.address, _PARSE_TOKENS)
        try:
            query = messages.parse_query(packet)
        except Unreadable:
            _DROPPED.inc()
            return False
        if query.has_options:  # which are new in every packet, and mean nothing here
            key = (query.question, query.flags, query.limit, query.wants_dnssec, *key[1:])
            if self._respond_from_memory(key, packet, now, respond):
                return True
        self._budget.charge(client.address, _BUILD_TOKENS)

        def answer(message: bytes, remembered_s: float = 0.0) -> None:
            limit = query.limit if client.limit is None else client.limit
            fitting = messages.fit(query, message, limit)
            self._budget.charge(client.address, len(message) / _BYTES_PER_TOKEN)
            if remembered_s and len(fitting) <= _MEMORY_ANSWER:
                self._remember(key, fitting, now + remembered_s)
            respond(fitting)

        return self._answer(query, client, view, answer)

    def _respond_from_memory(
        self, key: tuple[object, ...], packet: bytes, now: float, respond: Respond
    ) -> bool:
        if (known := self._memory.get(key)) is None:
            return False
        if known.version != self._zone.version or known.expires_at <= now:
            del self._memory[key]
            return False
        _REMEMBERED.inc()
        respond(messages.with_id(known.answer, packet))
        return True

    def _remember(self, key: tuple[object, ...], answer: bytes, expires_at: float) -> None:
        if len(self._memory) >= _MEMORY:
            del self._memory[next(iter(self._memory))]  # the oldest
        self._memory[key] = _Remembered(answer, self._zone.version, expires_at)

    def _answer(self, query: Query, client: Client, view: NameView, answer: Callable[..., None]) -> bool:
        if query.edns_version:
            _REFUSED.inc()
            answer(messages.write_bad_version(query))
            return True
        if query.rcode:
            _REFUSED.inc()
            answer(messages.write_rcode(query, query.rcode))
            return True
        found = self._zone.lookup(query.name, query.type, view, client.here)
        if found.status is not LookupStatus.OUTSIDE:
            self._answer_from_zone(query, found, answer)
            return True
        if not query.is_recursive:
            _REFUSED.inc()
            answer(messages.write_rcode(query, messages.REFUSED))
            return True
        return self._answer_from_outside(query, client, answer)

    def _answer_from_zone(self, query: Query, found: ZoneAnswer, answer: Callable[..., None]) -> None:
        if found.status is LookupStatus.UNKNOWN and not self._is_confirmed():
            # It may have been created since a server was last in touch.
            _FAILED.inc()
            answer(messages.write_rcode(query, messages.SERVFAIL))
            return
        _ZONE.inc()
        is_volatile = found.is_volatile or found.status is LookupStatus.UNKNOWN
        if len(found.records) > 1:  # in another order now and then, and not too many
            is_volatile = True
            records = random.sample(found.records, min(len(found.records), MAX_RECORDS))
            targets = {each.value.name for each in records if not isinstance(each.value, str)}
            extra = tuple(each for each in found.extra if each.name in targets)
            found = found._replace(records=tuple(records), extra=extra)
        message = messages.write_answer(
            query, found, domain=self._zone.domain, ttl_s=self._ttl_s, serial=self._zone.version
        )
        answer(message, _VOLATILE_S if is_volatile else float("inf"))

    def _answer_from_outside(self, query: Query, client: Client, answer: Callable[..., None]) -> bool:
        cached = self._forwarder.cached(query)
        if cached is not None:
            _CACHED.inc()
            if cached.reply is None:
                answer(messages.write_rcode(query, messages.SERVFAIL))
                return True
            now = self._clock.monotonic()
            remembered_s = min(_VOLATILE_S, cached.expires_at - now)
            answer(messages.write_relayed(query, cached.reply, int(now - cached.stored_at)), remembered_s)
            return True
        if not self._waiting.acquire(client.address):
            _DROPPED.inc()
            return False
        self._budget.charge(client.address, _FORWARD_TOKENS)
        task = asyncio.create_task(self._forward(query, client, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _forward(self, query: Query, client: Client, answer: Callable[..., None]) -> None:
        try:
            reply = await self._forwarder.resolve(query)
        finally:
            self._waiting.release(client.address)
        if reply is None:
            _FAILED.inc()
            answer(messages.write_rcode(query, messages.SERVFAIL))
        else:
            _FORWARDED.inc()
            answer(messages.write_relayed(query, reply, 0))

    async def close(self) -> None:
        """Questions that wait are not answered."""
        for task in self._tasks:
            task.cancel()
        await self._forwarder.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

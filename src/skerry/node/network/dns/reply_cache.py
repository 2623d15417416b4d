"""Answers of other resolvers, for as long as they may be used; limited in number and in bytes. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from skerry.node.network.dns import messages
from skerry.node.network.dns.messages import NOERROR, NXDOMAIN, Query, UpstreamReply

MAX_TTL_S: Final = 3600
MAX_NEGATIVE_TTL_S: Final = 300
FAILURE_TTL_S: Final = 1  # a resolver that fails is not asked again at once
_OVERHEAD: Final = 600  # bytes of an entry beside its message, about


class CacheKey(NamedTuple):
    """What an answer depends on."""

    question: bytes
    wants_dnssec: bool
    is_checking_disabled: bool

    @classmethod
    def of(cls, query: Query) -> CacheKey:
        return cls(messages.fold(query.question), query.wants_dnssec, query.is_checking_disabled)


class CachedReply(NamedTuple):
    reply: UpstreamReply | None  # None: no resolver gave one
    stored_at: float
    expires_at: float


class ReplyCache:
    """The least recently used go first."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[CacheKey, CachedReply] = OrderedDict()
        self.size = 0  # bytes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: CacheKey, now: float) -> CachedReply | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires_at <= now:
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return entry

    def put(self, key: CacheKey, reply: UpstreamReply | None, now: float) -> None:
        """Remember an answer, or that there was none, unless it may not be used again."""
        ttl_s = usable_s(reply)
        if ttl_s <= 0:
            return
        self._remove(key)
        self._entries[key] = CachedReply(reply, now, now + ttl_s)
        self.size += _size_of(key, reply)
        while len(self._entries) > self._max_entries or self.size > self._max_bytes:
            self._remove(next(iter(self._entries)))

    def clear(self) -> None:
        self._entries.clear()
        self.size = 0

    def _remove(self, key: CacheKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size -= _size_of(key, entry.reply)


def usable_s(reply: UpstreamReply | None) -> int:
    """For how long an answer may be used."""
    if reply is None or reply.rcode not in (NOERROR, NXDOMAIN):
        return FAILURE_TTL_S
    is_negative = reply.rcode == NXDOMAIN or reply.wire[6:8] == b"\0\0"
    return min(reply.ttl_s, MAX_NEGATIVE_TTL_S if is_negative else MAX_TTL_S)


def _size_of(key: CacheKey, reply: UpstreamReply | None) -> int:
    return (
        _OVERHEAD
        + len(key.question)
        + (0 if reply is None else len(reply.wire) + 32 * len(reply.ttl_offsets))
    )

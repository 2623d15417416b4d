"""Limits guesses: an address that shows invalid credentials again and again has to wait.

A gate around another (`skerry.transport.access.gate`), for listeners that strangers reach. Failures are
counted by source: an address, or of IPv6 the /64 that one host can have. One with too many gets 429 for what
it has not shown before; credentials that were accepted lately pass, so that devices behind one address do not
lock each other out. Nothing here does I/O.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from skerry.kit.networks import plain_address
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.transport.access.gate import Guard
from skerry.transport.access.peers import ConnectionPeer

MAX_FAILURES: Final = 20.0  # at once
_FORGIVEN_PER_S: Final = 0.2
_MAX_SOURCES: Final = 4096
_MAX_ACCEPTED: Final = 1024
_IPV6_PREFIX: Final = 64


class AttemptLimit:
    """Failures of each source, forgiven one by one."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is a monotonic clock."""
        self._now = now
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()  # how many, at what time

    def wait_s(self, source: str) -> float:
        """For how long the source must wait; 0 if it need not."""
        over = self._count(source) - (MAX_FAILURES - 1)
        return max(0.0, over / _FORGIVEN_PER_S) if over > 0 else 0.0

    def fail(self, source: str) -> None:
        """It has shown an invalid credential."""
        self._failures[source] = (min(MAX_FAILURES, self._count(source) + 1), self._now())
        self._failures.move_to_end(source)
        while len(self._failures) > _MAX_SOURCES:
            self._failures.popitem(last=False)

    def _count(self, source: str) -> float:
        count, at = self._failures.get(source, (0.0, 0.0))
        left = count - (self._now() - at) * _FORGIVEN_PER_S
        if left <= 0:
            self._failures.pop(source, None)
            return 0.0
        return left


class LimitedGate:
    """A gate that counts invalid credentials."""

    def __init__(self, gate: Guard, now: Callable[[], float]) -> None:
        self._gate = gate
        self._limit = AttemptLimit(now)
        self._accepted: OrderedDict[bytes, None] = OrderedDict()  # digests of credentials

    def caller(self, peer: ConnectionPeer, authorization: str | None, *, is_forwarded: bool) -> Caller:
        if authorization is None:
            return self._gate.caller(peer, authorization, is_forwarded=is_forwarded)
        source = source_of(peer)
        digest = hashlib.sha256(authorization.encode("utf-8", "surrogatepass")).digest()
        if digest not in self._accepted and (wait_s := self._limit.wait_s(source)) > 0:
            raise errors.Overloaded(
                "too many invalid tokens came from your address; wait, and then send a valid one",
                retry_after_s=wait_s,
            )
        try:
            caller = self._gate.caller(peer, authorization, is_forwarded=is_forwarded)
        except errors.Unauthenticated:
            self._accepted.pop(digest, None)
            self._limit.fail(source)
            raise
        self._accepted[digest] = None
        self._accepted.move_to_end(digest)
        if len(self._accepted) > _MAX_ACCEPTED:
            self._accepted.popitem(last=False)
        return caller


def source_of(peer: ConnectionPeer) -> str:
    """What failures are counted by."""
    plain = plain_address(peer.address)
    try:
        address = ipaddress.ip_address(plain)
    except ValueError:
        return peer.address
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((int(address) >> _IPV6_PREFIX << _IPV6_PREFIX, _IPV6_PREFIX)))

"""The state of the direct link to a peer, and which of its endpoints is tried when. Pure but for its fields.

A link is up while probes are answered. While it is not, its endpoints are tried one after the other, for
ever: the link may come up though packets go by a relay meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from skerry.model.ids import NodeId
from skerry.model.mesh import MeshLink
from skerry.node.network.mesh.plans import PeerStatus

DOWN_AFTER: Final = 3.5  # probes without an answer
_TRY_S: Final = 3.0  # an endpoint is tried for so long at first
_LATER_TRY_S: Final = 15.0  # and when all failed several times
_EAGER_ROUNDS: Final = 3
_HANDSHAKE_VALID_S: Final = 180.0
_WEIGHT: Final = 0.2  # of the newest round trip in the average


@dataclass(slots=True)
class LinkState:
    """One link. Times are those of a monotonic clock."""

    node: NodeId
    since: float
    endpoints: tuple[str, ...] = ()
    answered_at: float | None = None
    round_trip_ms: float | None = None
    tried: int = 1  # endpoints since it was last up; the first by the configuration
    tried_at: float = 0.0
    received: int = 0  # bytes when the endpoint was tried
    status: PeerStatus = field(default_factory=lambda: PeerStatus(""))

    def answered(self, now: float, round_trip_s: float) -> None:
        """A probe was answered."""
        sample = round_trip_s * 1000
        before = self.round_trip_ms
        self.round_trip_ms = sample if before is None else before + _WEIGHT * (sample - before)
        self.answered_at = now
        self.tried = 0

    def is_up(self, now: float, period_s: float) -> bool | None:
        """None while it is not known yet. `period_s`: time between probes."""
        last = self.since if self.answered_at is None else max(self.since, self.answered_at)
        if now - last >= DOWN_AFTER * period_s:
            return False
        return None if self.answered_at is None or self.answered_at < self.since else True

    def use(self, endpoints: tuple[str, ...], now: float) -> None:
        """These may be its endpoints from now on."""
        if endpoints != self.endpoints:
            self.endpoints = endpoints
            self.tried, self.tried_at = 0, min(self.tried_at, now - _TRY_S + 1)

    def next_endpoint(self, now: float, status: PeerStatus, *, is_up: bool | None) -> str | None:
        """The endpoint to try now; None: the present one stays."""
        if is_up or not self.endpoints:
            return None
        rounds = self.tried // len(self.endpoints)
        if now - self.tried_at < (_TRY_S if rounds < _EAGER_ROUNDS else _LATER_TRY_S):
            return None
        was, self.received = self.received, status.received
        self.tried_at = now
        if status.received > was:
            return None  # something arrives: perhaps a handshake of the other end, which must not be cut off
        self.tried += 1
        return self.endpoints[(self.tried - 1) % len(self.endpoints)]

    def report(self, now: float, period_s: float, next_key: str) -> MeshLink:
        up, status = self.is_up(now, period_s), self.status
        return MeshLink(
            self.node,
            up,
            status.endpoint if up else "",
            None if self.round_trip_ms is None or not up else round(self.round_trip_ms, 2),
            status.handshake_at,
            status.received,
            status.sent,
            status.public_key,
            next_key,
        )


def is_up_by_handshake(status: PeerStatus, wall_now: float) -> bool:
    """Where there are no probes, because the kernel has no IPv6."""
    return 0 <= wall_now - status.handshake_at < _HANDSHAKE_VALID_S

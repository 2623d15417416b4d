"""Admission of connections: limits per source, a reserve, and which one is dropped first when there are too
many.

One `ConnectionAdmission` for each listener (`skerry.transport.listeners`), and one `ConnectionSlot` for each
connection of it. A source is a user of this machine, or a remote address: of IPv6, the /64 that one host can
have. Slots have this order of priority:

    idle, unknown  <  busy, unknown  <  idle, known  <  busy, known

*Known* is a connection that has authenticated, or whose other end is the server's own user or root; *busy* is
one with a request in progress. When all slots are taken, a new connection gets the slot of the one that has
been idle and unknown for longest, or busy and unknown if that one's source holds more slots than its own. A
connection of root or the server's own user gets any unknown or idle one's, and has reserved slots, unless it
is a proxy's: those have no more rights than its clients. So every client gets a connection for long enough to
authenticate, however many idle ones there are. Sources that flood are refused for a while and lose their
unknown connections; on a listener for configured addresses, all others are always refused. Frames without
content are counted per source too, over all its unknown connections: a flood that is spread over many
connections, or reconnects again and again, is still one flood. Nothing here does I/O; a connection that loses
its slot is dropped by the function that was given for it.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Final

import msgspec

from skerry.kit.networks import Network, is_within
from skerry.transport.access.peers import ConnectionPeer
from skerry.transport.pacing import FrameBudget

# An address or a network of them, or the user of a local process.
AdmissionSource = Hashable

_UNKNOWN_LOCAL: Final = "loopback"  # a local process that nothing is known of, mostly because it hung up
_IPV6_PREFIX: Final = 64

UNNAMED: Final = "unnamed"  # the reason for a source whose address is not served
SOURCE_LIMIT: Final = "source"  # the reason for a source that has all slots it may have
FLOODED: Final = "flooded"  # the reason for a source that has flooded
_RESERVED_SHARE: Final = 16  # one in so many slots is reserved for root and the server's own user
_MAX_RESERVED: Final = 64
BARRED_S: Final = 5.0  # for a source that has flooded a connection, unless it is trusted
# Frames without content of all unknown connections of a source: so many at once, then so many each second. A
# client begins with about six, and a source has at most a few hundred connections.
SOURCE_FRAMES: Final = 2400
_SOURCE_FRAMES_PER_S: Final = 400
FAULTS: Final = 32  # connections on which a source breaks the protocol, while it has others, count as a flood


class AdmissionLimits(msgspec.Struct, frozen=True):
    """How many there are."""

    most: int
    per_source: int

    @property
    def reserved(self) -> int:
        return min(self.most // _RESERVED_SHARE, _MAX_RESERVED)


class AdmissionRefused(Exception):
    """There is none; `slug` is for metrics."""

    def __init__(self, slug: str, text: str) -> None:
        super().__init__(text)
        self.slug = slug


class ConnectionSlot:
    """That of one connection, from its acceptance to its end."""

    __slots__ = ("_admission", "drop", "is_busy", "is_known", "is_trusted", "peer", "source")

    def __init__(
        self,
        admission: ConnectionAdmission,
        peer: ConnectionPeer,
        drop: Callable[[], None],
        *,
        is_trusted: bool,
    ) -> None:
        self._admission = admission
        self.peer = peer
        self.source = _source_of(peer)
        self.drop = drop  # the connection
        self.is_trusted = is_trusted
        self.is_known = is_trusted
        self.is_busy = False

    def occupy(self) -> None:
        """A request is under way."""
        if not self.is_busy:
            self._admission.rank(self, is_busy=True, is_known=self.is_known)

    def rest(self) -> None:
        """None is any more."""
        if self.is_busy:
            self._admission.rank(self, is_busy=False, is_known=self.is_known)

    def recognize(self) -> None:
        """The client has authenticated."""
        if not self.is_known:
            self._admission.rank(self, is_busy=self.is_busy, is_known=True)

    def distrust(self) -> None:
        """Its peer is a proxy: it has no more rights than its clients."""
        if self.is_trusted:
            self.is_trusted = False
            self._admission.rank(self, is_busy=self.is_busy, is_known=False)

    def spend_frame(self) -> bool:
        """A frame without content has come; False if it is one too many for its source. Those of
        known peers are not counted."""
        return self.is_known or self._admission.spend_frame(self.source)

    def blame(self, *, at_once: bool = False) -> None:
        """Its peer broke the protocol, or with `at_once` flooded it: too often, and its source is barred."""
        self._admission.blame(self, at_once=at_once)


class ConnectionAdmission:
    """The slots of one listener; with `networks`, only clients from those get one."""

    def __init__(
        self,
        limits: AdmissionLimits,
        trusted_uids: frozenset[int],
        now: Callable[[], float],
        networks: Sequence[Network] | None = None,
    ) -> None:
        self._limits = limits
        self._networks = networks
        self._trusted_uids = trusted_uids
        self._now = now
        self._connections: Counter[AdmissionSource] = Counter()
        self._faults: Counter[AdmissionSource] = Counter()  # of present connections
        self._barred: dict[AdmissionSource, float] = {}  # until when
        self._frames: dict[AdmissionSource, FrameBudget] = {}  # of present connections
        # By (is known, is busy); in each, the one that has been so for longest is first.
        self._ranks: dict[tuple[bool, bool], dict[ConnectionSlot, None]] = {
            (is_known, is_busy): {} for is_known in (False, True) for is_busy in (False, True)
        }

    def __len__(self) -> int:
        return sum(map(len, self._ranks.values()))

    def admit(self, peer: ConnectionPeer, drop: Callable[[], None]) -> ConnectionSlot:
        """A slot for a new connection, perhaps that of another, which is dropped; raises
        `AdmissionRefused`."""
        if self._networks is not None and not is_within(peer.address, self._networks):
            raise AdmissionRefused(UNNAMED, "its address is not among those that are served here")
        is_trusted = peer.uid in self._trusted_uids
        source = _source_of(peer)
        if not is_trusted:
            self._check(source)
        most = self._limits.most if is_trusted else self._limits.most - self._limits.reserved
        if len(self) >= most:
            loser = self._loser_to(source, is_trusted=is_trusted)
            if loser is None:
                raise AdmissionRefused("limit", f"all {most} connections are in use")
            self.leave(loser)
            loser.drop()
        slot = ConnectionSlot(self, peer, drop, is_trusted=is_trusted)
        self._connections[source] += 1
        self._ranks[slot.is_known, False][slot] = None
        return slot

    def leave(self, slot: ConnectionSlot) -> None:
        """The connection has ended; more than once is as good as once."""
        rank = self._ranks[slot.is_known, slot.is_busy]
        if slot in rank:
            del rank[slot]
            self._connections[slot.source] -= 1
            if not self._connections[slot.source]:
                del self._connections[slot.source]
                self._faults.pop(slot.source, None)
                self._frames.pop(slot.source, None)

    def rank(self, slot: ConnectionSlot, *, is_known: bool, is_busy: bool) -> None:
        """It is so from now on."""
        rank = self._ranks[slot.is_known, slot.is_busy]
        slot.is_known, slot.is_busy = is_known, is_busy
        if slot in rank:  # else it has lost its slot, and only waits to be dropped
            del rank[slot]
            self._ranks[is_known, is_busy][slot] = None

    def spend_frame(self, source: AdmissionSource) -> bool:
        """A frame without content has come from a connection of `source` that is unknown."""
        now = self._now()
        budget = self._frames.get(source)
        if budget is None:
            budget = self._frames[source] = FrameBudget(SOURCE_FRAMES, _SOURCE_FRAMES_PER_S, now=now)
        return budget.spend(now)

    def blame(self, slot: ConnectionSlot, *, at_once: bool) -> None:
        if slot.is_trusted or slot.source not in self._connections:
            return  # its last connection is closed
        faults = self._faults[slot.source] = 0 if at_once else self._faults[slot.source] + 1
        if at_once or faults >= FAULTS:
            self._barred[slot.source] = self._now() + BARRED_S
            del self._faults[slot.source]
            self._drop_unknown(slot)

    def _check(self, source: AdmissionSource) -> None:
        if self._barred:
            now = self._now()
            self._barred = {source: until for source, until in self._barred.items() if until > now}
            if source in self._barred:
                raise AdmissionRefused(FLOODED, "it has flooded a connection a moment ago")
        if self._connections[source] >= self._limits.per_source:
            raise AdmissionRefused(
                SOURCE_LIMIT,
                f"it has {self._connections[source]} connections, the limit for one user or address",
            )

    def _drop_unknown(self, flooder: ConnectionSlot) -> None:
        """Drop the other unknown connections of a source that was barred: they have input left to handle. The
        flooder's own is closed by its protocol, with an error."""
        unknown = [*self._ranks[False, False], *self._ranks[False, True]]
        for slot in unknown:
            if slot.source == flooder.source and slot is not flooder:
                self.leave(slot)
                slot.drop()

    def _loser_to(self, source: AdmissionSource, *, is_trusted: bool) -> ConnectionSlot | None:
        idle, busy = self._ranks[False, False], self._ranks[False, True]
        if (slot := next(iter(idle), None)) is not None:
            return slot
        # Not only the first: one connection of a source without others must not protect the rest.
        fair = self._connections[source] + 1
        for slot in busy:
            if is_trusted or self._connections[slot.source] > fair:
                return slot
        known = self._ranks[True, False] if is_trusted else ()
        return next((slot for slot in known if not slot.is_trusted), None)


def _source_of(peer: ConnectionPeer) -> AdmissionSource:
    """Whoever can have many addresses for nothing is one source by all of them."""
    if peer.uid is not None:
        return peer.uid
    if peer.loopback:
        return _UNKNOWN_LOCAL
    try:
        address = ipaddress.IPv6Address(peer.address.partition("%")[0])
    except ValueError:
        return peer.address
    return str(address.ipv4_mapped or ipaddress.IPv6Network((address, _IPV6_PREFIX), strict=False))

"""Who gets a place when connections are short: limits per source, a reserve, and who has to go first.

One `ConnectionAdmission` for each listener (`skerry.transport.listeners`), and one `ConnectionSlot` for each
connection of it. A source is a user of this machine, or a remote address: of IPv6, the /64 that one host can
have. Places are of this order of worth:

    idle, unknown  <  busy, unknown  <  idle, known  <  busy, known

*Known* is a connection on which somebody has shown who they are, or whose other end is the server's own user
or root; *busy* is one on which a request is under way. When all places are taken, a newcomer gets that of
whoever has been idle and unknown for longest, or busy and unknown if that one's source holds more places than
its own. One of root or the server's own user gets any that is unknown, or idle, and has places kept for it
before that, unless it passes on requests of others: a proxy's are worth no more than those whom it serves. So
whoever can show who they are gets in for long enough to do so, however many wait in silence.
Sources that flood are kept out for a while; on a listener that is for named addresses, all others are always.
Nothing here does I/O; a connection that loses its place is dropped by the function that came with it.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from skerry.kit.networks import Network, is_within
from skerry.transport.access.peers import ConnectionPeer

# An address or a network of them, or the user of a local process.
AdmissionSource = Hashable

_SOMEBODY_HERE: Final = "loopback"  # a local process that nothing is known of, mostly because it hung up
_IPV6_PREFIX: Final = 64

UNNAMED: Final = "unnamed"  # why there is none for a source whose address is not among those that are served
FLOODED: Final = "flooded"  # why there is no place for a source that has flooded
_RESERVED_SHARE: Final = 16  # one in so many places is kept for root and the server's own user
_MAX_RESERVED: Final = 64
BARRED_S: Final = 5.0  # for a source that has flooded a connection, unless it is trusted
FAULTS: Final = 32  # connections on which a source breaks the protocol, while it has others, count as a flood


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
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
        """Somebody has shown who they are."""
        if not self.is_known:
            self._admission.rank(self, is_busy=self.is_busy, is_known=True)

    def distrust(self) -> None:
        """Its peer passes on what others ask, as a proxy does: it has no more rights than they."""
        if self.is_trusted:
            self.is_trusted = False
            self._admission.rank(self, is_busy=self.is_busy, is_known=False)

    def blame(self, *, at_once: bool = False) -> None:
        """Its peer broke the protocol, or with `at_once` flooded it: too often, and its source is barred."""
        self._admission.blame(self, at_once=at_once)


class ConnectionAdmission:
    """The places of one listener; with `networks`, of one that only they get a place of."""

    def __init__(
        self,
        places: AdmissionLimits,
        trusted_uids: frozenset[int],
        now: Callable[[], float],
        networks: Sequence[Network] | None = None,
    ) -> None:
        self._places = places
        self._networks = networks
        self._trusted_uids = trusted_uids
        self._now = now
        self._connections: Counter[AdmissionSource] = Counter()
        self._faults: Counter[AdmissionSource] = Counter()  # of those who are here
        self._barred: dict[AdmissionSource, float] = {}  # until when
        # By (is known, is busy); in each, whoever came to be so longest ago is first.
        self._ranks: dict[tuple[bool, bool], dict[ConnectionSlot, None]] = {
            (is_known, is_busy): {} for is_known in (False, True) for is_busy in (False, True)
        }

    def __len__(self) -> int:
        return sum(map(len, self._ranks.values()))

    def admit(self, peer: ConnectionPeer, drop: Callable[[], None]) -> ConnectionSlot:
        """A place for a newcomer, be it that of another, which is dropped; raises `AdmissionRefused`."""
        if self._networks is not None and not is_within(peer.address, self._networks):
            raise AdmissionRefused(UNNAMED, "its address is not among those that are served here")
        is_trusted = peer.uid in self._trusted_uids
        source = _source_of(peer)
        if not is_trusted:
            self._check(source)
        most = self._places.most if is_trusted else self._places.most - self._places.reserved
        if len(self) >= most:
            loser = self._loser_to(source, is_trusted=is_trusted)
            if loser is None:
                raise AdmissionRefused("limit", f"all {most} places are taken by others who are at work")
            self.leave(loser)
            loser.drop()
        place = ConnectionSlot(self, peer, drop, is_trusted=is_trusted)
        self._connections[source] += 1
        self._ranks[place.is_known, False][place] = None
        return place

    def leave(self, place: ConnectionSlot) -> None:
        """The connection has ended; more than once is as good as once."""
        rank = self._ranks[place.is_known, place.is_busy]
        if place in rank:
            del rank[place]
            self._connections[place.source] -= 1
            if not self._connections[place.source]:
                del self._connections[place.source]
                self._faults.pop(place.source, None)

    def rank(self, place: ConnectionSlot, *, is_known: bool, is_busy: bool) -> None:
        """It is so from now on."""
        rank = self._ranks[place.is_known, place.is_busy]
        place.is_known, place.is_busy = is_known, is_busy
        if place in rank:  # else it has lost its place, and only waits to be dropped
            del rank[place]
            self._ranks[is_known, is_busy][place] = None

    def blame(self, place: ConnectionSlot, *, at_once: bool) -> None:
        if place.is_trusted or place.source not in self._connections:
            return  # nobody is there any more to count for
        faults = self._faults[place.source] = 0 if at_once else self._faults[place.source] + 1
        if at_once or faults >= FAULTS:
            self._barred[place.source] = self._now() + BARRED_S
            del self._faults[place.source]

    def _check(self, source: AdmissionSource) -> None:
        if self._barred:
            now = self._now()
            self._barred = {source: until for source, until in self._barred.items() if until > now}
            if source in self._barred:
                raise AdmissionRefused(FLOODED, "it has flooded a connection a moment ago")
        if self._connections[source] >= self._places.per_source:
            raise AdmissionRefused(
                "source", f"it holds {self._connections[source]} places, and no user or address gets more"
            )

    def _loser_to(self, source: AdmissionSource, *, is_trusted: bool) -> ConnectionSlot | None:
        idle, busy = self._ranks[False, False], self._ranks[False, True]
        if (place := next(iter(idle), None)) is not None:
            return place
        # Not only the first: one connection of a source that holds no other must not stand before the rest.
        fair = self._connections[source] + 1
        for place in busy:
            if is_trusted or self._connections[place.source] > fair:
                return place
        known = self._ranks[True, False] if is_trusted else ()
        return next((place for place in known if not place.is_trusted), None)


def _source_of(peer: ConnectionPeer) -> AdmissionSource:
    """Whoever can have many addresses for nothing is one source by all of them."""
    if peer.uid is not None:
        return peer.uid
    if peer.loopback:
        return _SOMEBODY_HERE
    try:
        address = ipaddress.IPv6Address(peer.address.partition("%")[0])
    except ValueError:
        return peer.address
    return str(address.ipv4_mapped or ipaddress.IPv6Network((address, _IPV6_PREFIX), strict=False))

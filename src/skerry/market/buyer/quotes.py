"""Values between the buyer's part of a cloud and its API: peers, requests for capacity, quotes, contracts.

`BuyerPort` is the interface. `skerry.market.buyer.service` implements it; the HTTP API and the command line
use it. Nothing here knows the protocol of a provider.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Sequence
from decimal import Decimal
from typing import Protocol

import msgspec

from skerry.model import errors
from skerry.model.ids import ContractId, NodeId, OfferId
from skerry.model.market import Offer, Price
from skerry.model.resources import NO_RESOURCES, Resources


class MarketPeer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Another cloud that this one buys from. `skerry.market.buyer.peers` validates it."""

    name: str
    url: str
    cloud: str  # its id on the market, which its signatures must be of: the trust anchor
    ca: str = ""  # PEM; its https certificate must be of this one, or else of the system's
    mesh: bool = False  # nodes borrowed from it take part in this cloud's mesh


class PeerStatus(msgspec.Struct, frozen=True):
    """A peer and the result of its last request; None before the first."""

    peer: MarketPeer
    is_reached: bool | None
    message: str = ""
    latency_s: float | None = None
    at: float | None = None


class CapacityRequest(msgspec.Struct, frozen=True):
    """What is to be had: `count` times `resources`, or anything if that is nothing. Empty is no matter."""

    resources: Resources = msgspec.field(default=NO_RESOURCES, name="room")
    count: int = 1
    duration_s: float | None = None  # None: the provider's own default
    max_price: Decimal | None = None  # of all of it, for each hour, whatever the period of an offer
    currency: str = ""
    where: str = ""
    architecture: str = ""
    peer: str = ""
    gpus: int = 0  # with all of it together, at least

    def __post_init__(self) -> None:
        has_price = self.count > 1 or self.duration_s is not None or self.max_price is not None
        if has_price and self.resources == NO_RESOURCES:
            raise errors.Invalid(
                "how much is to be had? name cpu, memory or disk with a count, a duration or a price",
                field="cpu",
            )
        if self.count < 1:
            raise errors.Invalid("count is a whole number above 0", field="count")
        if self.duration_s is not None and not self.duration_s >= 1:
            raise errors.Invalid("a contract lasts at least a second", field="duration_s")
        if self.max_price is not None and not self.max_price >= 0:
            raise errors.Invalid("a price is 0 or more", field="max_price")

    def check_amount(self) -> None:
        """Raise `Invalid` unless an amount is requested."""
        if self.resources == NO_RESOURCES:
            raise errors.Invalid(
                "no capacity is requested; name an amount of cpu, memory or disk", field="cpu"
            )


class OfferQuote(msgspec.Struct, frozen=True):
    """An offer of a peer, and the part of it that meets the request."""

    peer: str
    flavor: Offer
    free: Resources
    resources: Resources = msgspec.field(name="room")
    count: int
    price: Price  # of `resources` times `count`, for each period


class PeerFailure(msgspec.Struct, frozen=True):
    """A peer that gave no answer, or none that could be used."""

    peer: str
    message: str  # names it


class OfferSearchResult(msgspec.Struct, frozen=True):
    """What was found, best first: the cheapest, then by the names of peer and flavor."""

    found: list[OfferQuote]
    failures: list[PeerFailure]


class BorrowedContractState(enum.StrEnum):
    """Where a borrowed contract is."""

    OPENING = "opening"  # purchased; its node has not connected yet
    OPEN = "open"  # its node takes work
    DRAINING = "draining"  # its node takes no new work, and what it has moves away
    ENDED = "ended"


class BorrowedContract(msgspec.Struct, frozen=True, omit_defaults=True):
    """A contract that this cloud bought, and the node that it is here."""

    id: ContractId
    peer: str
    cloud: str  # the seller
    node: NodeId
    flavor: OfferId
    resources: Resources = msgspec.field(name="room")  # of one
    count: int
    price: Price  # of all of it, for each period
    total: Decimal
    starts_at: float
    ends_at: float
    state: BorrowedContractState
    reclaim_at: float | None  # the provider takes it back then
    reason: str  # why it is taken back, or how it ended
    ended_at: float | None
    document: str  # signed by both sides
    actor: str  # the caller that bought it

    @property
    def taken(self) -> Resources:
        """All that was bought."""
        return self.resources * self.count

    @property
    def due_at(self) -> float:
        """When it ends if nothing else happens."""
        return self.ends_at if self.reclaim_at is None else min(self.ends_at, self.reclaim_at)


class BuyProgress(msgspec.Struct, frozen=True):
    """A step of a purchase: listing, reserving, buying, signing, opening, done."""

    step: str
    message: str
    borrowed: BorrowedContract | None = None


class BuyerPort(Protocol):
    """The part of a cloud that buys."""

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a peer, a purchase or a contract has changed."""

    def peers(self) -> Sequence[PeerStatus]: ...

    async def set_peer(self, peer: MarketPeer, *, actor: str) -> None: ...

    async def remove_peer(self, name: str, *, actor: str) -> None:
        """Raises `NotFound`, or `Conflict` while contracts of it are live."""

    async def offers(self, request: CapacityRequest, *, own: bool = False) -> OfferSearchResult:
        """Offers of peers, queried all at once; those that fail are named. `own`: of this cloud too."""

    def buy(self, request: CapacityRequest, *, actor: str) -> AsyncIterator[BuyProgress]:
        """Buy the best offer and wait for its node; raises if it fails, and what was begun is undone.

        `Invalid` at once if no amount is requested.
        """

    def borrowed(self) -> Sequence[BorrowedContract]: ...

    def get(self, id: str) -> BorrowedContract:
        """Raises `NotFound`."""

    async def release(self, id: str, *, actor: str) -> BorrowedContract:
        """Give it back: its work moves away first."""

    async def renew(self, id: str, duration_s: float, *, actor: str) -> BorrowedContract:
        """Let it last so much longer than it does, at the price of now."""


def peer_error(peer: str, message: str) -> str:
    """What went wrong with a peer, with its name once."""
    return message if message.startswith(f"peer {peer}") else f"peer {peer}: {message}"

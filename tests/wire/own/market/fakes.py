"""A trader that buys of nobody, and a list of buyers that is kept nowhere; what was asked is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from decimal import Decimal

from msgspec.structs import replace

from skerry.market.buyer.quotes import (
    BorrowedContract,
    BorrowedContractState,
    BuyProgress,
    CapacityRequest,
    MarketPeer,
    OfferQuote,
    OfferSearchResult,
    PeerFailure,
    PeerStatus,
)
from skerry.market.provider.allowlist import AllowedBuyer
from skerry.model import errors
from skerry.model.ids import CloudId, ContractId, NodeId, OfferId
from skerry.model.market import Price, check_cloud
from tests.support.deals import FLAVOR, SELLER, resources

START = 1_700_000_000.0
NORTH = MarketPeer("north", "https://north.example:1323", SELLER.cloud)
FOUND = OfferQuote(
    "north", FLAVOR, resources(6, 12288, 100), resources(4, 8192), 1, Price(Decimal("0.40"), "EUR", "PT1H")
)
BORROWED = BorrowedContract(
    id=ContractId("01c0ntract"),
    peer="north",
    cloud=SELLER.cloud,
    node=NodeId("borrowed-01c0ntract"),
    flavor=OfferId("edge-1"),
    resources=resources(4, 8192),
    count=1,
    price=Price(Decimal("0.40"), "EUR", "PT1H"),
    total=Decimal("0.80"),
    starts_at=START,
    ends_at=START + 7200,
    state=BorrowedContractState.OPEN,
    reclaim_at=None,
    reason="",
    ended_at=None,
    document="header.payload.signature",
    actor="uid:0",
)
STEPS = (
    BuyProgress("listing", "1 of 1 peers answered, with 1 offer"),
    BuyProgress("reserving", "edge-1 of north"),
    BuyProgress("opening", "waiting for its node", replace(BORROWED, state=BorrowedContractState.OPENING)),
    BuyProgress("done", "bought", BORROWED),
)


class FakeAllowlist:
    """`named` is what a setting names."""

    def __init__(self) -> None:
        self.named = AllowedBuyer(CloudId("key.named"))
        self.added: dict[str, AllowedBuyer] = {}

    def all(self) -> Sequence[AllowedBuyer]:
        return [self.named, *self.added.values()]

    async def add(self, id: str, *, note: str = "", actor: str) -> AllowedBuyer:
        self.added[id] = AllowedBuyer(check_cloud(id, "buyer"), note, START)
        return self.added[id]

    async def remove(self, id: str, *, actor: str) -> None:
        if self.added.pop(id, None) is None:
            raise errors.NotFound("there is no such buyer")


class FakeTrader:
    """`steps` are told by a purchase, which then raises `failing`, or stays where it is if `hangs`."""

    def __init__(self) -> None:
        self.known: dict[str, PeerStatus] = {}
        self.contracts: dict[str, BorrowedContract] = {}
        self.listing = OfferSearchResult([FOUND], [PeerFailure("south", "peer south: no answer within 3 s")])
        self.wishes: list[CapacityRequest] = []
        self.steps: Iterable[BuyProgress] = STEPS
        self.failing: errors.SkerryError | None = None
        self.hangs = False
        self.undone = 0
        self.actors: list[str] = []

    def listen(self, changed: Callable[[], None]) -> None:
        raise AssertionError("no route of the API listens")

    def peers(self) -> Sequence[PeerStatus]:
        return list(self.known.values())

    async def set_peer(self, peer: MarketPeer, *, actor: str) -> None:
        if self.failing is not None:
            raise self.failing
        self.actors.append(actor)
        self.known[peer.name] = PeerStatus(peer, None)

    async def remove_peer(self, name: str, *, actor: str) -> None:
        if self.failing is not None:
            raise self.failing
        if name not in self.known:
            raise errors.NotFound("there is no such peer")
        del self.known[name]

    async def offers(self, wish: CapacityRequest, *, own: bool = False) -> OfferSearchResult:
        self.wishes.append(wish)
        if self.failing is not None:
            raise self.failing
        mine = [replace(FOUND, peer="")] if own else []
        return OfferSearchResult(
            [one for one in (*self.listing.found, *mine) if wish.peer in ("", one.peer)],
            [one for one in self.listing.failures if wish.peer in ("", one.peer)],
        )

    async def buy(self, wish: CapacityRequest, *, actor: str) -> AsyncGenerator[BuyProgress, None]:
        self.wishes.append(wish)
        self.actors.append(actor)
        is_done = False
        try:
            for step in self.steps:
                if step.borrowed is not None:
                    self.contracts[step.borrowed.id] = step.borrowed
                    is_done = True
                yield step
            if self.hangs:
                await asyncio.Event().wait()
            if self.failing is not None:
                raise self.failing
        finally:
            self.undone += not is_done

    def borrowed(self) -> Sequence[BorrowedContract]:
        return list(self.contracts.values())

    def get(self, id: str) -> BorrowedContract:
        if id not in self.contracts:
            raise errors.NotFound("there is no such contract; list contracts to see those there are")
        return self.contracts[id]

    async def release(self, id: str, *, actor: str) -> BorrowedContract:
        """Its work takes a moment: it is over when it is looked at again."""
        before = self.get(id)
        self.contracts[id] = replace(
            before, state=BorrowedContractState.ENDED, ended_at=START + 60, reason="released"
        )
        return replace(before, state=BorrowedContractState.DRAINING)

    async def renew(self, id: str, duration_s: float, *, actor: str) -> BorrowedContract:
        self.contracts[id] = replace(self.get(id), ends_at=START + duration_s, total=Decimal("1.20"))
        return self.contracts[id]

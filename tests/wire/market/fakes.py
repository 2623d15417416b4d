"""A trader that buys of nobody: what was asked is kept, and the answers are what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from decimal import Decimal

from msgspec.structs import replace

from skerry.market.trading import (
    Borrowed,
    Found,
    Listing,
    Peer,
    PeerFailure,
    PeerState,
    Progress,
    State,
    Wish,
)
from skerry.model import errors
from skerry.model.ids import ContractId, FlavorId, NodeId
from skerry.model.market import Price
from tests.support.deals import FLAVOR, SELLER, room

START = 1_700_000_000.0
NORTH = Peer("north", "https://north.example:1323", SELLER.cloud)
FOUND = Found("north", FLAVOR, room(6, 12288, 100), room(4, 8192), 1, Price(Decimal("0.40"), "EUR", "PT1H"))
BORROWED = Borrowed(
    id=ContractId("01c0ntract"),
    peer="north",
    cloud=SELLER.cloud,
    node=NodeId("borrowed-01c0ntract"),
    flavor=FlavorId("edge-1"),
    room=room(4, 8192),
    count=1,
    price=Price(Decimal("0.40"), "EUR", "PT1H"),
    total=Decimal("0.80"),
    starts_at=START,
    ends_at=START + 7200,
    state=State.OPEN,
    reclaim_at=None,
    reason="",
    ended_at=None,
    document="header.payload.signature",
    actor="uid:0",
)
STEPS = (
    Progress("listing", "1 of 1 peers answered, with 1 offer"),
    Progress("reserving", "edge-1 of north"),
    Progress("opening", "waiting for its node", replace(BORROWED, state=State.OPENING)),
    Progress("done", "bought", BORROWED),
)


class FakeTrader:
    """`steps` are told by a purchase, which then raises `failing`, or stays where it is if `hangs`."""

    def __init__(self) -> None:
        self.known: dict[str, PeerState] = {}
        self.contracts: dict[str, Borrowed] = {}
        self.listing = Listing([FOUND], [PeerFailure("south", "peer south: no answer within 3 s")])
        self.wishes: list[Wish] = []
        self.steps: Iterable[Progress] = STEPS
        self.failing: errors.SkerryError | None = None
        self.hangs = False
        self.undone = 0
        self.actors: list[str] = []

    def peers(self) -> Sequence[PeerState]:
        return list(self.known.values())

    async def set_peer(self, peer: Peer, *, actor: str) -> None:
        self.actors.append(actor)
        self.known[peer.name] = PeerState(peer, None)

    async def remove_peer(self, name: str, *, actor: str) -> None:
        if self.failing is not None:
            raise self.failing
        if name not in self.known:
            raise errors.NotFound("there is no such peer")
        del self.known[name]

    async def offers(self, wish: Wish, *, own: bool = False) -> Listing:
        self.wishes.append(wish)
        if self.failing is not None:
            raise self.failing
        mine = [replace(FOUND, peer="")] if own else []
        return Listing(
            [one for one in (*self.listing.found, *mine) if wish.peer in ("", one.peer)],
            [one for one in self.listing.failures if wish.peer in ("", one.peer)],
        )

    async def buy(self, wish: Wish, *, actor: str) -> AsyncGenerator[Progress, None]:
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

    def borrowed(self) -> Sequence[Borrowed]:
        return list(self.contracts.values())

    def get(self, id: str) -> Borrowed:
        if id not in self.contracts:
            raise errors.NotFound("there is no such contract; list contracts to see those there are")
        return self.contracts[id]

    async def release(self, id: str, *, actor: str) -> Borrowed:
        """Its work takes a moment: it is over when it is looked at again."""
        before = self.get(id)
        self.contracts[id] = replace(before, state=State.ENDED, ended_at=START + 60, reason="released")
        return replace(before, state=State.DRAINING)

    async def renew(self, id: str, duration_s: float, *, actor: str) -> Borrowed:
        self.contracts[id] = replace(self.get(id), ends_at=START + duration_s, total=Decimal("1.20"))
        return self.contracts[id]

"""The buyer service of a cloud: `skerry.market.buyer.quotes.BuyerPort`.

It combines `skerry.market.buyer.peers`, `skerry.market.buyer.search` and `skerry.market.buyer.acquisition`. A
contract is released by a mark on its record, which `skerry.market.buyer.borrowed_node_controller` carries
out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from skerry.kit.clock import Clock
from skerry.market.buyer import node_decisions, provider_client
from skerry.market.buyer.acquisition import ContractBuyer
from skerry.market.buyer.contract_table import BorrowedContractRecord, BorrowedContractTable
from skerry.market.buyer.peers import MarketPeerTable
from skerry.market.buyer.provider_client import ProviderClients
from skerry.market.buyer.quotes import (
    BorrowedContract,
    BuyProgress,
    CapacityRequest,
    MarketPeer,
    OfferSearchResult,
    PeerStatus,
)
from skerry.market.buyer.search import OfferSearch
from skerry.market.terms import signatures
from skerry.market.terms.keys import SigningKey
from skerry.model import errors
from skerry.model.market_settings import MarketSettings


class BuyerService:
    """Keeps the protocol `BuyerPort`."""

    def __init__(
        self,
        contracts: BorrowedContractTable,
        peers: MarketPeerTable,
        lister: OfferSearch,
        buyer: ContractBuyer,
        providers: ProviderClients,
        key: SigningKey,
        clock: Clock,
        settings: MarketSettings,
    ) -> None:
        self._contracts = contracts
        self._peers = peers
        self._lister = lister
        self._buyer = buyer
        self._providers = providers
        self._key = key
        self._clock = clock
        self._settings = settings

    def listen(self, changed: Callable[[], None]) -> None:
        self._contracts.listen(changed)
        self._peers.listen(changed)

    # Peers

    def peers(self) -> Sequence[PeerStatus]:
        return self._lister.states()

    async def set_peer(self, peer: MarketPeer, *, actor: str) -> None:
        """Its URL may change at any time, its cloud only while nothing of it is borrowed.

        `FailedPrecondition` if another cloud answers or it is not trusted; an unreachable one is accepted.
        """
        self._peers.check(peer)
        known = next((one for one in self._peers.all() if one.name == peer.name), None)
        if known is not None and known.cloud != peer.cloud:
            self._require_unused(peer.name, "becomes another cloud")
        with suppress(errors.Unavailable, errors.TimedOut, TimeoutError):
            async with asyncio.timeout(self._settings.list_timeout_s):
                await self._providers(peer).check()
        await self._peers.put(peer, actor=actor)

    async def remove_peer(self, name: str, *, actor: str) -> None:
        self._peers.get(name)
        self._require_unused(name, "is removed")
        await self._peers.remove(name, actor=actor)

    def _require_unused(self, name: str, becoming: str) -> None:
        live = [
            record.borrowed.id
            for record in self._contracts.all()
            if not record.is_over and record.borrowed.peer == name
        ]
        if live:
            others = f" and {len(live) - 1} more" if len(live) > 1 else ""
            raise errors.Conflict(
                f"contract {live[0]} of peer {name}{others} is live; release what is bought of it before it "
                f"{becoming}"
            )
        if any(deal.peer == name for deal in self._contracts.deals()):
            raise errors.Conflict(f"a purchase of peer {name} is under way; try again in a minute")

    # Buying

    async def offers(self, request: CapacityRequest, *, own: bool = False) -> OfferSearchResult:
        return await self._lister.offers(request, own=own)

    def buy(self, request: CapacityRequest, *, actor: str) -> AsyncIterator[BuyProgress]:
        request.check_amount()
        return self._buyer.buy(request, actor=actor)

    # Contracts

    def borrowed(self) -> Sequence[BorrowedContract]:
        return [record.borrowed for record in self._contracts.all()]

    def get(self, id: str) -> BorrowedContract:
        return self._contracts.get(id).borrowed

    async def release(self, id: str, *, actor: str) -> BorrowedContract:
        """Its node is drained first, for at most `market.drain_s`; one that is over stays as it is."""
        by = self._clock.now() + self._settings.drain_s
        record = await self._contracts.change(
            self.get(id).id, lambda record: node_decisions.request_release(record, by), actor=actor
        )
        return record.borrowed

    async def renew(self, id: str, duration_s: float, *, actor: str) -> BorrowedContract:
        """`FailedPrecondition` if it is ending, or if the price is higher than before."""
        record = self._contracts.get(id)
        borrowed = record.borrowed
        if record.is_over or record.leave_by is not None or borrowed.reclaim_at is not None:
            raise errors.FailedPrecondition(
                f"contract {borrowed.id} ends: {borrowed.reason or 'it is over'}; buy again"
            )
        if not duration_s >= 1:
            raise errors.Invalid("a contract is renewed for at least a second", field="duration_s")
        before = signatures.verify(borrowed.document.encode("ascii")).contract
        provider = self._providers(self._peers.get(borrowed.peer))
        until = before.ends_at + duration_s
        document = await provider.renew(borrowed.id, until)
        after = provider_client.check_renewed(document, before, until=until, most=borrowed.price)
        both = signatures.countersign(self._key, document)
        await provider.sign(borrowed.id, both)

        def renewed(record: BorrowedContractRecord) -> BorrowedContractRecord:
            terms = replace(
                record.borrowed,
                price=after.price,
                total=after.total,
                ends_at=after.ends_at,
                document=both.decode("ascii"),
            )
            return replace(record, borrowed=terms, signed_until=after.ends_at)

        return (await self._contracts.change(borrowed.id, renewed, actor=actor, event="renewed")).borrowed

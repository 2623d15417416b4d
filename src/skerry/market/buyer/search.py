"""Searches the offers of all peers at once, each with a timeout of its own.

A peer that fails or is late is named in the result and delays no other. The last result of each is kept in
memory, for the list of peers. `skerry.market.buyer.ranking` ranks offers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from skerry.kit.clock import Clock
from skerry.market.buyer import ranking
from skerry.market.buyer.peers import MarketPeerTable
from skerry.market.buyer.provider_client import ProviderClients
from skerry.market.buyer.quotes import (
    CapacityRequest,
    MarketPeer,
    OfferQuote,
    OfferSearchResult,
    PeerFailure,
    PeerStatus,
    peer_error,
)
from skerry.market.terms.selectors import OfferSnapshot
from skerry.model import errors

log = structlog.get_logger(__name__)

OWN: Final = ""  # the peer's name in what this cloud offers itself


class OfferSearch:
    """Asks peers for their offers."""

    def __init__(
        self,
        peers: MarketPeerTable,
        providers: ProviderClients,
        clock: Clock,
        *,
        timeout_s: float,
        own: Callable[[], Iterable[OfferSnapshot]] = tuple,
    ) -> None:
        """`own` is what this cloud offers."""
        self._peers = peers
        self._providers = providers
        self._clock = clock
        self._timeout_s = timeout_s
        self._own = own
        self._states: dict[str, PeerStatus] = {}

    def states(self) -> Sequence[PeerStatus]:
        """Every peer, with its last result here."""
        found = (self._states.get(peer.name, PeerStatus(peer, None)) for peer in self._peers.all())
        return [
            state if state.peer == peer else PeerStatus(peer, None)
            for state, peer in zip(found, self._peers.all(), strict=True)
        ]

    async def offers(self, request: CapacityRequest, *, own: bool = False) -> OfferSearchResult:
        """Matching offers, the best first, and the peers that failed; `NotFound` for an unknown peer."""
        peers = [self._peers.get(request.peer)] if request.peer else self._peers.all()
        answers = await asyncio.gather(*(self._query(peer, request) for peer in peers))
        found: list[OfferQuote] = []
        failures: list[PeerFailure] = []
        for answer in answers:
            if isinstance(answer, PeerFailure):
                failures.append(answer)
            else:
                found += answer
        if own:
            found += _met(OWN, (offer for offer in self._own() if offer.is_available), request)
        return OfferSearchResult(ranking.rank(found, request.currency), failures)

    async def _query(self, peer: MarketPeer, request: CapacityRequest) -> list[OfferQuote] | PeerFailure:
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                offers = await self._providers(peer).offers(request)
        except TimeoutError:
            return self._failed(peer, f"it did not answer within {self._timeout_s:g} s")
        except errors.SkerryError as error:
            return self._failed(peer, error.message)
        took_s = self._clock.monotonic() - began
        self._states[peer.name] = PeerStatus(peer, True, latency_s=took_s, at=self._clock.now())
        return _met(peer.name, offers, request)

    def _failed(self, peer: MarketPeer, message: str) -> PeerFailure:
        log.info("peer.failed", peer=peer.name, error=message)
        message = peer_error(peer.name, message)
        self._states[peer.name] = PeerStatus(peer, False, message, at=self._clock.now())
        return PeerFailure(peer.name, message)


def _met(peer: str, offers: Iterable[OfferSnapshot], request: CapacityRequest) -> list[OfferQuote]:
    met = (ranking.quote_for(peer, offer, request) for offer in offers)
    return [one for one in met if one is not None]

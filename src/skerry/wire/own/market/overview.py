"""`/market`: the id of this cloud on the market, and counts."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.market.buyer.quotes import BorrowedContractState
from skerry.model import errors
from skerry.transport.http.endpoints import RequestContext, endpoint
from skerry.wire.own.market.context import MarketContext


class MarketInfo(msgspec.Struct, frozen=True):
    """Counts are of what is live now."""

    cloud: Annotated[str, Meta(description="Its id, the fingerprint of its key: `key....`")]
    flavors: Annotated[int, Meta(description="Offered by this cloud")]
    holds: int
    sold: Annotated[int, Meta(description="Contracts that this cloud sold")]
    borrowed: Annotated[int, Meta(description="Contracts that this cloud bought")]
    peers: Annotated[int, Meta(description="Clouds that this one may buy from")]


@endpoint("GET", "/market", summary="This cloud on the market", raises=(errors.Unavailable,))
async def about(market: MarketContext, call: RequestContext) -> MarketInfo:
    """Its id, which buyers name when they add it as a peer, and counts."""
    now = market.ledger.now()
    return MarketInfo(
        cloud=market.provider,
        flavors=len(market.ledger.flavors()),
        holds=sum(hold.is_live(now) for hold in market.ledger.holds()),
        sold=sum(sale.contract.is_live(now) for sale in market.ledger.contracts()),
        borrowed=sum(one.state is not BorrowedContractState.ENDED for one in market.buyer.borrowed()),
        peers=len(market.buyer.peers()),
    )

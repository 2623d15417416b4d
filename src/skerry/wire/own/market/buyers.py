"""`/market/buyers`: the allowlist of buyers, to whom the limits of unknown buyers do not apply."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.market.provider.allowlist import AllowedBuyer
from skerry.model import errors
from skerry.transport.http.endpoints import RequestContext, endpoint
from skerry.wire.market_inputs import MarketIdPath, Text
from skerry.wire.own.market.context import MarketContext


class AllowBuyerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A note about a buyer."""

    note: Annotated[Text, Meta(description="For people, such as the buyer's name")] = ""


class BuyerInfo(msgspec.Struct, frozen=True):
    """A buyer on the allowlist."""

    id: Annotated[str, Meta(description="Its id on the market: `key....`, or an account")]
    note: str
    added_at: Annotated[float | None, Meta(description="Null if the setting `market.buyers` names it")]

    @classmethod
    def of(cls, buyer: AllowedBuyer) -> BuyerInfo:
        return cls(id=buyer.id, note=buyer.note, added_at=buyer.added_at)


class BuyerList(msgspec.Struct, frozen=True):
    buyers: list[BuyerInfo]


@endpoint("GET", "/market/buyers", summary="List allowed buyers", raises=(errors.Unavailable,))
async def list_buyers(market: MarketContext, call: RequestContext) -> BuyerList:
    """The allowlist: those of the setting `market.buyers`, and those that were added here."""
    return BuyerList([BuyerInfo.of(buyer) for buyer in market.allowlist.all()])


@endpoint(
    "PUT",
    "/market/buyers/{id}",
    summary="Allow a buyer",
    raises=(errors.Invalid, errors.TooLarge, errors.Unavailable),
)
async def allow(
    market: MarketContext, call: RequestContext, path: MarketIdPath, body: AllowBuyerRequest | None
) -> BuyerInfo:
    """It may list offers and buy from now on, at every server of this cloud."""
    note = "" if body is None else body.note
    return BuyerInfo.of(await market.allowlist.add(path.id, note=note, actor=call.caller.name))


@endpoint(
    "DELETE",
    "/market/buyers/{id}",
    summary="Remove a buyer from the allowlist",
    status=204,
    raises=(errors.Invalid, errors.NotFound, errors.Conflict, errors.Unavailable),
)
async def remove(market: MarketContext, call: RequestContext, path: MarketIdPath) -> None:
    """Its holds and contracts stay: to end them, reclaim its contracts."""
    await market.allowlist.remove(path.id, actor=call.caller.name)

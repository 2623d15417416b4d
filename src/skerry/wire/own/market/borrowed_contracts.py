"""`/market/borrowed`: contracts that this cloud bought, each with its borrowed node."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.kit.field_copy import copy_fields
from skerry.kit.tasks import map_in_turns
from skerry.market.buyer.quotes import BorrowedContract, BorrowedContractState
from skerry.model import errors
from skerry.transport.http.endpoints import RequestContext, endpoint
from skerry.wire.market_inputs import MarketIdPath
from skerry.wire.own.market import pagination
from skerry.wire.own.market.context import MarketContext
from skerry.wire.own.market.documents import PriceInfo, ResourcesInfo, deal_facts
from skerry.wire.own.market.pagination import PageQuery

_CHANGING = (
    errors.Invalid,
    errors.NotFound,
    errors.Conflict,
    errors.FailedPrecondition,
    errors.Expired,
    errors.Unprocessable,
    errors.Unavailable,
    errors.TimedOut,
)


class BorrowedContractInfo(msgspec.Struct, frozen=True):
    """A contract that this cloud bought, and its borrowed node."""

    id: str
    peer: str
    seller: str
    node: str
    flavor: str
    resources: Annotated[ResourcesInfo, Meta(description="Of one")] = msgspec.field(name="room")
    count: int
    price: Annotated[PriceInfo, Meta(description="Of all of it, for each period")]
    total: Annotated[str, Meta(description="Of all of it, from start to end")]
    starts_at: float
    ends_at: float
    state: BorrowedContractState
    reclaim_at: Annotated[float | None, Meta(description="When the provider reclaims it")]
    reason: str
    ended_at: float | None
    actor: Annotated[str, Meta(description="The caller that bought it")]

    @classmethod
    def of(cls, borrowed: BorrowedContract) -> BorrowedContractInfo:
        return copy_fields(cls, borrowed, seller=borrowed.cloud, **deal_facts(borrowed))


class BorrowedContractDetail(msgspec.Struct, frozen=True):
    """A contract that this cloud bought, with the signed document."""

    contract: BorrowedContractInfo
    document: Annotated[str, Meta(description="A compact JWS: `skerry contract verify` reads it")]


class BorrowedContractList(msgspec.Struct, frozen=True):
    """Contracts, live ones first, then the newest; `count` is of all."""

    count: int
    borrowed: tuple[BorrowedContractInfo, ...]
    cursor: str | None


class RenewContractRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The extension of a contract."""

    duration_s: Annotated[float, Meta(ge=1, le=1e10, description="Seconds beyond its end")]


@endpoint(
    "GET", "/market/borrowed", summary="List bought contracts", raises=(errors.Invalid, errors.Unavailable)
)
async def list_borrowed(
    market: MarketContext, call: RequestContext, query: PageQuery
) -> BorrowedContractList:
    """Contracts that this cloud bought, also those that ended recently."""
    page = pagination.paginate(market.buyer.borrowed(), _place, query)
    items = await map_in_turns(BorrowedContractInfo.of, page.items)
    return BorrowedContractList(page.total, items, page.cursor)


@endpoint(
    "GET",
    "/market/borrowed/{id}",
    summary="Show a bought contract",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def show(market: MarketContext, call: RequestContext, path: MarketIdPath) -> BorrowedContractDetail:
    """With the signed document."""
    found = market.buyer.get(path.id)
    return BorrowedContractDetail(BorrowedContractInfo.of(found), found.document)


@endpoint("POST", "/market/borrowed/{id}/release", summary="Release a bought contract", raises=_CHANGING)
async def release(market: MarketContext, call: RequestContext, path: MarketIdPath) -> BorrowedContractInfo:
    """Its node is drained first; it has ended when its `state` is `ended`."""
    return BorrowedContractInfo.of(await market.buyer.release(path.id, actor=call.caller.name))


@endpoint("POST", "/market/borrowed/{id}/renew", summary="Renew a bought contract", raises=_CHANGING)
async def renew(
    market: MarketContext, call: RequestContext, path: MarketIdPath, body: RenewContractRequest
) -> BorrowedContractInfo:
    """At the provider's present price for the added time; refused if that is higher than before."""
    return BorrowedContractInfo.of(await market.buyer.renew(path.id, body.duration_s, actor=call.caller.name))


def _place(one: BorrowedContract) -> str:
    return pagination.newest_first_key(
        is_over=one.state is BorrowedContractState.ENDED, at=one.starts_at, id=one.id
    )

"""`/market/borrowed`: contracts that this cloud bought, each with the node that it is here."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.market.trading import Borrowed, State
from skerry.model import errors
from skerry.wire.http.endpoints import Call, endpoint
from skerry.wire.market import pages
from skerry.wire.market.amounts import Amounts, IdPath, PriceInfo
from skerry.wire.market.context import MarketDesk
from skerry.wire.market.pages import PageQuery

_CHANGING = (
    errors.Invalid,
    errors.NotFound,
    errors.Conflict,
    errors.Refused,
    errors.Expired,
    errors.Unprocessable,
    errors.Unavailable,
    errors.TimedOut,
)


class BorrowedInfo(msgspec.Struct, frozen=True):
    """A contract that this cloud bought, and the node that it is here."""

    id: str
    peer: str
    seller: str
    node: str
    flavor: str
    room: Annotated[Amounts, Meta(description="Of one")]
    count: int
    price: Annotated[PriceInfo, Meta(description="Of all of it, for each period")]
    total: Annotated[str, Meta(description="Of all of it, from start to end")]
    starts_at: float
    ends_at: float
    state: State
    reclaim_at: Annotated[float | None, Meta(description="The provider takes it back then")]
    reason: str
    ended_at: float | None
    actor: Annotated[str, Meta(description="Who bought it")]

    @classmethod
    def of(cls, borrowed: Borrowed) -> BorrowedInfo:
        return cls(
            id=borrowed.id,
            peer=borrowed.peer,
            seller=borrowed.cloud,
            node=borrowed.node,
            flavor=borrowed.flavor,
            room=Amounts.of(borrowed.room),
            count=borrowed.count,
            price=PriceInfo.of(borrowed.price),
            total=f"{borrowed.total:f}",
            starts_at=borrowed.starts_at,
            ends_at=borrowed.ends_at,
            state=borrowed.state,
            reclaim_at=borrowed.reclaim_at,
            reason=borrowed.reason,
            ended_at=borrowed.ended_at,
            actor=borrowed.actor,
        )


class SignedInfo(msgspec.Struct, frozen=True):
    """A contract that this cloud bought, with what was signed."""

    contract: BorrowedInfo
    document: Annotated[str, Meta(description="A compact JWS: `skerry contract verify` reads it")]


class BorrowedList(msgspec.Struct, frozen=True):
    """What is not over first, and then what was bought last; `count` is of all."""

    count: int
    borrowed: list[BorrowedInfo]
    cursor: str | None


class RenewWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much longer it is to last."""

    duration_s: Annotated[float, Meta(ge=1, le=1e10, description="Seconds beyond its end")]


@endpoint("GET", "/market/borrowed", summary="What was bought", raises=(errors.Invalid, errors.Unavailable))
async def list_borrowed(desk: MarketDesk, call: Call, query: PageQuery) -> BorrowedList:
    """Contracts that this cloud bought, also those that ended not long ago."""
    page = pages.cut(desk.trader.borrowed(), _place, query)
    return BorrowedList(page.total, [BorrowedInfo.of(one) for one in page.items], page.cursor)


@endpoint(
    "GET",
    "/market/borrowed/{id}",
    summary="One contract that was bought",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def show(desk: MarketDesk, call: Call, path: IdPath) -> SignedInfo:
    """With the document that was signed."""
    found = desk.trader.get(path.id)
    return SignedInfo(BorrowedInfo.of(found), found.document)


@endpoint("POST", "/market/borrowed/{id}/release", summary="Give back what was bought", raises=_CHANGING)
async def release(desk: MarketDesk, call: Call, path: IdPath) -> BorrowedInfo:
    """Its work moves away first; it is over when its `state` is `ended`."""
    return BorrowedInfo.of(await desk.trader.release(path.id, actor=call.caller.name))


@endpoint("POST", "/market/borrowed/{id}/renew", summary="Let what was bought last longer", raises=_CHANGING)
async def renew(desk: MarketDesk, call: Call, path: IdPath, body: RenewWish) -> BorrowedInfo:
    """At the provider's price of now for the time that is added; refused if that is higher than before."""
    return BorrowedInfo.of(await desk.trader.renew(path.id, body.duration_s, actor=call.caller.name))


def _place(one: Borrowed) -> str:
    return pages.newest_first(is_over=one.state is State.ENDED, at=one.starts_at, id=one.id)

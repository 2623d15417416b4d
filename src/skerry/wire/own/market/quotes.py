"""`/market/offers` and `/market/buy`: offers of peers, and buying the best one.

A purchase is streamed step by step, one JSON object per line. If the client disconnects, nothing is left half
done: closing the steps makes the buyer service undo them, or keep a contract that is already signed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from skerry.kit import json_codec
from skerry.kit.field_copy import copy_fields
from skerry.market.buyer.quotes import BuyProgress, CapacityRequest, OfferQuote, PeerFailure
from skerry.model import errors, ids
from skerry.transport.http.endpoints import RequestContext, StreamResponse, endpoint
from skerry.transport.http.responses import Problem
from skerry.transport.http.streaming import StreamFormat
from skerry.wire.market_inputs import GB, MB, Cores, Count, parse_resources
from skerry.wire.own.market.borrowed_contracts import BorrowedContractInfo
from skerry.wire.own.market.context import MarketContext
from skerry.wire.own.market.documents import OfferInfo, PriceInfo, ResourcesInfo, offer_facts, parse_money

NDJSON: Final = "application/x-ndjson"


class BuyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to buy: `count` times this amount. Empty fields, or 0, match anything."""

    cpu: Cores = 0
    memory: MB = 0
    disk: GB = 0
    count: Count = 1
    duration_s: (
        Annotated[float, Meta(ge=1, le=1e10, description="Seconds; without it the provider's default")] | None
    ) = None
    max_price: Annotated[
        str, Meta(max_length=40, description="Maximum price of all of it per hour: `0.50`")
    ] = ""
    currency: Annotated[str, Meta(max_length=3, pattern="^([A-Z]{3})?$", description="ISO 4217: `EUR`")] = ""
    where: Annotated[str, Meta(max_length=256, description="The location of the offer")] = ""
    architecture: Annotated[str, Meta(max_length=256, description="`amd64`, `arm64`")] = ""
    peer: Annotated[str, Meta(max_length=ids.MAX_ID, description="The name of one peer; else of all")] = ""
    gpus: Annotated[int, Meta(ge=0, description="With all of it together, at least")] = 0

    def capacity_request(self) -> CapacityRequest:
        return copy_fields(
            CapacityRequest,
            self,
            resources=parse_resources(self.cpu, self.memory, self.disk),
            max_price=parse_money(self.max_price, "max_price") if self.max_price else None,
        )


class QuoteQuery(BuyRequest, frozen=True, forbid_unknown_fields=True):
    """Offers that can supply this; without an amount all offers."""

    own: Annotated[bool, Meta(description="Also the offers of this cloud")] = False


class QuoteInfo(msgspec.Struct, frozen=True):
    """An offer: its free capacity, and the amount that the price is for."""

    peer: Annotated[str, Meta(description="Who offers it; empty: this cloud")]
    flavor: OfferInfo
    free: ResourcesInfo
    resources: Annotated[ResourcesInfo, Meta(description="The requested amount, or all that is free")] = (
        msgspec.field(name="room")
    )
    count: int
    price: Annotated[PriceInfo, Meta(description="Of `room` times `count`, for each period")]

    @classmethod
    def of(cls, found: OfferQuote) -> QuoteInfo:
        return copy_fields(
            cls,
            found,
            flavor=OfferInfo(**offer_facts(found.flavor)),
            free=ResourcesInfo.of(found.free),
            resources=ResourcesInfo.of(found.resources),
            price=PriceInfo.of(found.price),
        )


class QuoteList(msgspec.Struct, frozen=True):
    """Offers, the best first; `failures` are peers that did not answer in time."""

    offers: list[QuoteInfo]
    failures: list[PeerFailure]


class BuyProgressInfo(msgspec.Struct, frozen=True):
    """A step of a purchase; `borrowed` is there once it is bought, and is open when the step is `done`."""

    step: str
    message: str
    borrowed: BorrowedContractInfo | None


@endpoint(
    "GET",
    "/market/offers",
    summary="List offers of peers",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def offers(market: MarketContext, call: RequestContext, query: QuoteQuery) -> QuoteList:
    """All peers are queried at once, and those that do not answer in time are named.

    With an amount: offers that can supply it, and its price. Without: all offers, and the price of what is
    free.
    """
    listing = await market.buyer.offers(query.capacity_request(), own=query.own)
    return QuoteList([QuoteInfo.of(found) for found in listing.found], list(listing.failures))


@endpoint(
    "POST",
    "/market/buy",
    summary="Buy capacity",
    media=NDJSON,
    raises=(errors.Invalid, errors.Overloaded, errors.Unavailable),
    streams=True,
)
async def buy(market: MarketContext, call: RequestContext, body: BuyRequest) -> StreamResponse:
    """The best offer is reserved, bought, signed and opened, with a line of JSON for each `step`.

    The last line is of the step `done`, with `borrowed`, the contract; or it has `error` and `code`, and what
    was begun is undone. If the client disconnects it is undone, too, unless the contract is already signed:
    then it is kept.
    """
    capacity = body.capacity_request()
    capacity.check_amount()
    async with AsyncExitStack() as undo:
        undo.enter_context(market.purchases.take())
        steps = market.buyer.buy(capacity, actor=call.caller.name)
        return StreamResponse(_encode_steps(steps, call.request_id), _DIALECT, undo.pop_all())


async def _encode_steps(steps: AsyncIterator[BuyProgress], request_id: str) -> AsyncGenerator[bytes, None]:
    try:
        async with _closed(steps):
            async for step in steps:
                bought = None if step.borrowed is None else BorrowedContractInfo.of(step.borrowed)
                yield _line(BuyProgressInfo(step.step, step.message, bought))
    except errors.SkerryError as error:
        yield _line(Problem(error=error.message, code=error.slug, request_id=request_id))


@asynccontextmanager
async def _closed(steps: AsyncIterator[BuyProgress]) -> AsyncIterator[None]:
    """End the purchase when this generator ends, also between two steps."""
    try:
        yield
    finally:
        if isinstance(steps, AsyncGenerator):
            await steps.aclose()


def _line(value: msgspec.Struct) -> bytes:
    return json_codec.encode(value) + b"\n"


_DIALECT: Final = StreamFormat(
    NDJSON,
    goodbye=_line(
        Problem(
            error="the server is stopping and undoes what was begun; try again",
            code=errors.Unavailable.slug,
            request_id="",
        )
    ),
)

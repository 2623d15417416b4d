"""Version 1 of the public program: its four routes, each for one flavour.

Translation only. Where it answers a client's error with 500, or not at all, the statuses are those of the
document's routes.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta, field

from skerry.market.terms.selectors import MAX_PAGE, OfferSelector, OfferSort
from skerry.model import errors
from skerry.model.market import Contact
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire.rear import documents_v1, reservations
from skerry.wire.rear.context import RearContext
from skerry.wire.rear.dialect import buyer_of
from skerry.wire.rear.documents_v1 import (
    FlavourV1,
    PurchaseResultV1,
    PurchaseV1,
    ReserveV1,
    Search,
    SelectorV1,
    TransactionV1,
)

_LARGEST = Search(OfferSelector(sort=OfferSort.CPU, is_descending=True))
_NOTHING = Response(None, 204)


class FlavourPath(msgspec.Struct, frozen=True):
    flavour_id: Annotated[str, Meta(min_length=1, max_length=128)] = field(name="flavour_id")


class TransactionPath(msgspec.Struct, frozen=True):
    transaction_id: Annotated[str, Meta(min_length=1, max_length=128)]


@endpoint(
    "GET",
    "/api/listflavours",
    summary="The largest flavour (version 1)",
    extra_statuses={204: "There is none."},
    raises=(errors.Unavailable,),
)
async def largest(rear: RearContext, call: RequestContext) -> FlavourV1 | Response:
    """One flavour, as in that version: the one with the most cpu free."""
    return await _best(rear, _LARGEST)


@endpoint(
    "POST",
    "/api/listflavours/selector",
    summary="The largest flavour that matches (version 1)",
    extra_statuses={204: "There is none."},
    raises=(errors.Invalid, errors.Unavailable),
    is_read=True,
)
async def select(rear: RearContext, call: RequestContext, body: SelectorV1) -> FlavourV1 | Response:
    """One flavour, as in that version: of those that match, the one with the most cpu free."""
    search = body.search()
    return _NOTHING if search is None else await _best(rear, search)


async def _best(rear: RearContext, search: Search) -> FlavourV1 | Response:
    page = rear.offers.find(search.selector, limit=1 if search.is_plain else MAX_PAGE)
    while True:
        for offer in page.offers:
            if search.matches(offer.flavor):
                return documents_v1.flavour_v1(offer, rear.owner)
        if not page.following:
            return _NOTHING
        await asyncio.sleep(0)  # there may be many pages, and other requests wait
        page = rear.offers.find(search.selector, limit=MAX_PAGE, after=page.following)


@endpoint(
    "POST",
    "/api/reserveflavour/{flavour_id}",
    summary="Reserve a flavour, or a part of it (version 1)",
    raises=reservations.RESERVE_ERRORS,
    headers={"Idempotency-Key": reservations.IDEMPOTENCY_HEADER_TEXT},
)
async def reserve(
    rear: RearContext, call: RequestContext, path: FlavourPath, body: ReserveV1
) -> TransactionV1:
    """Without a partition: all that is free."""
    if body.flavour_id not in ("", path.flavour_id):
        raise errors.Conflict(
            f"the path names {path.flavour_id}, the body {body.flavour_id}; name one flavour"
        )
    buyer, name = buyer_of(call), body.buyer_id.id
    hold = await rear.ledger.reserve(
        buyer.named(name),
        reservations.resolve_flavor(rear, path.flavour_id),
        resources=None if body.partition is None else body.partition.resources(),
        idempotency_key=call.idempotency_key,
        contact=buyer.contact(Contact(body.buyer_id.domain, body.buyer_id.ip, body.cluster_id), name),
    )
    return documents_v1.transaction_v1(hold)


@endpoint(
    "POST",
    "/api/purchaseflavour/{transaction_id}",
    summary="Purchase a hold (version 1)",
    raises=reservations.CHANGE_ERRORS,
)
async def purchase(
    rear: RearContext, call: RequestContext, path: TransactionPath, body: PurchaseV1
) -> PurchaseResultV1:
    """The contract; a repeated request gets the same one."""
    if body.transaction_id not in ("", path.transaction_id):
        raise errors.Conflict("the path and the body name different transactions; name one")
    buyer_of(call).named(body.buyer_id)
    return documents_v1.purchase_result_v1(*await reservations.buy(rear, call, path.transaction_id))

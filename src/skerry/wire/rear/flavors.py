"""`/api/listflavors` and `/api/flavors`: listing and publishing offers, in the document's dialect.

Translation only; `skerry.market.terms.selectors` evaluates selectors, and the ledger has the offers.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, field

from skerry.market.provider.catalog.offer_catalog import snapshot_offer
from skerry.market.provider.ledger.records import OfferRecord
from skerry.market.terms.selectors import EVERYTHING, MAX_PAGE, PAGE, OfferPage, OfferSnapshot
from skerry.model import errors
from skerry.model.ids import OfferId
from skerry.transport.http.endpoints import EncodedJson, RequestContext, Response, endpoint
from skerry.wire.market_inputs import MarketIdPath, WithdrawOfferQuery
from skerry.wire.rear import documents
from skerry.wire.rear.context import RearContext
from skerry.wire.rear.documents import FlavorBody, FlavorDocument, SelectorBody

DIALECT = "document"
_START = b'{"Items":['


class FlavorListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which part of the list."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE, description="Items in one answer")] = PAGE
    continue_: Annotated[str, Meta(max_length=512, description="`Continue` of the answer before")] = field(
        default="", name="continue"
    )


class FlavorListDocument(msgspec.Struct, frozen=True):
    """Offers, the cheapest first; `Continue` is the cursor of the next page."""

    items: list[FlavorDocument] = field(name="Items")
    continue_: str | None = field(default=None, name="Continue")


class SelectedFlavors(msgspec.Struct, frozen=True):
    """Offers that match, and the best of them."""

    items: list[FlavorDocument] = field(name="Items")
    flavor: FlavorDocument | None = field(name="Flavor")
    continue_: str | None = field(default=None, name="Continue")


@endpoint(
    "GET",
    "/api/listflavors",
    summary="List flavors",
    raises=(errors.Invalid, errors.Unavailable),
    is_quiet=True,
)
async def list_flavors(
    rear: RearContext, call: RequestContext, query: FlavorListQuery
) -> FlavorListDocument | Response:
    """LIST_FLAVORS: all flavors of which something is free, with their free capacity."""

    def make() -> bytes:
        return _written(rear, rear.offers.find(EVERYTHING, limit=query.limit, after=query.continue_))

    return Response(EncodedJson(rear.offers.response(query, make)))


@endpoint(
    "POST",
    "/api/listflavors",
    summary="List flavors that match a selector",
    raises=(errors.Invalid, errors.Unavailable),
    is_quiet=True,
    is_read=True,
)
async def select(rear: RearContext, call: RequestContext, body: SelectorBody) -> SelectedFlavors | Response:
    """LIST_FLAVORS with a Selector, bare or as `{"Selector": {...}}`.

    The free capacity is compared. `Partition` finds offers of which that part can be taken. Without `Sort`
    the cheapest is first; `Flavor` is the first of the whole list, or null.
    """

    def make() -> bytes:
        selector = body.selector()
        page = rear.offers.find(selector, limit=body.limit, after=body.continue_)
        first = rear.offers.find(selector, limit=1) if body.continue_ else page
        return _written(rear, page, first)

    return Response(EncodedJson(rear.offers.response(body, make)))


def _written(rear: RearContext, page: OfferPage, first: OfferPage | None = None) -> bytes:
    """The response, put together from encoded offers; with the best one of the `first` page."""

    def write(offer: OfferSnapshot) -> FlavorDocument:
        return documents.flavor_document(offer, rear.owner)

    items = rear.offers.written(page.offers, DIALECT, write)
    best = b""
    if first is not None:
        best = b',"Flavor":' + b"".join(rear.offers.written(first.offers[:1], DIALECT, write) or [b"null"])
    following = b'"' + page.following.encode() + b'"' if page.following else b"null"
    end = b']%b,"Continue":%b}' % (best, following)
    if not items:
        return _START + end
    # The brackets are added to the first and the last one, so that the parts are joined once.
    items[0] = _START + items[0]
    items[-1] += end
    return b",".join(items)


def _document(rear: RearContext, account: OfferRecord) -> FlavorDocument:
    is_offered = account.is_offered(rear.ledger.now())
    return documents.flavor_document(snapshot_offer(account), rear.owner, is_offered=is_offered)


@endpoint(
    "GET",
    "/api/flavors/{id}",
    summary="One flavor",
    raises=(errors.NotFound, errors.Invalid, errors.Unavailable),
)
async def show(rear: RearContext, call: RequestContext, path: MarketIdPath) -> FlavorDocument:
    """Its present state, also if nothing of it is free."""
    return _document(rear, rear.ledger.flavor(OfferId(path.id)))


@endpoint(
    "POST",
    "/api/flavors",
    summary="Sell capacity",
    status=201,
    raises=(errors.Invalid, errors.AlreadyExists, errors.TooLarge, errors.Unavailable),
)
async def publish(rear: RearContext, call: RequestContext, body: FlavorBody) -> FlavorDocument:
    """Publish a flavor, bare or as `{"Flavor": {...}}`; the same again changes nothing."""
    flavor = body.flavor(OfferId(rear.new_id()), rear.provider, rear.ledger.now())
    return _document(rear, await rear.ledger.publish(flavor, actor=call.caller.name))


@endpoint(
    "DELETE",
    "/api/flavors/{id}",
    summary="Withdraw a flavor",
    raises=(errors.NotFound, errors.Invalid, errors.Unavailable),
)
async def withdraw(
    rear: RearContext, call: RequestContext, path: MarketIdPath, query: WithdrawOfferQuery
) -> FlavorDocument:
    """Nothing more of it can be reserved; subscribers are notified. Holds and contracts keep their terms."""
    account = await rear.ledger.withdraw(
        OfferId(path.id), actor=call.caller.name, reason=query.reason, reclaim=query.reclaim
    )
    return _document(rear, account)

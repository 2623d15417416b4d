"""Version 2 of the public program: flavors as a plain list, filters in the query, purchases by path.

Translation only. Where it answers 500 or 408, the statuses are those of the document's routes, which its
OpenAPI description also has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from skerry.market.terms.selectors import EVERYTHING, MAX_PAGE, OfferSelector, OfferSnapshot
from skerry.model import errors
from skerry.transport.http.endpoints import EncodedJson, RequestContext, Response, endpoint
from skerry.wire.market_inputs import MarketIdPath
from skerry.wire.rear import documents_v2, reservations
from skerry.wire.rear.context import RearContext
from skerry.wire.rear.dialect import buyer_of
from skerry.wire.rear.documents_v2 import (
    K8SLICE,
    ContractV2,
    FlavorFilterQueryV2,
    FlavorV2,
    PurchaseV2,
    ReserveV2,
    TransactionV2,
)

_DIALECT = "v2"
# Two kinds have plural paths, one in that program and one in its OpenAPI description only.
_PLURALS: Final = {"k8slices": "k8slice", "sensors": "sensor"}


class FlavorKindPath(msgspec.Struct, frozen=True):
    kind: Annotated[str, Meta(min_length=1, max_length=128, description="`k8slice`, `vm`, ...")]


@endpoint(
    "GET",
    "/api/v2/flavors",
    summary="List flavors (version 2)",
    extra_statuses={204: "Nothing is."},
    raises=(errors.Unavailable,),
)
async def list_flavors(rear: RearContext, call: RequestContext) -> list[FlavorV2] | Response:
    """The first thousand, the cheapest first; 204 if there are none, as in that version."""
    found = rear.offers.find(EVERYTHING, limit=MAX_PAGE).offers
    return await _listed(rear, found) if found else Response(None, 204)


@endpoint(
    "GET",
    "/api/v2/flavors/{kind}",
    summary="List flavors of one kind that match (version 2)",
    raises=(errors.Invalid, errors.Unavailable),
)
async def select(
    rear: RearContext, call: RequestContext, path: FlavorKindPath, query: FlavorFilterQueryV2 | errors.Invalid
) -> list[FlavorV2] | Response:
    """Filters such as `filter[cpu][range][min]=2` or `filter[memory][match]=8Gi`; none is an empty list.

    So is a kind that is not offered, whatever the filters are: other kinds have others.
    """
    kind = _PLURALS.get(path.kind, path.kind)
    if kind != K8SLICE and not rear.offers.find(OfferSelector(kind=kind), limit=1).offers:
        return await _listed(rear, [])
    if isinstance(query, errors.Invalid):
        raise query
    selector = query.selector(kind)
    return await _listed(rear, [] if selector is None else rear.offers.find(selector, limit=MAX_PAGE).offers)


async def _listed(rear: RearContext, offers: Sequence[OfferSnapshot]) -> Response:
    def write(offer: OfferSnapshot) -> FlavorV2:
        return documents_v2.flavor_v2(offer, rear.owner)

    items = await rear.offers.written_in_turns(offers, _DIALECT, write)
    return Response(EncodedJson(b"[%b]" % b",".join(items)))


@endpoint(
    "POST",
    "/api/v2/reservations",
    summary="Reserve a flavor, or a part of it (version 2)",
    raises=reservations.RESERVE_ERRORS,
    headers={"Idempotency-Key": reservations.IDEMPOTENCY_HEADER_TEXT},
)
async def reserve(rear: RearContext, call: RequestContext, body: ReserveV2) -> TransactionV2:
    """Without a configuration: all that is free."""
    buyer, name = buyer_of(call), body.buyer_id.id
    hold = await rear.ledger.reserve(
        buyer.named(name),
        reservations.resolve_flavor(rear, body.flavor_id),
        resources=None if body.configuration is None else body.configuration.resources(),
        idempotency_key=call.idempotency_key,
        contact=buyer.contact(body.buyer_id.contact(), name),
    )
    return documents_v2.transaction_v2(hold)


@endpoint(
    "POST",
    "/api/v2/transactions/{id}/purchase",
    summary="Purchase a hold (version 2)",
    raises=reservations.CHANGE_ERRORS,
)
async def purchase(
    rear: RearContext, call: RequestContext, path: MarketIdPath, body: PurchaseV2
) -> ContractV2:
    """The contract; a repeated request gets the same one."""
    return documents_v2.contract_v2(*await reservations.buy(rear, call, path.id))

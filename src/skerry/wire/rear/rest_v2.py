"""Version 2 of the public program: flavors as a plain list, filters in the query, purchases by path.

Only translation. Where it answers 500 or 408, the statuses are those of the document's routes, which its
OpenAPI description also has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from skerry.market.selecting import EVERYTHING, MAX_PAGE, Offer, Selector
from skerry.model import errors
from skerry.model.ids import FlavorId
from skerry.wire.http.endpoints import Call, Reply, endpoint
from skerry.wire.rear import deals, documents_v2
from skerry.wire.rear.context import Rear
from skerry.wire.rear.deals import IdPath
from skerry.wire.rear.documents_v2 import (
    ContractV2,
    FilterQuery,
    FlavorV2,
    PurchaseV2,
    ReserveV2,
    TransactionV2,
)
from skerry.wire.rear.serving import Listed, buyer_of

_DIALECT = "v2"
# Two kinds have plural paths, one in that program and one in its OpenAPI description only.
_PLURALS: Final = {"k8slices": "k8slice", "sensors": "sensor"}


class KindPath(msgspec.Struct, frozen=True):
    kind: Annotated[str, Meta(min_length=1, max_length=128, description="`k8slice`, `vm`, ...")]


@endpoint(
    "GET",
    "/api/v2/flavors",
    summary="What is for sale (version 2)",
    also={204: "Nothing is."},
    raises=(errors.Unavailable,),
)
async def list_flavors(rear: Rear, call: Call) -> list[FlavorV2] | Reply:
    """The first thousand, the cheapest first; nothing is 204, as in that version."""
    found = rear.shelf.find(EVERYTHING, limit=MAX_PAGE).offers
    return _listed(rear, found) if found else Reply(None, 204)


@endpoint(
    "GET",
    "/api/v2/flavors/{kind}",
    summary="Flavors of one kind for sale that match (version 2)",
    raises=(errors.Invalid, errors.Unavailable),
)
async def select(rear: Rear, call: Call, path: KindPath, query: FilterQuery) -> list[FlavorV2] | Reply:
    """Filters such as `filter[cpu][range][min]=2` or `filter[memory][match]=8Gi`; none is an empty list."""
    selector: Selector | None = query.selector(_PLURALS.get(path.kind, path.kind))
    return _listed(rear, [] if selector is None else rear.shelf.find(selector, limit=MAX_PAGE).offers)


def _listed(rear: Rear, offers: Sequence[Offer]) -> Reply:
    def write(offer: Offer) -> FlavorV2:
        return documents_v2.flavor_v2(offer, rear.owner)

    return Reply(Listed(b"[%b]" % b",".join(rear.shelf.written(offers, _DIALECT, write))))


@endpoint(
    "POST",
    "/api/v2/reservations",
    summary="Hold a flavor, or a part of it (version 2)",
    raises=deals.RESERVING,
    headers={"Idempotency-Key": deals.ONCE_TEXT},
)
async def reserve(rear: Rear, call: Call, body: ReserveV2) -> TransactionV2:
    """Without a configuration: all that is free."""
    hold = await rear.ledger.reserve(
        buyer_of(call).named(body.buyer_id.id),
        FlavorId(body.flavor_id),
        room=None if body.configuration is None else body.configuration.room(),
        idempotency_key=deals.once(call),
    )
    return documents_v2.transaction_v2(hold, body.buyer_id)


@endpoint(
    "POST",
    "/api/v2/transactions/{id}/purchase",
    summary="Buy what is held (version 2)",
    raises=deals.CHANGING,
)
async def purchase(rear: Rear, call: Call, path: IdPath, body: PurchaseV2) -> ContractV2:
    """The contract; sent again it is the same one."""
    return documents_v2.contract_v2(*await deals.buy(rear, call, path.id))

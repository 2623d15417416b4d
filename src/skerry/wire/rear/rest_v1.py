"""Version 1 of the public program: its four routes, which know one flavour at a time.

Only translation. Where it answers 500, or never, for what a client did wrong, the statuses are those of the
document's routes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, field

from skerry.market.selecting import Selector, Sort
from skerry.model import errors
from skerry.model.ids import FlavorId
from skerry.wire.http.endpoints import Call, Reply, endpoint
from skerry.wire.rear import deals, documents_v1
from skerry.wire.rear.context import Rear
from skerry.wire.rear.documents_v1 import (
    Flavour,
    PurchasedV1,
    PurchaseV1,
    ReserveV1,
    SelectorV1,
    TransactionV1,
)
from skerry.wire.rear.serving import buyer_of

_LARGEST = Selector(sort=Sort.CPU, is_descending=True)


class FlavourPath(msgspec.Struct, frozen=True):
    flavour_id: Annotated[str, Meta(min_length=1, max_length=128)] = field(name="flavour_id")


class TransactionPath(msgspec.Struct, frozen=True):
    transaction_id: Annotated[str, Meta(min_length=1, max_length=128)]


@endpoint(
    "GET",
    "/api/listflavours",
    summary="The largest flavour (version 1)",
    also={204: "There is none."},
    raises=(errors.Unavailable,),
)
async def largest(rear: Rear, call: Call) -> Flavour | Reply:
    """One flavour, as in that version: the one with the most cpu free."""
    return _best(rear, _LARGEST)


@endpoint(
    "POST",
    "/api/listflavours/selector",
    summary="The largest flavour that matches (version 1)",
    also={204: "There is none."},
    raises=(errors.Invalid, errors.Unprocessable, errors.Unavailable),
    is_read=True,
)
async def select(rear: Rear, call: Call, body: SelectorV1) -> Flavour | Reply:
    """One flavour, as in that version: of those that match, the one with the most cpu free."""
    return _best(rear, body.selector())


def _best(rear: Rear, selector: Selector) -> Flavour | Reply:
    found = rear.shelf.find(selector, limit=1).offers
    return documents_v1.flavour(found[0], rear.owner) if found else Reply(None, 204)


@endpoint(
    "POST",
    "/api/reserveflavour/{flavour_id}",
    summary="Hold a flavour, or a part of it (version 1)",
    raises=deals.RESERVING,
    headers={"Idempotency-Key": deals.ONCE_TEXT},
)
async def reserve(rear: Rear, call: Call, path: FlavourPath, body: ReserveV1) -> TransactionV1:
    """Without a partition: all that is free."""
    if body.flavour_id not in ("", path.flavour_id):
        raise errors.Conflict(
            f"the path names {path.flavour_id}, the body {body.flavour_id}; name one flavour"
        )
    hold = await rear.ledger.reserve(
        buyer_of(call).named(body.buyer_id.id),
        FlavorId(path.flavour_id),
        room=None if body.partition is None else body.partition.room(),
        idempotency_key=deals.once(call),
    )
    return documents_v1.transaction(hold, body.cluster_id)


@endpoint(
    "POST",
    "/api/purchaseflavour/{transaction_id}",
    summary="Buy what is held (version 1)",
    raises=deals.CHANGING,
)
async def purchase(rear: Rear, call: Call, path: TransactionPath, body: PurchaseV1) -> PurchasedV1:
    """The contract; sent again it is the same one."""
    if body.transaction_id not in ("", path.transaction_id):
        raise errors.Conflict("the path and the body name different transactions; name one")
    buyer_of(call).named(body.buyer_id)
    return documents_v1.purchased(*await deals.buy(rear, call, path.transaction_id))

"""`/market/holds` and `/market/contracts`: holds on this cloud's flavors, and contracts that it sold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.kit.field_copy import copy_fields
from skerry.kit.tasks import map_in_turns
from skerry.market.provider.ledger.records import ContractRecord
from skerry.model import errors
from skerry.model.ids import ContractId
from skerry.model.market import Hold
from skerry.transport.http.endpoints import RequestContext, endpoint
from skerry.wire.market_inputs import MarketIdPath, Text
from skerry.wire.own.market import pagination
from skerry.wire.own.market.context import MarketContext
from skerry.wire.own.market.documents import PriceInfo, ResourcesInfo, deal_facts
from skerry.wire.own.market.pagination import PageQuery


class HoldInfo(msgspec.Struct, frozen=True):
    """A part of a flavor that is kept for a buyer."""

    id: str
    flavor: str
    buyer: str
    resources: Annotated[ResourcesInfo, Meta(description="Of one")] = msgspec.field(name="room")
    count: int
    price: Annotated[PriceInfo, Meta(description="Of all of it, for each period")]
    total: Annotated[str, Meta(description="Price of the contract that it would become, from start to end")]
    created_at: float
    expires_at: float
    state: Annotated[str, Meta(description="`held`, `bought`, `cancelled` or `expired`")]
    contract: str | None

    @classmethod
    def of(cls, hold: Hold, now: float) -> HoldInfo:
        return copy_fields(cls, hold, flavor=hold.flavor.id, state=hold.state(now), **deal_facts(hold))


class SoldContractInfo(msgspec.Struct, frozen=True):
    """A contract that this cloud sold."""

    id: str
    flavor: str
    buyer: str
    resources: Annotated[ResourcesInfo, Meta(description="Of one")] = msgspec.field(name="room")
    count: int
    price: Annotated[PriceInfo, Meta(description="Of all of it, for each period")]
    total: Annotated[str, Meta(description="Of all of it, from start to end")]
    starts_at: float
    ends_at: float
    reclaim_at: Annotated[float | None, Meta(description="When it is reclaimed")]
    reason: str
    ended_at: float | None
    state: Annotated[str, Meta(description="`live`, `reclaimed`, `released`, `withdrawn` or `expired`")]
    is_countersigned: Annotated[bool, Meta(description="Its buyer has signed it too")]
    opened_at: Annotated[float | None, Meta(description="When its buyer first connected")]
    is_unknown: Annotated[bool, Meta(description="Its buyer was not on the allowlist when it reserved")]

    @classmethod
    def of(cls, sale: ContractRecord, now: float) -> SoldContractInfo:
        contract = sale.contract
        return copy_fields(
            cls,
            contract,
            flavor=contract.flavor.id,
            state=contract.state(now),
            is_countersigned=bool(sale.countersigned),
            opened_at=sale.opened_at,
            **deal_facts(contract),
        )


class SoldContractDetail(msgspec.Struct, frozen=True):
    """A contract that this cloud sold, with the signed document."""

    contract: SoldContractInfo
    document: Annotated[str, Meta(description="A compact JWS: `skerry contract verify` reads it")]


class HoldList(msgspec.Struct, frozen=True):
    """Holds, live ones first, then the newest; `count` is of all."""

    count: int
    holds: tuple[HoldInfo, ...]
    cursor: str | None


class SoldContractList(msgspec.Struct, frozen=True):
    """Contracts, live ones first, then the newest; `count` is of all."""

    count: int
    contracts: tuple[SoldContractInfo, ...]
    cursor: str | None


class ReclaimContractRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reason of a reclaim."""

    reason: Annotated[Text, Meta(description="Sent to its buyer")] = ""


@endpoint(
    "GET",
    "/market/holds",
    summary="List holds",
    raises=(errors.Invalid, errors.Unavailable),
)
async def list_holds(market: MarketContext, call: RequestContext, query: PageQuery) -> HoldList:
    """Holds on flavors of this cloud, also those that ended recently."""
    now = market.ledger.now()

    def place(hold: Hold) -> str:
        return pagination.newest_first_key(is_over=not hold.is_live(now), at=hold.created_at, id=hold.id)

    page = pagination.paginate(market.ledger.holds(), place, query)
    items = await map_in_turns(lambda hold: HoldInfo.of(hold, now), page.items)
    return HoldList(page.total, items, page.cursor)


@endpoint(
    "GET",
    "/market/contracts",
    summary="List sold contracts",
    raises=(errors.Invalid, errors.Unavailable),
)
async def list_contracts(market: MarketContext, call: RequestContext, query: PageQuery) -> SoldContractList:
    """Contracts that this cloud sold, also those that ended recently."""
    now = market.ledger.now()

    def place(sale: ContractRecord) -> str:
        contract = sale.contract
        return pagination.newest_first_key(
            is_over=not contract.is_live(now), at=contract.starts_at, id=contract.id
        )

    page = pagination.paginate(market.ledger.contracts(), place, query)
    items = await map_in_turns(lambda sale: SoldContractInfo.of(sale, now), page.items)
    return SoldContractList(page.total, items, page.cursor)


@endpoint(
    "GET",
    "/market/contracts/{id}",
    summary="Show a sold contract",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def show(market: MarketContext, call: RequestContext, path: MarketIdPath) -> SoldContractDetail:
    """With the document of the present terms: signed by both, once its buyer has signed it."""
    with _naming(path.id):
        sale = await market.ledger.find_contract(ContractId(path.id))
    document = sale.countersigned or sale.current
    return SoldContractDetail(SoldContractInfo.of(sale, market.ledger.now()), document.decode("ascii"))


@endpoint(
    "POST",
    "/market/contracts/{id}/reclaim",
    summary="Reclaim a sold contract",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def reclaim(
    market: MarketContext, call: RequestContext, path: MarketIdPath, body: ReclaimContractRequest | None
) -> SoldContractInfo:
    """Its buyer is notified, and the contract ends after its notice: at `reclaim_at`."""
    reason = "" if body is None else body.reason
    with _naming(path.id):
        sale = await market.ledger.reclaim(ContractId(path.id), actor=call.caller.name, reason=reason)
    return SoldContractInfo.of(sale, market.ledger.now())


@contextmanager
def _naming(id: str) -> Iterator[None]:
    """The ledger's error for an unknown contract is written for buyers; this one is for the seller."""
    try:
        yield
    except errors.NotFound:
        raise errors.NotFound(f"no contract {id!r} was sold; list contracts to see those that were") from None

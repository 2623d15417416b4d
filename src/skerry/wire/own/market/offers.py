"""`/market/flavors` and `/market/ledger`: offers of this cloud, and where its capacity is."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from skerry.kit.tasks import map_in_turns
from skerry.market.provider.ledger.records import OfferRecord
from skerry.market.provider.node_offers import KIND
from skerry.model import errors, ids
from skerry.model.devices import MAX_COUNT
from skerry.model.ids import CloudId, OfferId
from skerry.model.market import Aggregation, Offer, Partition, Price
from skerry.model.resources import NO_RESOURCES
from skerry.transport.http.endpoints import RequestContext, endpoint
from skerry.wire.market_inputs import (
    GB,
    MB,
    Cores,
    Count,
    MarketIdPath,
    Text,
    WithdrawOfferQuery,
    parse_resources,
)
from skerry.wire.own.market import pagination
from skerry.wire.own.market.context import MarketContext
from skerry.wire.own.market.documents import OfferInfo, ResourcesInfo, offer_facts, parse_money
from skerry.wire.own.market.pagination import PageQuery

_AUDITED_AT_ONCE: Final = 1000


class OfferRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A flavor to sell: whole, or in parts by a minimum and a step."""

    price: Annotated[str, Meta(max_length=40, description="Of one whole, for each period: `0.10`")]
    currency: Annotated[str, Meta(max_length=3, pattern="^[A-Z]{3}$", description="ISO 4217: `EUR`")]
    period: Annotated[str, Meta(max_length=40, description="ISO 8601: `PT1H`")] = "PT1H"
    id: Annotated[str, Meta(max_length=ids.MAX_ID, description="Without it one is generated")] = ""
    cpu: Cores = 0
    memory: MB = 0
    disk: GB = 0
    cpu_min: Cores = 0
    cpu_step: Cores = 0
    memory_min: MB = 0
    memory_step: MB = 0
    max_count: Annotated[Count, Meta(description="How many may be taken together")] = 1
    stock: Annotated[Count, Meta(description="How many of it there are")] = 1
    location: Text = ""
    architecture: Text = ""
    gpus: Annotated[int, Meta(ge=0, le=MAX_COUNT, description="Of each whole one; not in parts")] = 0

    def flavor(self, new_id: OfferId, provider: CloudId, now: float) -> Offer:
        if not (self.cpu or self.memory or self.disk):
            raise errors.Invalid("an offer needs resources; set cpu and memory", field="cpu")
        for field, minimum, all_ in (
            ("cpu_min", self.cpu_min, self.cpu),
            ("memory_min", self.memory_min, self.memory),
        ):
            if minimum > all_:
                raise errors.Invalid(f"{field} is {minimum}, and all of it is {all_}; lower it", field=field)
        least, step = (
            parse_resources(self.cpu_min, self.memory_min),
            parse_resources(self.cpu_step, self.memory_step),
        )
        if self.gpus and not least == step == NO_RESOURCES:
            raise errors.Invalid(
                "GPUs are sold with whole offers only; leave out minimum and step, or gpus", field="gpus"
            )
        return Offer(
            id=OfferId(self.id) if self.id else new_id,
            provider=provider,
            kind=KIND,
            resources=parse_resources(self.cpu, self.memory, self.disk),
            price=Price(parse_money(self.price, "price"), self.currency, self.period),
            created_at=now,
            architecture=self.architecture,
            gpus=self.gpus,
            partition=None if least == step == NO_RESOURCES else Partition(least, step),
            aggregation=Aggregation(1, self.max_count) if self.max_count > 1 else None,
            stock=self.stock,
            location=self.location,
        )


class RepriceOfferRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The new price; fields that are left out stay."""

    price: Annotated[str, Meta(max_length=40, description="Of one whole, for each period: `0.10`")]
    currency: Annotated[str, Meta(max_length=3, pattern="^([A-Z]{3})?$", description="ISO 4217: `EUR`")] = ""
    period: Annotated[str, Meta(max_length=40, description="ISO 8601: `PT1H`")] = ""

    def after(self, before: Price) -> Price:
        amount = parse_money(self.price, "price")
        return Price(amount, self.currency or before.currency, self.period or before.period)


class WithdrawalInfo(msgspec.Struct, frozen=True):
    """A withdrawal of an offer."""

    at: float
    reason: str
    reclaims: Annotated[bool, Meta(description="Its contracts are reclaimed, each after its notice")]


class OfferAccountInfo(OfferInfo, frozen=True, kw_only=True):
    """A flavor of this cloud, and where its capacity is: `free` + `held` + `sold` = `capacity`."""

    capacity: ResourcesInfo
    free: ResourcesInfo
    held: ResourcesInfo
    sold: ResourcesInfo
    withdrawn: WithdrawalInfo | None

    @classmethod
    def of(cls, account: OfferRecord) -> OfferAccountInfo:
        return cls(**_account_facts(account))


class PublishedOfferInfo(OfferAccountInfo, frozen=True, kw_only=True):
    """A flavor that was published."""

    warning: Annotated[str, Meta(description="Why the nodes cannot deliver it; empty if they can")]

    @classmethod
    def warned(cls, account: OfferRecord, warning: str) -> PublishedOfferInfo:
        return cls(**_account_facts(account), warning=warning)


def _account_facts(account: OfferRecord) -> dict[str, Any]:
    gone = account.withdrawn
    return {
        **offer_facts(account.flavor),
        "capacity": ResourcesInfo.of(account.capacity),
        "free": ResourcesInfo.of(account.free),
        "held": ResourcesInfo.of(account.held),
        "sold": ResourcesInfo.of(account.sold),
        "withdrawn": None if gone is None else WithdrawalInfo(gone.at, gone.reason, gone.reclaims),
    }


class LedgerInfo(msgspec.Struct, frozen=True):
    """Flavors in the order of their ids, and differences that an audit found: none, unless there is a
    fault."""

    count: int
    flavors: tuple[OfferAccountInfo, ...]
    cursor: str | None
    is_balanced: bool
    wrong: Annotated[dict[str, list[str]], Meta(description="By flavor, of all pages")]


@endpoint(
    "POST",
    "/market/flavors",
    summary="Publish an offer",
    status=201,
    raises=(
        errors.Invalid,
        errors.AlreadyExists,
        errors.FailedPrecondition,
        errors.TooLarge,
        errors.Unavailable,
    ),
)
async def sell(market: MarketContext, call: RequestContext, body: OfferRequest) -> PublishedOfferInfo:
    """The same offer again, with its `id`, changes nothing; a withdrawn one is offered again. Refused if all
    nodes run without root."""
    if refusal := market.sale_refusal():
        raise errors.FailedPrecondition(refusal)
    flavor = body.flavor(OfferId(market.new_id()), market.provider, market.ledger.now())
    account = await market.ledger.publish(flavor, actor=call.caller.name)
    return PublishedOfferInfo.warned(account, market.shortage(account.flavor))


@endpoint(
    "PATCH",
    "/market/flavors/{id}",
    summary="Change the price of an offer",
    raises=(errors.Invalid, errors.NotFound, errors.Expired, errors.FailedPrecondition, errors.Unavailable),
)
async def reprice(
    market: MarketContext, call: RequestContext, path: MarketIdPath, body: RepriceOfferRequest
) -> OfferAccountInfo:
    """Holds and contracts keep their price, and subscribers get the change."""
    id = OfferId(path.id)
    price = body.after(market.ledger.flavor(id).flavor.price)
    return OfferAccountInfo.of(await market.ledger.reprice(id, price, actor=call.caller.name))


@endpoint(
    "DELETE",
    "/market/flavors/{id}",
    summary="Withdraw an offer",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def withdraw(
    market: MarketContext, call: RequestContext, path: MarketIdPath, query: WithdrawOfferQuery
) -> OfferAccountInfo:
    """Nothing more of it can be reserved. Contracts run to their end, or with `reclaim` until their notice is
    over."""
    account = await market.ledger.withdraw(
        OfferId(path.id), actor=call.caller.name, reason=query.reason, reclaim=query.reclaim
    )
    return OfferAccountInfo.of(account)


@endpoint("GET", "/market/ledger", summary="Show the ledger", raises=(errors.Invalid, errors.Unavailable))
async def show_ledger(market: MarketContext, call: RequestContext, query: PageQuery) -> LedgerInfo:
    """Every flavor of this cloud that is offered, held or sold, and its capacity."""
    page = pagination.paginate(market.ledger.accounts(), lambda account: account.flavor.id, query)
    wrong: dict[str, list[str]] = {}
    for number, (id, why) in enumerate(market.ledger.audits(), 1):
        if why:
            wrong[str(id)] = why
        if number % _AUDITED_AT_ONCE == 0:
            await asyncio.sleep(0)  # there may be very many, and other requests must go on
    accounts = await map_in_turns(OfferAccountInfo.of, page.items)
    return LedgerInfo(page.total, accounts, page.cursor, not wrong, wrong)

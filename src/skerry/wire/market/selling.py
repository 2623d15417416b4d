"""`/market/flavors` and `/market/ledger`: putting capacity up for sale, and where it is."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from skerry.market.accounts import Account
from skerry.market.offers import KIND
from skerry.model import errors, ids
from skerry.model.ids import CloudId, FlavorId
from skerry.model.market import Aggregation, Flavor, Partition, Price
from skerry.model.room import NOTHING
from skerry.wire.http.endpoints import Call, endpoint
from skerry.wire.market import pages
from skerry.wire.market.amounts import (
    GB,
    MB,
    Amounts,
    Cores,
    Count,
    FlavorInfo,
    IdPath,
    Label,
    facts,
    money,
    room_of,
)
from skerry.wire.market.context import MarketDesk
from skerry.wire.market.pages import PageQuery

_AUDITED_AT_ONCE: Final = 1000


class FlavorWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A flavor to sell: whole, unless a minimum or a step says in which parts."""

    price: Annotated[str, Meta(max_length=40, description="Of one whole, for each period: `0.10`")]
    currency: Annotated[str, Meta(max_length=3, pattern="^[A-Z]{3}$", description="ISO 4217: `EUR`")]
    period: Annotated[str, Meta(max_length=40, description="ISO 8601: `PT1H`")] = "PT1H"
    id: Annotated[str, Meta(max_length=ids.MAX_ID, description="Without it one is made up")] = ""
    cpu: Cores = 0
    memory: MB = 0
    disk: GB = 0
    cpu_min: Cores = 0
    cpu_step: Cores = 0
    memory_min: MB = 0
    memory_step: MB = 0
    max_count: Annotated[Count, Meta(description="How many may be taken together")] = 1
    stock: Annotated[Count, Meta(description="How many of it there are")] = 1
    location: Label = ""
    architecture: Label = ""

    def flavor(self, new_id: FlavorId, provider: CloudId, now: float) -> Flavor:
        if not (self.cpu or self.memory or self.disk):
            raise errors.Invalid("an offer has some room; name cpu and memory", field="cpu")
        for field, minimum, all_ in (
            ("cpu_min", self.cpu_min, self.cpu),
            ("memory_min", self.memory_min, self.memory),
        ):
            if minimum > all_:
                raise errors.Invalid(f"{field} is {minimum}, and all of it is {all_}; lower it", field=field)
        least, step = room_of(self.cpu_min, self.memory_min), room_of(self.cpu_step, self.memory_step)
        return Flavor(
            id=FlavorId(self.id) if self.id else new_id,
            provider=provider,
            kind=KIND,
            room=room_of(self.cpu, self.memory, self.disk),
            price=Price(money(self.price, "price"), self.currency, self.period),
            created_at=now,
            architecture=self.architecture,
            partition=None if least == step == NOTHING else Partition(least, step),
            aggregation=Aggregation(1, self.max_count) if self.max_count > 1 else None,
            stock=self.stock,
            location=self.location,
        )


class Withdrawing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to withdraw it."""

    reason: Annotated[str, Meta(max_length=256, description="Subscribers and buyers are told")] = ""
    reclaim: Annotated[bool, Meta(description="Take its contracts back, each after its notice")] = False


class WithdrawalInfo(msgspec.Struct, frozen=True):
    """It is no longer offered."""

    at: float
    reason: str
    reclaims: Annotated[bool, Meta(description="Its contracts are taken back, each after its notice")]


class AccountInfo(FlavorInfo, frozen=True, kw_only=True):
    """A flavor of this cloud, and where its capacity is: `free` + `held` + `sold` = `capacity`."""

    capacity: Amounts
    free: Amounts
    held: Amounts
    sold: Amounts
    withdrawn: WithdrawalInfo | None

    @classmethod
    def of(cls, account: Account) -> AccountInfo:
        gone = account.withdrawn
        return cls(
            **facts(account.flavor),
            capacity=Amounts.of(account.capacity),
            free=Amounts.of(account.free),
            held=Amounts.of(account.held),
            sold=Amounts.of(account.sold),
            withdrawn=None if gone is None else WithdrawalInfo(gone.at, gone.reason, gone.reclaims),
        )


class LedgerInfo(msgspec.Struct, frozen=True):
    """Flavors in the order of their ids, and what does not add up: nothing, unless there is a fault."""

    count: int
    flavors: list[AccountInfo]
    cursor: str | None
    is_balanced: bool
    wrong: Annotated[dict[str, list[str]], Meta(description="By flavor, of all pages")]


@endpoint(
    "POST",
    "/market/flavors",
    summary="Put capacity up for sale",
    status=201,
    raises=(errors.Invalid, errors.AlreadyExists, errors.TooLarge, errors.Unavailable),
)
async def sell(desk: MarketDesk, call: Call, body: FlavorWish) -> AccountInfo:
    """Offer a flavor. The same again, with its `id`, is no change; one that was withdrawn is offered anew."""
    flavor = body.flavor(FlavorId(desk.new_id()), desk.provider, desk.ledger.now())
    return AccountInfo.of(await desk.ledger.publish(flavor, actor=call.caller.name))


@endpoint(
    "DELETE",
    "/market/flavors/{id}",
    summary="Offer it no longer",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def withdraw(desk: MarketDesk, call: Call, path: IdPath, query: Withdrawing) -> AccountInfo:
    """Nothing more of it can be had. Contracts run to their end, or with `reclaim` through their notice."""
    account = await desk.ledger.withdraw(
        FlavorId(path.id), actor=call.caller.name, reason=query.reason, reclaim=query.reclaim
    )
    return AccountInfo.of(account)


@endpoint("GET", "/market/ledger", summary="Where capacity is", raises=(errors.Invalid, errors.Unavailable))
async def show_ledger(desk: MarketDesk, call: Call, query: PageQuery) -> LedgerInfo:
    """Every flavor of this cloud that is offered, or of which something is held or sold."""
    page = pages.cut(_accounts(desk), lambda account: account.flavor.id, query)
    wrong: dict[str, list[str]] = {}
    for number, (id, why) in enumerate(desk.ledger.audits(), 1):
        if why:
            wrong[str(id)] = why
        if number % _AUDITED_AT_ONCE == 0:
            await asyncio.sleep(0)  # there may be very many, and others buy
    return LedgerInfo(page.total, [AccountInfo.of(one) for one in page.items], page.cursor, not wrong, wrong)


def _accounts(desk: MarketDesk) -> list[Account]:
    """Also those that were withdrawn while something of them was taken."""
    found = {account.flavor.id: account for account in desk.ledger.flavors()}
    now = desk.ledger.now()
    taken = {hold.flavor.id for hold in desk.ledger.holds() if hold.is_live(now)}
    taken |= {sale.contract.flavor.id for sale in desk.ledger.contracts() if sale.contract.ended_at is None}
    for id in taken - found.keys():
        with suppress(errors.NotFound):  # which the audit tells of
            found[id] = desk.ledger.flavor(id)
    return list(found.values())

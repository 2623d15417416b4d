"""Offers that follow the nodes: which flavors there should be, and what is to be done so that they are.

Each node that is for sale has one flavor under a stable id, as large as the share of its room that the
settings name. How much of that there is follows what the node has free of other work: it shrinks when the
node fills up, and to nothing while the node drains, is silent or takes no work; the ledger never lets it sink
below what is held or sold, and offers none of that again when it ends. A node that is gone, or no longer for
sale, has its flavor withdrawn and its contracts taken back after their notice.
Pure, but for `follow`, which has the ledger carry a plan out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from skerry.market import pricing
from skerry.market.accounts import Account
from skerry.market.ledger import Ledger
from skerry.model import errors
from skerry.model.currencies import check_currency
from skerry.model.ids import CloudId, FlavorId, NodeId
from skerry.model.market import Aggregation, Flavor, Partition, Price
from skerry.model.room import NOTHING, Gigabytes, Megabytes, Millicores, Room
from skerry.model.settings import MarketSettings

log = structlog.get_logger(__name__)

KIND: Final = "k8slice"
ACTOR: Final = "skerry"
_PREFIX: Final = "node-"
_CORE: Final = 1000


class Supply(msgspec.Struct, frozen=True):
    """A node as the market sees it."""

    node: NodeId
    room: Room  # all that it may give away
    machine: Room  # all that it has, of which a share is for sale
    used: Room = NOTHING  # by what it runs, but for contracts of this market
    takes_work: bool = True  # it is heard of, and neither cordoned nor draining
    architecture: str = ""
    labels: Mapping[str, str] = {}


class Wanted(msgspec.Struct, frozen=True):
    """A flavor that should be offered, and how much of it there is."""

    flavor: Flavor
    capacity: Room


class Plan(msgspec.Struct, frozen=True):
    """What is to be done so that offers are as wanted."""

    publish: Sequence[Wanted]
    update: Sequence[Wanted]
    withdraw: Sequence[FlavorId]


def wanted(
    supplies: Iterable[Supply], settings: MarketSettings, *, provider: CloudId, now: float
) -> list[Wanted]:
    """The flavors of nodes, as the settings say; `Invalid` if these name no price."""
    if settings.sell_percent == 0:
        return []
    rate = price_of(settings)
    partition = Partition(
        Room(Millicores(settings.sell_cpu_min * _CORE), Megabytes(settings.sell_memory_min)),
        Room(Millicores(settings.sell_cpu_step * _CORE), Megabytes(settings.sell_memory_step)),
    )
    labels = [label.partition("=") for label in settings.sell_nodes]
    offers = []
    for supply in supplies:
        if any(supply.labels.get(key) != value for key, _, value in labels):
            continue
        share = in_parts(_share(supply.machine, settings.sell_percent), partition)
        if share.cpu == 0:
            continue  # less than the least part, or than a core, which is what has a price
        free = supply.room - _least(supply.room, supply.used) if supply.takes_work else NOTHING
        flavor = Flavor(
            id=flavor_of(supply.node),
            provider=provider,
            kind=KIND,
            room=share,
            price=replace(rate, amount=pricing.EXACT.multiply(rate.amount, share.cpu // _CORE)),
            created_at=now,
            architecture=supply.architecture,
            partition=partition,
            aggregation=Aggregation(1, settings.sell_max_count) if settings.sell_max_count > 1 else None,
            location=settings.location,
            worker=supply.node,
        )
        offers.append(Wanted(flavor, in_parts(_least(share, free), partition)))
    return offers


def plan(accounts: Iterable[Account], offers: Iterable[Wanted]) -> Plan:
    """What is to be done; flavors that follow no node are let be."""
    known = {account.flavor.id: account for account in accounts if _is_of_node(account.flavor)}
    publish, update, seen = [], [], set()
    for offer in offers:
        seen.add(offer.flavor.id)
        account = known.get(offer.flavor.id)
        if account is None or account.withdrawn is not None:
            publish.append(offer)
        elif not _is_as_wanted(account, offer):
            update.append(offer)
    gone = [id for id, account in known.items() if id not in seen and account.withdrawn is None]
    return Plan(publish, update, gone)


async def follow(ledger: Ledger, offers: Iterable[Wanted]) -> bool:
    """Carry the plan out; True if all of it was done. What was not is tried with the next."""
    todo = plan(ledger.flavors_of_nodes(), offers)
    steps = [ledger.publish(one.flavor, actor=ACTOR, capacity=one.capacity) for one in todo.publish]
    steps += [
        ledger.update(one.flavor.id, partial(_take_over, one.flavor), actor=ACTOR, capacity=one.capacity)
        for one in todo.update
    ]
    steps += [
        ledger.withdraw(id, actor=ACTOR, reason="its node is no longer for sale", reclaim=True)
        for id in todo.withdraw
    ]
    is_done = True
    for failure in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(failure, errors.SkerryError):
            log.warning("offer.not-followed", error=failure.message, detail=failure.detail)
            is_done = False
        elif isinstance(failure, BaseException):
            raise failure
    return is_done


def flavor_of(node: NodeId) -> FlavorId:
    """The flavor that is carved from a node."""
    return FlavorId(_PREFIX + node)


def node_of(flavor: FlavorId) -> NodeId | None:
    """The node that a flavor of this id would be carved from."""
    return NodeId(flavor.removeprefix(_PREFIX)) if flavor.startswith(_PREFIX) else None


def price_of(settings: MarketSettings) -> Price:
    """What one core costs for a period."""
    try:
        amount = Decimal(settings.sell_price)
    except InvalidOperation:
        raise errors.Invalid(
            f"market.sell_price {settings.sell_price[:40]!r} is no number; write one such as `0.01`"
        ) from None
    check_currency(settings.sell_currency)
    return Price(amount, settings.sell_currency, settings.sell_period)


def _is_of_node(flavor: Flavor) -> bool:
    return flavor.worker != "" and flavor.id == flavor_of(NodeId(flavor.worker))


def _take_over(terms: Flavor, before: Flavor) -> Flavor:
    """The terms as they are wanted, in the flavor that is there."""
    return replace(terms, version=before.version, created_at=before.created_at)


def _is_as_wanted(account: Account, offer: Wanted) -> bool:
    return account.size == offer.capacity and account.flavor == _take_over(offer.flavor, account.flavor)


def _share(room: Room, percent: int) -> Room:
    return Room(
        Millicores(room.cpu * percent // 100),
        Megabytes(room.memory * percent // 100),
        Gigabytes(room.disk * percent // 100),
    )


def in_parts(room: Room, partition: Partition) -> Room:
    """As much of `room` as can be sold: whole cores, and of each resource the least part and whole steps."""
    least, step = partition.least, partition.step
    return Room(
        Millicores(_steps(room.cpu // _CORE * _CORE, least.cpu, step.cpu)),
        Megabytes(_steps(room.memory, least.memory, step.memory)),
        room.disk,
    )


def _steps(amount: int, least: int, step: int) -> int:
    if amount < least:
        return 0
    return least + (amount - least) // step * step if step else amount


def _least(one: Room, other: Room) -> Room:
    """The smaller of both in each resource."""
    return Room(
        Millicores(min(one.cpu, other.cpu)),
        Megabytes(min(one.memory, other.memory)),
        Gigabytes(min(one.disk, other.disk)),
    )

"""Offers that follow the nodes: which flavors there should be, and a plan to publish, update and withdraw.

Each node that is for sale has one flavor under a stable id, with a share of its resources from the settings.
Its capacity follows what the node has free of other work: it shrinks when the node fills up, and to nothing
while the node drains, is not live or is not schedulable; the ledger never lets it sink below what is held or
sold, and does not offer that again when it ends. The flavor of a node that is removed, or no longer for sale,
is withdrawn and its contracts are reclaimed after their notice. Pure;
`skerry.market.provider.offer_controller` carries a plan out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec
from msgspec.structs import replace

from skerry.market.provider.ledger.change import NO_DEMAND, UnplacedDemand
from skerry.market.provider.ledger.records import OfferRecord
from skerry.market.terms import pricing
from skerry.model import errors
from skerry.model.currencies import check_currency
from skerry.model.ids import CloudId, NodeId, OfferId
from skerry.model.market import Aggregation, Offer, Partition, Price, resources_text
from skerry.model.market_settings import MarketSettings
from skerry.model.resources import (
    NO_AMOUNTS,
    NO_RESOURCES,
    Amounts,
    Gigabytes,
    Megabytes,
    Millicores,
    Resources,
    add_amounts,
    capped,
)

KIND: Final = "k8slice"
_PREFIX: Final = "node-"
_CORE: Final = 1000
_MAX_CHECKED: Final = 500  # of what waits for a node, checked one by one


class NodeSupply(msgspec.Struct, frozen=True):
    """A node as the market sees it."""

    node: NodeId
    resources: Resources  # all that it may give away
    machine: Resources  # all that it has, of which a share is for sale
    used: Resources = NO_RESOURCES  # by what it runs, but for contracts of this market
    is_schedulable: bool = True  # it is live, and neither cordoned nor draining
    is_silent: bool = False  # it takes none only because it is not live
    architecture: str = ""
    labels: Mapping[str, str] = {}
    gpus: int = 0  # free ones of one kind

    @property
    def free(self) -> Resources:
        """What it may give away and does not use."""
        return self.resources - _least(self.resources, self.used)


class DesiredOffer(msgspec.Struct, frozen=True):
    """A flavor that should be offered, and its capacity."""

    flavor: Offer
    capacity: Resources


class OfferPlan(msgspec.Struct, frozen=True):
    """What is to be done so that offers are as wanted."""

    publish: Sequence[DesiredOffer]
    update: Sequence[DesiredOffer]
    withdraw: Sequence[OfferId]


def desired_offers(
    supplies: Iterable[NodeSupply], settings: MarketSettings, *, provider: CloudId, now: float
) -> list[DesiredOffer]:
    """The flavors of nodes, by the settings; `Invalid` if these have no price."""
    if settings.sell_percent == 0:
        return []
    rate = price_of(settings)
    partition = Partition(
        Resources(Millicores(settings.sell_cpu_min * _CORE), Megabytes(settings.sell_memory_min)),
        Resources(Millicores(settings.sell_cpu_step * _CORE), Megabytes(settings.sell_memory_step)),
    )
    labels = [label.partition("=") for label in settings.sell_nodes]
    offers = []
    for supply in supplies:
        if any(supply.labels.get(key) != value for key, _, value in labels):
            continue
        share = round_to_parts(_share(supply.machine, settings.sell_percent), partition)
        if share.cpu == 0:
            continue  # less than the least part, or than a core, which is what has a price
        free = supply.free if supply.is_schedulable else NO_RESOURCES
        flavor = Offer(
            id=offer_id_for(supply.node),
            provider=provider,
            kind=KIND,
            resources=share,
            price=replace(rate, amount=pricing.EXACT.multiply(rate.amount, share.cpu // _CORE)),
            created_at=now,
            architecture=supply.architecture,
            partition=partition,
            aggregation=Aggregation(1, settings.sell_max_count) if settings.sell_max_count > 1 else None,
            location=settings.location,
            worker=supply.node,
        )
        offers.append(DesiredOffer(flavor, round_to_parts(_least(share, free), partition)))
    return offers


def shortage(
    offered: Iterable[OfferRecord], flavor: Offer, nodes: Sequence[Resources], gpus: Sequence[int] = ()
) -> str:
    """Why `flavor` cannot be delivered by nodes that have so much, each with so many GPUs, besides what else
    is offered of no node; empty if it can."""
    piece = flavor.resources if flavor.partition is None else flavor.partition.least
    if flavor.gpus and flavor.partition is not None:
        return "GPUs are sold with whole offers only, and nobody gets one with a part of this; sell it whole"
    if max(gpus, default=0) < flavor.gpus:
        return (
            f"no node has {flavor.gpus} GPUs of one kind, so nothing of this can be delivered; install the "
            "CDI files of their vendor there (docs/devices.md), or sell it without"
        )
    if not any(node.fits(piece) for node in nodes):
        return (
            f"no node has {resources_text(piece)}, so nothing of this can be delivered; add a node, or sell "
            "less"
        )
    requested = add_amounts(account.size for account in offered if not account.flavor.worker)
    lack = capped(add_amounts(nodes, requested, times=-1))
    if lack == NO_RESOURCES:
        return ""
    return (
        f"offers that follow no node come to {resources_text(capped(requested))}, and all nodes together "
        "lack "
        f"{resources_text(lack)} of that; a request that no node can take is refused"
    )


def check_placement(
    supplies: Sequence[NodeSupply], resources: Resources, others: UnplacedDemand, gpus: int = 0
) -> None:
    """Raise unless one of these nodes can take so much, with so many GPUs, besides the `others`:
    `Unavailable` while all that could are not live, or else `ResourcesExhausted`."""
    with_gpus = [supply for supply in supplies if supply.gpus >= gpus]
    there = sum(supply.gpus for supply in with_gpus if supply.is_schedulable)
    if gpus and gpus + others.gpus > there:
        raise errors.ResourcesExhausted(
            f"no node of this provider has {gpus} {'GPU' if gpus == 1 else 'GPUs'} free now, besides those "
            "that are reserved; choose another offer, or try again later"
        )
    if can_place(supplies, resources, others) and (not gpus or can_place(with_gpus, resources)):
        return
    lack = f"no node of this provider has {resources_text(resources)} free now"
    if any(supply.is_schedulable for supply in supplies):
        raise errors.ResourcesExhausted(
            f"{lack}, though it offers that; request less, or choose another offer"
        )
    if any(supply.is_silent for supply in supplies):
        raise errors.Unavailable(
            f"{lack}, as its nodes are silent; try again in a moment, or choose another offer"
        )
    why = "none of its nodes takes work" if supplies else "it has no node"
    raise errors.ResourcesExhausted(f"{lack}, as {why}; choose another offer, or try again later")


def can_place(
    supplies: Iterable[NodeSupply], resources: Resources, others: UnplacedDemand = NO_DEMAND
) -> bool:
    """True if a node that takes work has so much free, when the `others` that wait for a node have got one
    too; the largest are given out first. With very many others only their sum is checked."""
    free = [supply.free for supply in supplies if supply.is_schedulable]
    if not any(node.fits(resources) for node in free):
        return False
    wanted = [resources, *others.parts]
    there, requested = add_amounts(free), add_amounts(wanted, others.more)
    if not _covers(there, requested):
        return False
    is_summed = len(others.parts) > _MAX_CHECKED or others.more != NO_AMOUNTS
    # One that has enough for all of them, as there mostly is, saves looking at each.
    return (
        is_summed
        or any(_covers(add_amounts([node]), requested) for node in free)
        or _all_fit(free, wanted, there)
    )


def _covers(there: Amounts, requested: Amounts) -> bool:
    return all(amount <= has for amount, has in zip(requested, there, strict=True))


def _all_fit(free: Sequence[Resources], wanted: Sequence[Resources], there: Amounts) -> bool:
    """Whether each finds a node, the largest shares first."""

    def share(one: Resources) -> float:
        pairs = zip((one.cpu, one.memory, one.disk), there, strict=True)
        return max(amount / (has or 1) for amount, has in pairs)

    left = list(free)
    for one in sorted(wanted, key=share, reverse=True):
        place = next((number for number, node in enumerate(left) if node.fits(one)), None)
        if place is None:
            return False
        left[place] = left[place] - one
    return True


def plan(accounts: Iterable[OfferRecord], offers: Iterable[DesiredOffer]) -> OfferPlan:
    """The plan; flavors that follow no node are not touched."""
    known = {account.flavor.id: account for account in accounts if _is_of_node(account.flavor)}
    publish, update, seen = [], [], set()
    for offer in offers:
        seen.add(offer.flavor.id)
        account = known.get(offer.flavor.id)
        if account is None or account.withdrawn is not None:
            publish.append(offer)
        elif not _has_terms(account, offer):
            update.append(offer)
    gone = [id for id, account in known.items() if id not in seen and account.withdrawn is None]
    return OfferPlan(publish, update, gone)


def offer_id_for(node: NodeId) -> OfferId:
    """The flavor that is carved from a node."""
    return OfferId(_PREFIX + node)


def node_id_for(flavor: OfferId) -> NodeId | None:
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


def _is_of_node(flavor: Offer) -> bool:
    return flavor.worker != "" and flavor.id == offer_id_for(NodeId(flavor.worker))


def with_terms(terms: Offer, before: Offer) -> Offer:
    """The desired terms, in the existing flavor."""
    return replace(terms, version=before.version, created_at=before.created_at)


def _has_terms(account: OfferRecord, offer: DesiredOffer) -> bool:
    return account.size == offer.capacity and account.flavor == with_terms(offer.flavor, account.flavor)


def _share(resources: Resources, percent: int) -> Resources:
    return Resources(
        Millicores(resources.cpu * percent // 100),
        Megabytes(resources.memory * percent // 100),
        Gigabytes(resources.disk * percent // 100),
    )


def round_to_parts(resources: Resources, partition: Partition) -> Resources:
    """As much of `resources` as can be sold: whole cores, and of each resource the least part and whole
    steps."""
    return partition.largest(replace(resources, cpu=Millicores(resources.cpu // _CORE * _CORE)))


def _least(one: Resources, other: Resources) -> Resources:
    """The smaller of both in each resource."""
    return Resources(
        Millicores(min(one.cpu, other.cpu)),
        Megabytes(min(one.memory, other.memory)),
        Gigabytes(min(one.disk, other.disk)),
    )

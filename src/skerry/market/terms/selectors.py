"""Which offers a buyer means, and in which order: filters on values, without I/O and without a clock.

`matches` is the meaning; `skerry.market.provider.catalog.offer_index` finds the same offers among very many.
What is on offer is what is free of a flavor now; whether a part of it may be taken is decided by the flavor's
own policy. Nothing here holds or sells.
"""

from __future__ import annotations

import base64
import binascii
import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from skerry.market.terms import pricing
from skerry.model import errors
from skerry.model.ids import OfferId
from skerry.model.market import Offer, Price
from skerry.model.resources import NO_RESOURCES, Resources

PAGE: Final = 100  # offers in one page, by default
MAX_PAGE: Final = 1000


class OfferSnapshot(msgspec.Struct, frozen=True, gc=False):
    """A flavor with what is free of it now."""

    flavor: Offer
    free: Resources

    @property
    def shown(self) -> Resources:
        """What can be had of it in one piece: all that is free if it is sold in parts, else one whole."""
        return self.flavor.resources if self.flavor.partition is None else self.free

    @property
    def count(self) -> int:
        """How many such pieces there are."""
        free, each = self.free, self.flavor.resources
        if self.flavor.partition is not None:
            return int(free != NO_RESOURCES)
        pairs = ((free.cpu, each.cpu), (free.memory, each.memory), (free.disk, each.disk))
        return min([there // amount for there, amount in pairs if amount], default=0)

    @property
    def is_available(self) -> bool:
        """True if something of it may be taken."""
        flavor, free = self.flavor, self.free
        piece = flavor.resources if flavor.partition is None else flavor.partition.least
        together = 1 if flavor.aggregation is None else flavor.aggregation.least
        return (
            piece.cpu * together <= free.cpu
            and piece.memory * together <= free.memory
            and piece.disk * together <= free.disk
            and free != NO_RESOURCES
        )


class OfferSort(enum.StrEnum):
    """By what offers are put in order; equals are in the order of ids."""

    PRICE = "price"
    CPU = "cpu"
    MEMORY = "memory"
    DISK = "disk"


class OfferSelector(msgspec.Struct, frozen=True):
    """What a buyer wants; None and empty are no matter. All bounds are inclusive."""

    kind: str = ""
    architecture: str = ""
    location: str = ""
    cpu: int | None = None
    memory: int | None = None
    disk: int | None = None
    least_cpu: int | None = None
    least_memory: int | None = None
    least_disk: int | None = None
    most_cpu: int | None = None
    most_memory: int | None = None
    most_disk: int | None = None
    most_price: Price | None = None  # of all that is free, or of the part if one is requested
    part: Resources | None = None  # offers of which this may be taken
    # Offers of which so many may be taken together; None, with a part: as few as each is sold together.
    count: int | None = None
    sort: OfferSort = OfferSort.PRICE
    is_descending: bool = False


EVERYTHING: Final = OfferSelector()


class OfferPage(msgspec.Struct, frozen=True):
    """A page of results, in order; `following` is the cursor of the next."""

    offers: Sequence[OfferSnapshot]
    following: str = ""


def matches(offer: OfferSnapshot, selector: OfferSelector) -> bool:
    """True if `offer` is available and matches the selector."""
    flavor, shown = offer.flavor, offer.shown
    return (
        offer.is_available
        and selector.kind in ("", flavor.kind)
        and selector.architecture in ("", flavor.architecture)
        and selector.location in ("", flavor.location)
        and _is_within(shown.cpu, selector.cpu, selector.least_cpu, selector.most_cpu)
        and _is_within(shown.memory, selector.memory, selector.least_memory, selector.most_memory)
        and _is_within(shown.disk, selector.disk, selector.least_disk, selector.most_disk)
        and ((selector.part is None and selector.count is None) or may_be_taken(offer, selector))
        and (selector.most_price is None or _is_affordable(offer, selector, selector.most_price))
    )


def _is_within(amount: int, exact: int | None, least: int | None, most: int | None) -> bool:
    return (
        (exact is None or amount == exact)
        and (least is None or amount >= least)
        and (most is None or amount <= most)
    )


def may_be_taken(offer: OfferSnapshot, selector: OfferSelector) -> bool:
    """Whether the policy allows the requested part, or all that is free."""
    part = offer.shown if selector.part is None else selector.part
    try:
        offer.flavor.check_part(part, offer.free, count_of(selector, offer.flavor.least_count))
    except (errors.Invalid, errors.ResourcesExhausted, errors.Unprocessable):
        return False
    return True


def count_of(selector: OfferSelector, least: int) -> int:
    """How many are taken of an offer with the minimum count `least`; without a part it is one."""
    if selector.count is not None:
        return selector.count
    return 1 if selector.part is None else least


def _is_affordable(offer: OfferSnapshot, selector: OfferSelector, most: Price) -> bool:
    each, count = cost(offer, selector.part), count_of(selector, offer.flavor.least_count)
    return offer.flavor.price.currency == most.currency and each * count <= max_cost(most)


def max_cost(most: Price) -> float:
    """The highest `cost` that is within a price. Costs are compared to twelve digits; bills are exact."""
    return price_per_second(most) * (1 + 1e-12)


def cost(offer: OfferSnapshot, part: Resources | None) -> float:
    """What one such part costs a second, or all that is on offer: for putting in order only."""
    wanted = offer.shown if part is None else part
    cpu, memory, disk = unit_costs(offer.flavor)
    return wanted.cpu * cpu + wanted.memory * memory + wanted.disk * disk


def unit_costs(flavor: Offer) -> tuple[float, float, float]:
    """What one milli-core, one MB and one GB of it cost a second; each resource is one share."""
    amounts = (flavor.resources.cpu, flavor.resources.memory, flavor.resources.disk)
    kinds = sum(1 for amount in amounts if amount)
    whole = price_per_second(flavor.price)
    cpu, memory, disk = (whole / (kinds * amount) if amount else 0.0 for amount in amounts)
    return cpu, memory, disk


def price_per_second(price: Price) -> float:
    """Its amount a second."""
    return float(price.amount) / pricing.seconds_of(price.period)


class OfferCursor(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The position of an offer in an order; the cursor of a page is that of its last offer."""

    group: str  # prices of different currencies are not compared
    value: float
    id: OfferId

    def token(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @classmethod
    def read(cls, token: str) -> OfferCursor:
        try:
            packed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
            return msgspec.json.decode(packed, type=cls)
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            raise errors.Invalid(
                "this does not continue any list; begin again without it", field="Continue"
            ) from None


def cursor_for(offer: OfferSnapshot, selector: OfferSelector) -> OfferCursor:
    """The position of `offer` in the requested order."""
    group, shown = "", offer.shown
    match selector.sort:
        case OfferSort.PRICE:
            group, value = offer.flavor.price.currency, cost(offer, selector.part)
        case OfferSort.CPU:
            value = float(shown.cpu)
        case OfferSort.MEMORY:
            value = float(shown.memory)
        case _:
            value = float(shown.disk)
    return OfferCursor(group, -value if selector.is_descending else value, offer.flavor.id)

"""Which offers a buyer means, and in which order: filters on values, without I/O and without a clock.

`matches` is the meaning; a `Catalogue` finds the same offers among very many. Small catalogues are looked at
one by one, large ones by columns of numbers (`skerry.market.index`, and with it numpy, is imported only
then). What is on offer is what is free of a flavor now; whether a part of it may be taken is decided by the
flavor's own policy. Nothing here holds or sells.
"""

from __future__ import annotations

import base64
import binascii
import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from skerry.kit import heap
from skerry.market import pricing
from skerry.model import errors
from skerry.model.ids import FlavorId
from skerry.model.market import Flavor, Price
from skerry.model.room import NOTHING, Room

if TYPE_CHECKING:
    from skerry.market.index import Index

# From here on columns are quicker than looking at each.
MANY: Final = 512
PAGE: Final = 100  # offers in one answer, if nobody says how many
MAX_PAGE: Final = 1000


class Offer(msgspec.Struct, frozen=True, gc=False):
    """A flavor with what is free of it now."""

    flavor: Flavor
    free: Room

    @property
    def shown(self) -> Room:
        """What can be had of it in one piece: all that is free if it is sold in parts, else one whole."""
        return self.flavor.room if self.flavor.partition is None else self.free

    @property
    def count(self) -> int:
        """How many such pieces there are."""
        free, each = self.free, self.flavor.room
        if self.flavor.partition is not None:
            return int(free != NOTHING)
        pairs = ((free.cpu, each.cpu), (free.memory, each.memory), (free.disk, each.disk))
        return min([there // amount for there, amount in pairs if amount], default=0)

    @property
    def is_available(self) -> bool:
        """True if something of it may be taken."""
        flavor, free = self.flavor, self.free
        piece = flavor.room if flavor.partition is None else flavor.partition.least
        together = 1 if flavor.aggregation is None else flavor.aggregation.least
        return (
            piece.cpu * together <= free.cpu
            and piece.memory * together <= free.memory
            and piece.disk * together <= free.disk
            and free != NOTHING
        )


class Sort(enum.StrEnum):
    """By what offers are put in order; equals are in the order of ids."""

    PRICE = "price"
    CPU = "cpu"
    MEMORY = "memory"
    DISK = "disk"


class Selector(msgspec.Struct, frozen=True):
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
    most_price: Price | None = None  # of all that is on offer, or of the part if one is asked for
    part: Room | None = None  # offers of which this may be taken
    count: int | None = None  # offers of which so many may be taken together
    sort: Sort = Sort.PRICE
    is_descending: bool = False


EVERYTHING: Final = Selector()


class Page(msgspec.Struct, frozen=True):
    """Some of what was found, in order; `following` asks for the rest."""

    offers: Sequence[Offer]
    following: str = ""


def matches(offer: Offer, selector: Selector) -> bool:
    """True if `offer` can be had and is what the selector says."""
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


def may_be_taken(offer: Offer, selector: Selector) -> bool:
    """Whether the part that the selector asks for, or all that is shown, may be taken by the policy."""
    part = offer.shown if selector.part is None else selector.part
    try:
        offer.flavor.check_part(part, offer.free, 1 if selector.count is None else selector.count)
    except (errors.Invalid, errors.NoRoom, errors.Unprocessable):
        return False
    return True


def _is_affordable(offer: Offer, selector: Selector, most: Price) -> bool:
    each = cost(offer, selector.part)
    return offer.flavor.price.currency == most.currency and each * (selector.count or 1) <= limit_of(most)


def limit_of(most: Price) -> float:
    """The highest `cost` that is within a price. Costs are compared to twelve digits; bills are exact."""
    return rate(most) * (1 + 1e-12)


def cost(offer: Offer, part: Room | None) -> float:
    """What one such part costs a second, or all that is on offer: for putting in order only."""
    wanted = offer.shown if part is None else part
    cpu, memory, disk = unit_costs(offer.flavor)
    return wanted.cpu * cpu + wanted.memory * memory + wanted.disk * disk


def unit_costs(flavor: Flavor) -> tuple[float, float, float]:
    """What one milli-core, one MB and one GB of it cost a second; each resource is one share."""
    amounts = (flavor.room.cpu, flavor.room.memory, flavor.room.disk)
    kinds = sum(1 for amount in amounts if amount)
    whole = rate(flavor.price)
    cpu, memory, disk = (whole / (kinds * amount) if amount else 0.0 for amount in amounts)
    return cpu, memory, disk


def rate(price: Price) -> float:
    """Its amount a second."""
    return float(price.amount) / pricing.seconds_of(price.period)


class Place(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Where an offer stands in an order; the token of a page is the place of its last offer."""

    group: str  # prices of different currencies are not compared
    value: float
    id: FlavorId

    def token(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @classmethod
    def read(cls, token: str) -> Place:
        try:
            packed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
            return msgspec.json.decode(packed, type=cls)
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            raise errors.Invalid(
                "this does not continue any list; begin again without it", field="Continue"
            ) from None


def place(offer: Offer, selector: Selector) -> Place:
    """The place of `offer` in the order that is asked for."""
    group, shown = "", offer.shown
    match selector.sort:
        case Sort.PRICE:
            group, value = offer.flavor.price.currency, cost(offer, selector.part)
        case Sort.CPU:
            value = float(shown.cpu)
        case Sort.MEMORY:
            value = float(shown.memory)
        case _:
            value = float(shown.disk)
    return Place(group, -value if selector.is_descending else value, offer.flavor.id)


class Catalogue:
    """All offers of a market, kept so that they are found quickly; who changes one says so with `put`."""

    def __init__(self, offers: Iterable[Offer] = (), *, many: int = MANY) -> None:
        self._offers = {offer.flavor.id: offer for offer in offers}
        self._many = many
        self._index: Index | None = None
        if len(self._offers) >= max(1, many):
            self._indexed()  # takes a while, so not in the middle of the first search

    def __len__(self) -> int:
        return len(self._offers)

    def __iter__(self) -> Iterator[Offer]:
        return iter(self._offers.values())

    def get(self, id: str) -> Offer | None:
        return self._offers.get(FlavorId(id))

    def put(self, offer: Offer) -> None:
        self._offers[offer.flavor.id] = offer
        if self._index is not None:
            self._index.put(offer)

    def drop(self, id: FlavorId) -> None:
        """Forget an offer; one that is not known is none to forget."""
        if self._offers.pop(id, None) is not None and self._index is not None:
            self._index.drop(id)

    def find(self, selector: Selector, *, limit: int = PAGE, after: str = "") -> Page:
        """The first `limit` of what the selector means, behind the place that `after` is the token of."""
        begin = Place.read(after) if after else None
        if len(self._offers) >= self._many or self._index is not None:
            found = self._indexed().find(selector, limit + 1, begin)
        else:
            found = self._one_by_one(selector, limit + 1, begin)
        if len(found) <= limit:
            return Page(found)
        return Page(found[:limit], place(found[limit - 1], selector).token() if limit else "")

    def _one_by_one(self, selector: Selector, limit: int, begin: Place | None) -> list[Offer]:
        placed = [
            (place(offer, selector), offer) for offer in self._offers.values() if matches(offer, selector)
        ]
        placed.sort(key=lambda pair: pair[0])
        return [offer for where, offer in placed if begin is None or where > begin][:limit]

    def _indexed(self) -> Index:
        if self._index is None:
            from skerry.market.index import Index  # numpy takes its time and its memory

            heap.keep_freed()  # every search works on columns, and throws them away
            self._index = Index(self._offers.values())
        return self._index

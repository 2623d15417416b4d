"""Which offer is the best for a wish: pure, on what peers said that they have.

A wish is for at least so much: of an offer that is sold in parts, the smallest part that may be taken and is
no less; of one that is sold whole, a whole one; always some cpu and some memory. Prices of different
currencies are not compared. An offer's period does not matter: what counts is what a second costs, exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from msgspec.structs import replace

from skerry.market import pricing
from skerry.market.selecting import Offer
from skerry.market.trading import Found, Wish
from skerry.model import errors
from skerry.model.market import Partition, Price
from skerry.model.room import NOTHING, Gigabytes, Megabytes, Millicores, Room

_CORE: Final = 1000  # the market trades whole ones
_HOUR_S: Final = 3600


def meet(peer: str, offer: Offer, wish: Wish) -> Found | None:
    """What of the offer would be taken; None if it is not what is wished for."""
    flavor = offer.flavor
    if wish.where not in ("", flavor.location) or wish.architecture not in ("", flavor.architecture):
        return None
    if wish.currency not in ("", flavor.price.currency) or wish.peer not in ("", peer):
        return None
    part = offer.shown if wish.room == NOTHING else _part(offer, wish)
    if part is None:
        return None
    price = pricing.prorate(flavor, part, wish.count)
    if wish.max_price is not None and rate(price) * _HOUR_S > Fraction(wish.max_price):
        return None
    return Found(peer, flavor, offer.free, part, wish.count, price)


def rank(found: Sequence[Found], currency: str = "") -> list[Found]:
    """Best first: the cheapest, then by peer and flavor. Behind those of `currency`, or of the one that most
    are in, come all others."""
    currency = currency or common_currency(found)

    def place(one: Found) -> tuple[bool, str, Fraction, str, str]:
        return (
            one.price.currency != currency,
            one.price.currency,
            rate(one.price),
            one.peer,
            one.flavor.id,
        )

    return sorted(found, key=place)


def common_currency(found: Sequence[Found]) -> str:
    """That of most offers, of equals the first of the alphabet; empty if there are none."""
    counts = Counter(one.price.currency for one in found)
    return min(counts, key=lambda currency: (-counts[currency], currency), default="")


def rate(price: Price) -> Fraction:
    """Its amount a second."""
    return Fraction(price.amount) / pricing.seconds_of(price.period)


def _part(offer: Offer, wish: Wish) -> Room | None:
    """What would be taken of the offer, `wish.count` times; None if nothing that is enough may be."""
    flavor, free = offer.flavor, offer.free
    # What is bought becomes a node, and nothing runs on one without any cpu or any memory.
    least = replace(wish.room, cpu=wish.room.cpu or _CORE, memory=wish.room.memory or 1)
    choices = [flavor.room]
    if flavor.partition is not None:
        # All that is free, if what is left behind a smaller part would be too little for anybody else.
        choices = [_stepped(least, flavor.partition, free), free]
    for part in choices:
        if part.fits(least) and not part.cpu % _CORE:
            try:
                flavor.check_part(part, free, wish.count)
            except (errors.Invalid, errors.NoRoom, errors.Unprocessable):
                continue
            return part
    return None


def _stepped(room: Room, parts: Partition, free: Room) -> Room:
    """The smallest part by the steps that is no less than `room`; at most what is free."""
    least, step = parts.least, parts.step
    return Room(
        Millicores(min(free.cpu, _step_up(room.cpu, least.cpu, step.cpu or _CORE))),
        Megabytes(min(free.memory, _step_up(room.memory, least.memory, step.memory or 1))),
        Gigabytes(min(free.disk, _step_up(room.disk, least.disk, step.disk or 1))),
    )


def _step_up(amount: int, least: int, step: int) -> int:
    return least + max(0, -(-(amount - least) // step)) * step

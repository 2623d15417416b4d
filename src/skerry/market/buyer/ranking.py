"""Which offer is the best for a request: pure, on the offers that peers sent.

A request is for at least so much: of an offer that is sold in parts, the smallest part that may be taken and
is no less; of one that is sold whole, a whole one; always some cpu and some memory. Prices of different
currencies are not compared. An offer's period does not matter: what counts is what a second costs, exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from msgspec.structs import replace

from skerry.market.buyer.quotes import CapacityRequest, OfferQuote
from skerry.market.terms import pricing
from skerry.market.terms.selectors import OfferSnapshot
from skerry.model import errors
from skerry.model.market import Partition, Price
from skerry.model.resources import NO_RESOURCES, Gigabytes, Megabytes, Millicores, Resources

_CORE: Final = 1000  # the market trades whole ones
_HOUR_S: Final = 3600


def quote_for(peer: str, offer: OfferSnapshot, request: CapacityRequest) -> OfferQuote | None:
    """What of the offer would be taken; None if it does not meet the request."""
    flavor = offer.flavor
    if request.where not in ("", flavor.location) or request.architecture not in ("", flavor.architecture):
        return None
    if request.currency not in ("", flavor.price.currency) or request.peer not in ("", peer):
        return None
    part = offer.shown if request.resources == NO_RESOURCES else _part(offer, request)
    if part is None or flavor.gpus_in(part * request.count) < request.gpus:
        return None
    price = pricing.prorate(flavor, part, request.count)
    if request.max_price is not None and price_per_second(price) * _HOUR_S > Fraction(request.max_price):
        return None
    return OfferQuote(peer, flavor, offer.free, part, request.count, price)


def rank(found: Sequence[OfferQuote], currency: str = "") -> list[OfferQuote]:
    """Best first: the cheapest, then by peer and flavor. Behind those of `currency`, or of the one that most
    are in, come all others."""
    currency = currency or common_currency(found)

    def place(one: OfferQuote) -> tuple[bool, str, Fraction, str, str]:
        return (
            one.price.currency != currency,
            one.price.currency,
            price_per_second(one.price),
            one.peer,
            one.flavor.id,
        )

    return sorted(found, key=place)


def common_currency(found: Sequence[OfferQuote]) -> str:
    """That of most offers, of equals the first of the alphabet; empty if there are none."""
    counts = Counter(one.price.currency for one in found)
    return min(counts, key=lambda currency: (-counts[currency], currency), default="")


def price_per_second(price: Price) -> Fraction:
    """Its amount a second."""
    return Fraction(price.amount) / pricing.seconds_of(price.period)


def _part(offer: OfferSnapshot, request: CapacityRequest) -> Resources | None:
    """What would be taken of the offer, `request.count` times; None if nothing that is enough may be."""
    flavor, free = offer.flavor, offer.free
    # What is bought becomes a node, and nothing runs on one without any cpu or any memory.
    least = replace(
        request.resources, cpu=request.resources.cpu or _CORE, memory=request.resources.memory or 1
    )
    choices = [flavor.resources]
    if flavor.partition is not None:
        # All that is free, if the rest of a smaller part would be too little for another buyer.
        choices = [_stepped(least, flavor.partition, free), flavor.partition.largest(free)]
    for part in choices:
        if part.fits(least) and not part.cpu % _CORE:
            try:
                flavor.check_part(part, free, request.count)
            except (errors.Invalid, errors.ResourcesExhausted, errors.Unprocessable):
                continue
            return part
    return None


def _stepped(resources: Resources, parts: Partition, free: Resources) -> Resources:
    """The smallest part by the steps that is no less than `resources`; at most what is free."""
    least, step = parts.least, parts.step
    return Resources(
        Millicores(min(free.cpu, _step_up(resources.cpu, least.cpu, step.cpu or _CORE))),
        Megabytes(min(free.memory, _step_up(resources.memory, least.memory, step.memory or 1))),
        Gigabytes(min(free.disk, _step_up(resources.disk, least.disk, step.disk or 1))),
    )


def _step_up(amount: int, least: int, step: int) -> int:
    return least + max(0, -(-(amount - least) // step)) * step

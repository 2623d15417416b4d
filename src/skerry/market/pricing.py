"""What a part costs, and for how long: exact fractions, rounded once, downwards.

A part costs the mean of its shares in each resource of the whole. That is linear, so the parts of a whole
cost the whole together, and rounding down keeps them from ever costing more. Pure.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Final

from skerry.model import errors
from skerry.model.market import Flavor, Price
from skerry.model.room import Room

# Amounts are kept to this many digits behind the point, or to those of the price itself if it has more.
DIGITS: Final = 9

_PERIOD = re.compile(r"P(?:(\d+)W)?(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
# A year is the mean of the Gregorian calendar and a month a twelfth of it: a period always has one length.
_SECONDS: Final = (7 * 86400, 31_556_952, 2_629_746, 86400, 3600, 60, 1)


def seconds_of(period: str) -> int:
    """The length of an ISO 8601 duration, as `Price` takes it."""
    match = _PERIOD.fullmatch(period)
    if match is None:
        raise errors.Invalid(f"{period[:40]!r} is no ISO 8601 duration", field="period")
    return sum(int(number or 0) * each for number, each in zip(match.groups(), _SECONDS, strict=True))


def share(whole: Room, part: Room) -> Fraction:
    """Which part of `whole` this is: the mean over all resources that the whole has."""
    pairs = zip(whole.parts(), part.parts(), strict=True)
    shares = [Fraction(taken, there) for (_, _, there), (_, _, taken) in pairs if there]
    return sum(shares, Fraction(0)) / len(shares) if shares else Fraction(0)


def prorate(flavor: Flavor, part: Room, count: int = 1) -> Price:
    """The price of `count` times `part` of a flavor, for each period."""
    price = flavor.price
    if part == flavor.room and count == 1:
        return price
    amount = Fraction(price.amount) * share(flavor.room, part) * count
    return Price(_round_down(amount, _digits(price)), price.currency, price.period)


def total_for(price: Price, duration_s: float) -> Decimal:
    """What `duration_s` at this price cost; parts of a period are paid in part."""
    amount = Fraction(price.amount) * Fraction(duration_s) / seconds_of(price.period)
    return _round_down(amount, _digits(price))


def _digits(price: Price) -> int:
    exponent = price.amount.as_tuple().exponent
    assert isinstance(exponent, int)  # the model lets no other amount in
    return max(DIGITS, -exponent)


def _round_down(amount: Fraction, digits: int) -> Decimal:
    """Without the zeros that say nothing, and never as `1E+3`."""
    scaled = amount.numerator * 10**digits // amount.denominator
    while digits and scaled % 10 == 0:
        scaled //= 10
        digits -= 1
    sign, figures, _ = Decimal(scaled).as_tuple()
    return Decimal((sign, figures, -digits))

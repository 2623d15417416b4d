"""What a part costs, and for how long: exact fractions, rounded once, downwards.

A part costs the mean of its shares in each resource of the whole. That is linear, so the parts of a whole
cost the whole together, and rounding down keeps them from ever costing more. Pure.
"""

from __future__ import annotations

from decimal import Context, Decimal
from functools import lru_cache
from typing import Final

from skerry.model import errors
from skerry.model.market import PERIOD, Offer, Price
from skerry.model.resources import Resources

# Amounts are kept to this many digits behind the point, or to those of the price itself if it has more.
DIGITS: Final = 9
# Arithmetic that rounds nothing: the longest total there can be has less than fifty digits.
EXACT: Final = Context(prec=100)

# A year is the mean of the Gregorian calendar and a month a twelfth of it: a period always has one length.
_YEAR: Final = 31_556_952
_SECONDS: Final = (7 * 86400, _YEAR, _YEAR // 12, 86400, 3600, 60, 1)
_COMMON_YEAR: Final = 365 * 86400


@lru_cache(maxsize=256)
def seconds_of(period: str) -> int:
    """The length of an ISO 8601 duration, as `Price` takes it; `PT0S` is none."""
    match = PERIOD.fullmatch(period)
    if match is None:
        raise errors.Invalid(f"{period[:40]!r} is no ISO 8601 duration", field="period")
    return sum(int(number or 0) * each for number, each in zip(match.groups(), _SECONDS, strict=True))


def in_years(limit_s: float) -> float:
    """A longest time in which years count as whole ones: where 365 days are allowed, so is `P1Y`."""
    return limit_s + limit_s // _COMMON_YEAR * (_YEAR - _COMMON_YEAR)


def prorate(flavor: Offer, part: Resources, count: int = 1) -> Price:
    """The price of `count` times `part` of a flavor, for each period."""
    price = flavor.price
    if part == flavor.resources and count == 1:
        return price
    taken, whole = share(flavor.resources, part)
    amount, one = price.amount.as_integer_ratio()
    digits = _digits(price)
    return Price(_decimal(amount * taken * count, one * whole, digits), price.currency, price.period)


def total_for(price: Price, duration_s: float) -> Decimal:
    """What `duration_s` at this price cost; parts of a period are paid in part."""
    amount, one = price.amount.as_integer_ratio()
    seconds, parts = duration_s.as_integer_ratio()
    return _decimal(amount * seconds, one * parts * seconds_of(price.period), _digits(price))


def share(whole: Resources, part: Resources) -> tuple[int, int]:
    """Which part of `whole` this is, as a fraction: the mean over all resources that the whole has."""
    taken, of, number = 0, 1, 0
    for there, amount in ((whole.cpu, part.cpu), (whole.memory, part.memory), (whole.disk, part.disk)):
        if there:
            taken, of, number = taken * there + amount * of, of * there, number + 1
    return taken, of * max(number, 1)


def _digits(price: Price) -> int:
    exponent = price.amount.as_tuple().exponent
    assert isinstance(exponent, int)  # the model lets no other amount in
    return max(DIGITS, -exponent)


def _decimal(numerator: int, denominator: int, digits: int) -> Decimal:
    """Rounded down, without trailing zeros, and never as `1E+3`."""
    scaled = numerator * 10**digits // denominator
    while digits and scaled % 10 == 0:
        scaled //= 10
        digits -= 1
    return Decimal(scaled).scaleb(-digits, EXACT)

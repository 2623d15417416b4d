"""Amounts as Kubernetes writes them (`500m`, `8Gi`, `110`), to and from the whole numbers of `Resources`.

Pure. An amount that is not a whole number of our units is refused, not rounded: what is bought is exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from math import ceil, floor
from typing import Annotated, Final

from msgspec import Meta

from skerry.model import errors
from skerry.model.resources import MAX_AMOUNT, Gigabytes, Megabytes, Millicores, Resources

Quantity = Annotated[str, Meta(max_length=40, description="As in Kubernetes: `2`, `500m`, `8Gi`")]

MILLICORE: Final = Fraction(1, 1000)
MEGABYTE: Final = Fraction(2**20)
GIGABYTE: Final = Fraction(2**30)
ONE: Final = Fraction(1)

_QUANTITY = re.compile(
    r"\+?([0-9]{1,20})(?:\.([0-9]{0,20}))?(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?"
)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def read(text: str, unit: Fraction, field: str) -> int:
    """How many of `unit` this is; `Invalid` if it is no quantity, or no whole number of them."""
    units = _amount(text, field) / unit
    if units.denominator != 1:
        raise errors.Invalid(f"{field}: {text[:40]!r} is finer than what is sold here", field=field)
    if units > MAX_AMOUNT:
        raise errors.Invalid(f"{field}: {text[:40]!r} is more than there can be", field=field)
    return int(units)


def read_resources(cpu: str, memory: str, disk: str, disk_field: str) -> Resources:
    """An amount of each; `disk_field` is what the disk is called."""
    return Resources(
        Millicores(read(cpu, MILLICORE, "cpu")),
        Megabytes(read(memory, MEGABYTE, "memory")),
        Gigabytes(read(disk, GIGABYTE, disk_field)),
    )


def at_least(text: str, unit: Fraction, field: str) -> int:
    """The fewest whole units that are no less than this; `Invalid` if it is no quantity."""
    return ceil(_amount(text, field) / unit)


def at_most(text: str, unit: Fraction, field: str) -> int:
    """The most whole units that are no more than this; `Invalid` if it is no quantity."""
    return floor(_amount(text, field) / unit)


def within(exact: str, least: str, most: str, unit: Fraction, field: str) -> tuple[int, int] | None:
    """From how many to how many of `unit` these three allow, each empty or a quantity; None if no whole
    number is within. Amounts compare as they are, in any unit."""
    low = max([at_least(text, unit, field) for text in (exact, least) if text], default=0)
    high = min([MAX_AMOUNT, *(at_most(text, unit, field) for text in (exact, most) if text)])
    return (low, high) if low <= high else None


def is_some(text: str, field: str) -> bool:
    """True if it is more than nothing; `Invalid` if it is no quantity."""
    return _amount(text, field) > 0


def _amount(text: str, field: str) -> Fraction:
    parts = _QUANTITY.fullmatch(text)
    if parts is None:
        raise errors.Invalid(
            f"{field}: {text[:40]!r} is no amount; write it as `2`, `500m` or `8Gi`", field=field
        )
    whole, behind, suffix, exponent = parts.groups()
    digits = behind or ""
    amount = Fraction(int(whole + digits), 10 ** len(digits))
    if suffix in _BINARY:
        amount *= 2 ** _BINARY[suffix]
    elif suffix or exponent:
        amount *= Fraction(10) ** (_DECIMAL[suffix] if suffix else int(exponent))
    return amount


def cores(millicores: int) -> str:
    """As Kubernetes writes it: `500m`, `2`, `1k`."""
    if millicores % 1000:
        return f"{millicores}m"
    return plain(millicores // 1000)


def plain(count: int) -> str:
    """A count, with the largest suffix that leaves it whole: `110`, `2k`."""
    return _shortest(count, [(10**power, suffix) for suffix, power in _DECIMAL.items() if power > 0])


def megabytes(amount: int) -> str:
    return _bytes(amount << 20)


def gigabytes(amount: int) -> str:
    return _bytes(amount << 30)


def _bytes(amount: int) -> str:
    return _shortest(amount, [(2**power, suffix) for suffix, power in _BINARY.items()])


def _shortest(amount: int, units: Iterable[tuple[int, str]]) -> str:
    written = str(amount)
    for unit, suffix in units:
        if amount and amount % unit == 0:
            written = f"{amount // unit}{suffix}"
    return written

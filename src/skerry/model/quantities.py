"""Amounts of resources as people write them: `0.5` cores, `256m` or `1g` of memory.

Plain whole numbers are in the units of `skerry.model.resources`: thousandths of a core, MB and GB. With a
point or a unit they are what the unit says; units are powers of 1024, in any case, with or without `i` and
`b`. For the command line and its files: the API takes whole numbers alone.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from skerry.model import errors
from skerry.model.resources import MAX_AMOUNT, Gigabytes, Megabytes, Millicores

_NUMBER: Final = r"([0-9]{1,12}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})"
_CPU: Final = re.compile(rf"{_NUMBER}(m?)")
_BYTES: Final = re.compile(rf"{_NUMBER}(?:([kmgt])i?)?b?", re.IGNORECASE)
_UNITS: Final = {"k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def parse_cpu(text: str) -> Millicores:
    """`500` and `500m` are thousandths of a core; `0.5` and `2.0` are cores."""
    form = _CPU.fullmatch(text.strip())
    if form is None:
        raise errors.Invalid(
            f"{text[:40]!r} is no amount of cpu; write 500 (thousandths of a core), 500m or 0.5", field="cpu"
        )
    number = Decimal(form[1])
    return Millicores(_whole(number * 1000 if "." in form[1] and not form[2] else number, text, "cpu"))


def parse_memory(text: str) -> Megabytes:
    """`256` and `256m` are MB, `1g` and `1Gi` are 1024 of them."""
    return Megabytes(_size(text, "m", "memory"))


def parse_disk(text: str) -> Gigabytes:
    """`10` and `10g` are GB, `1t` is 1024 of them."""
    return Gigabytes(_size(text, "g", "disk"))


def _size(text: str, unit: str, name: str) -> int:
    form = _BYTES.fullmatch(text.strip())
    if form is None:
        plain = "MB" if unit == "m" else "GB"
        raise errors.Invalid(
            f"{text[:40]!r} is no amount of {name}; write 256 ({plain}), 256m, 1g or 1Gi", field=name
        )
    size = Decimal(form[1]) * _UNITS[(form[2] or unit).lower()]
    return _whole(size / _UNITS[unit], text, name)


def _whole(amount: Decimal, text: str, name: str) -> int:
    """What is between two amounts is refused, rather than more or less than was meant."""
    if amount != amount.to_integral_value():
        unit = {"cpu": "thousandth of a core", "memory": "MB", "disk": "GB"}[name]
        raise errors.Invalid(f"{text[:40]!r}: {name} is counted in whole parts of a {unit}", field=name)
    if amount > MAX_AMOUNT:
        raise errors.Invalid(f"{text[:40]!r} is more {name} than there can be", field=name)
    return int(amount)

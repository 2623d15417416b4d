"""Ids that sort by the time they were made and cannot be guessed.

48 bits of milliseconds and 80 bits of chance, in Crockford's base 32, lower case: 26 characters that are
safe in paths, cgroup names and DNS labels. Time and chance come in as arguments.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]  # two digits at a time are half the work
_SHIFTS = range(120, -1, -10)


def new_id(now: float, entropy: Callable[[int], int] = secrets.randbits) -> str:
    """A fresh id for the wall time `now`."""
    return _write((int(now * 1000) & (1 << 48) - 1) << 80 | entropy(80))


def new_id_after(last: str, now: float, entropy: Callable[[int], int] = secrets.randbits) -> str:
    """A fresh id that sorts behind `last`, also if both are of the same millisecond."""
    fresh = new_id(now, entropy)
    return fresh if fresh > last else _write(_read(last) + 1)


def _write(value: int) -> str:
    return "".join([_PAIRS[value >> shift & 1023] for shift in _SHIFTS])


def _read(id: str) -> int:
    value = 0
    for digit in id:
        value = value << 5 | _ALPHABET.index(digit)
    return value

"""Ids that sort by the time they were made and cannot be guessed.

48 bits of milliseconds and 80 bits of chance, in Crockford's base 32, lower case: 26 characters that are
safe in paths, cgroup names and DNS labels. Time and chance come in as arguments.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 26


def new_id(now: float, entropy: Callable[[int], int] = secrets.randbits) -> str:
    """A fresh id for the wall time `now`."""
    value = (int(now * 1000) & (1 << 48) - 1) << 80 | entropy(80)
    digits = []
    for _ in range(_LENGTH):
        value, digit = divmod(value, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))

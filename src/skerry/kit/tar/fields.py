"""Numbers, times and records as tar headers write them. Pure; whatever does not parse is a `TarFieldError`.

Used by `skerry.kit.tar.reader`, which knows where in the archive a field was. Python's own parsers are too
kind for this: `int` takes signs, underscores and blanks.
"""

from __future__ import annotations

from typing import Final

from skerry.kit.tar.errors import spell

_BASE_256: Final = 0x80
_MOST: Final = 1 << 63
_NANOSECONDS: Final = 10**9
# Digits of the largest number that can mean anything; more are refused before they cost time.
_MOST_DIGITS: Final = 20


class TarFieldError(ValueError):
    """A field of a header does not hold what such fields hold."""


def text(field: bytes) -> bytes:
    """A field of fixed width, up to its first NUL."""
    return field.partition(b"\0")[0]


def number(field: bytes) -> int:
    """Octal digits between blanks, or, for what these cannot hold, big-endian bytes."""
    digits = field.strip(b" \0")
    if not digits.isdigit():
        if not digits:
            return 0
        if field[0] & _BASE_256:
            return _large_number(field)
        digits = text(digits)
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise TarFieldError(f"{spell(digits)} is no octal number")
    return int(digits, 8)


def _large_number(field: bytes) -> int:
    width = 8 * len(field) - 1
    value = int.from_bytes(field, "big") & ((1 << width) - 1)
    if field[0] & 0x40:
        value -= 1 << width
    if not -_MOST <= value < _MOST:
        raise TarFieldError("a number in a header is out of range")
    return value


def decimal(digits: bytes) -> int:
    """A whole number of a pax record."""
    if not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise TarFieldError(f"{spell(digits)} is no decimal number")
    return int(digits)


def nanoseconds(seconds: bytes) -> int:
    """A time of a pax record: decimal, perhaps with a sign and a fraction of any length."""
    is_negative = seconds.startswith(b"-")
    whole, _, fraction = seconds.removeprefix(b"-").partition(b".")
    if fraction and not fraction.isdigit():
        raise TarFieldError(f"{spell(seconds)} is no time")
    value = decimal(whole) * _NANOSECONDS + int(fraction[:9].ljust(9, b"0"))
    return -value if is_negative else value


def records(data: bytes) -> dict[bytes, bytes]:
    """The records of a pax header: each `LENGTH KEY=VALUE\\n`, the length counting all of it."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        blank = data.find(b" ", at, at + _MOST_DIGITS + 1)
        if blank < 0:
            raise TarFieldError("a pax record has no length")
        end = at + decimal(data[at:blank])
        if not blank + 1 < end <= len(data) or data[end - 1] != 0x0A:
            raise TarFieldError("the length of a pax record is wrong")
        key, equals, value = data[blank + 1 : end - 1].partition(b"=")
        if not key or not equals or b"\0" in key:
            raise TarFieldError("a pax record has no key")
        found[key] = value
        at = end
    return found

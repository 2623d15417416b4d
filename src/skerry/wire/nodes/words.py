"""Words on the wire that stand for one of a few: read by their spelling, refused if they are none of them."""

from __future__ import annotations

import enum
from typing import TypeVar

from skerry.model import errors

E = TypeVar("E", bound=enum.StrEnum)


def one_of(kind: type[E], text: str, field: str) -> E:
    try:
        return kind(text)
    except ValueError:
        choices = ", ".join(kind)
        raise errors.Invalid(f"{text[:40]!r} is no {field}; it can be {choices}", field=field) from None

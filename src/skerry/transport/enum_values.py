"""Enum values in messages: decoded by their spelling, `Invalid` if unknown."""

from __future__ import annotations

import enum
from typing import TypeVar

from skerry.model import errors
from skerry.model.images import ImageAccess

E = TypeVar("E", bound=enum.StrEnum)


def decode_enum(kind: type[E], text: str, field: str) -> E:
    try:
        return kind(text)
    except ValueError:
        choices = ", ".join(kind)
        raise errors.Invalid(f"{text[:40]!r} is no {field}; it can be {choices}", field=field) from None


def decode_image_access(text: str) -> ImageAccess:
    """A missing or unknown value grants nothing."""
    return ImageAccess.ALL if text == ImageAccess.ALL else ImageAccess.REGISTRIES

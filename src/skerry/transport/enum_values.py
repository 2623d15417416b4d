"""Words on the wire that stand for one of a few: read by their spelling, refused if they are none of them."""

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
    """What is not said, or in no word that is known here, grants nothing."""
    return ImageAccess.ALL if text == ImageAccess.ALL else ImageAccess.REGISTRIES

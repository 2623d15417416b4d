"""Copies the fields that two records have by the same names: structs, and messages of protobuf.

For translations between types and documents, so that these list only what differs.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def copy_fields(kind: type[T], source: object, /, **changed: Any) -> T:
    """A `kind` with all of its fields: those of `changed`, the others as `source` has them."""
    names = _names(kind)  # type: ignore[arg-type]  # a class can be hashed, whatever it makes
    return kind(**{name: getattr(source, name) for name in names if name not in changed}, **changed)


@cache
def _names(kind: Any) -> tuple[str, ...]:
    if hasattr(kind, "DESCRIPTOR"):
        return tuple(field.name for field in kind.DESCRIPTOR.fields)
    names: tuple[str, ...] = kind.__struct_fields__
    return names

"""Lists in pages: by age and then by id, from an offset or after a cursor, with how many there are in all.

An offset skips or repeats when things come and go between two pages; a cursor does not, because it names a
place and not a count. It is opaque to callers.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

import msgspec

from skerry.model import errors

T = TypeVar("T")
U = TypeVar("U")


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list; `cursor` continues behind it and is None on the last page."""

    total: int
    items: tuple[T, ...]
    cursor: str | None = None

    def map(self, function: Callable[[T], U]) -> ListPage[U]:
        return ListPage(self.total, tuple(map(function, self.items)), self.cursor)


def paginate(
    after: Callable[[str | None], Iterator[T]],
    position_of: Callable[[T], str],
    *,
    total: int,
    limit: int,
    offset: int,
    cursor: str | None,
) -> ListPage[T]:
    """One page of what `after` gives after a place; None is before the first."""
    if limit < 1 or offset < 0:
        raise errors.Invalid("a page holds at least 1, and an offset is at least 0", field="limit")
    if cursor is not None and offset:
        raise errors.Invalid("give a cursor or an offset, not both", field="cursor")
    found = list(islice(after(_read(cursor)), offset, offset + limit + 1))
    items = tuple(found[:limit])
    return ListPage(total, items, _write(position_of(items[-1])) if len(found) > limit else None)


def paginate_sorted(
    items: Iterable[T],
    position_of: Callable[[T], str],
    *,
    limit: int,
    offset: int = 0,
    cursor: str | None = None,
) -> ListPage[T]:
    """One page of `items`, in the order of their places."""
    ordered = sorted(items, key=position_of)

    def after(position: str | None) -> Iterator[T]:
        return iter(
            ordered if position is None else ordered[bisect_right(ordered, position, key=position_of) :]
        )

    return paginate(after, position_of, total=len(ordered), limit=limit, offset=offset, cursor=cursor)


def _write(position: str) -> str:
    return base64.urlsafe_b64encode(position.encode()).decode().rstrip("=")


def _read(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        position = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        position = ""
    if "/" not in position:
        raise errors.Invalid(
            "this cursor is not one of ours; send the one that came with the last page", field="cursor"
        )
    return position

"""Long lists in pages, in an order that does not change under the reader: a cursor names a place in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from skerry.control import paging
from skerry.control.paging import ListPage

T = TypeVar("T")

MAX_PAGE: Final = 1000
_LAST: Final = 10**14  # milliseconds; no moment of ours is later


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which part of the list."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE, description="Items in one answer")] = MAX_PAGE
    cursor: Annotated[str, Meta(max_length=1024, description="`cursor` of the answer before")] = ""


def paginate(items: Iterable[T], place_of: Callable[[T], str], query: PageQuery) -> ListPage[T]:
    """The page of `items` that is asked for, in the order of their places."""
    ordered = sorted(items, key=place_of)

    def behind(place: str | None) -> Iterator[T]:
        return iter(ordered if place is None else ordered[bisect_right(ordered, place, key=place_of) :])

    return paging.paginate(
        behind, place_of, total=len(ordered), limit=query.limit, offset=0, cursor=query.cursor or None
    )


def newest_first_key(*, is_over: bool, at: float, id: str) -> str:
    """The place of something that is alive for a while: what is not over, then what began last."""
    return f"{int(is_over)}/{_LAST - round(at * 1000):015d}/{id}"

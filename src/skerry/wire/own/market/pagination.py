"""Pages of long lists, in a stable order: a cursor names a position in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from skerry.control.paging import ListPage, paginate_sorted

T = TypeVar("T")

MAX_PAGE: Final = 1000
_LAST: Final = 10**14  # milliseconds; later than any time that is stored


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which part of the list."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE, description="Items in one answer")] = MAX_PAGE
    cursor: Annotated[str, Meta(max_length=1024, description="`cursor` of the answer before")] = ""


def paginate(items: Iterable[T], position_of: Callable[[T], str], query: PageQuery) -> ListPage[T]:
    """The requested page of `items`, in the order of their positions."""
    return paginate_sorted(items, position_of, limit=query.limit, cursor=query.cursor or None)


def newest_first_key(*, is_over: bool, at: float, id: str) -> str:
    """A position that sorts what has not ended first, then the newest."""
    return f"{int(is_over)}/{_LAST - round(at * 1000):015d}/{id}"

"""Pages of a sorted list: whole, in order, and continued behind a place that may be gone."""

from __future__ import annotations

import pytest

from skerry.control.paging import ListPage, paginate_sorted
from skerry.model import errors

PLACES = ["d/4", "a/1", "c/3", "b/2"]


def page(items: list[str], *, limit: int = 2, offset: int = 0, cursor: str | None = None) -> ListPage[str]:
    return paginate_sorted(items, lambda place: place, limit=limit, offset=offset, cursor=cursor)


def test_pages_follow_each_other_in_order_and_the_last_has_no_cursor() -> None:
    first = page(PLACES)
    second = page(PLACES, cursor=first.cursor)
    assert (first.total, first.items, second.items, second.cursor) == (
        4,
        ("a/1", "b/2"),
        ("c/3", "d/4"),
        None,
    )


def test_what_comes_and_goes_between_two_pages_neither_skips_nor_repeats() -> None:
    first = page(PLACES)
    assert page(["a/0", "a/1", "c/3", "d/4"], cursor=first.cursor).items == ("c/3", "d/4")


def test_an_offset_skips_that_many() -> None:
    assert page(PLACES, offset=3).items == ("d/4",)


def test_a_cursor_of_somebody_else_is_refused() -> None:
    with pytest.raises(errors.Invalid, match="not one of ours"):
        page(PLACES, cursor="Zm9v")

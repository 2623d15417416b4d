"""Lists are searched, sorted and cut on the server."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest

from skerry.console.components import Cell, EmptyState, Table
from skerry.console.tables import PAGE_SIZE, ListQuery, TableColumn, TableShape, build_table


class Thing(NamedTuple):
    name: str
    size: int


SHAPE = TableShape(
    "things",
    "Things",
    "/console/things",
    (TableColumn("Name", "name", lambda one: one.name), TableColumn("Size", "size", lambda one: one.size)),
    lambda one: one.name,
    lambda one: (Cell(one.name), Cell(str(one.size))),
    EmptyState("No things yet", "Make one.", "skerry thing"),
)
THINGS = [Thing(f"thing-{number:03}", -number) for number in range(120)]


def names(table: Table) -> list[str]:
    return [row.cells[0].text for row in table.rows]


def test_a_page_holds_fifty_however_many_there_are() -> None:
    table = build_table(SHAPE, THINGS, ListQuery())
    assert len(table.rows) == PAGE_SIZE
    assert (table.summary, table.previous, table.next) == ("1–50 of 120", "", "/console/things?page=2")


def test_the_last_page_has_the_rest_and_one_behind_it_is_the_last() -> None:
    for page in (3, 99):
        table = build_table(SHAPE, THINGS, ListQuery(page=page))
        assert names(table)[-1] == "thing-119"
        assert (table.previous, table.next) == ("/console/things?page=2", "")


def test_every_word_of_a_search_must_be_there() -> None:
    table = build_table(SHAPE, THINGS, ListQuery(q="THING 11"))
    assert names(table) == ["thing-011", *(f"thing-11{digit}" for digit in range(10))]
    assert table.summary == "11 found, 120 in all"


def test_a_search_without_a_result_says_so() -> None:
    empty = build_table(SHAPE, THINGS, ListQuery(q="<b>")).empty
    assert empty is not None
    assert "<b>" in empty.text


def test_an_empty_list_says_what_to_do_first() -> None:
    assert build_table(SHAPE, [], ListQuery()).empty == SHAPE.empty


@pytest.mark.parametrize(
    ("sort", "first"), [("size", "thing-119"), ("-size", "thing-000"), ("no", "thing-000")]
)
def test_a_column_sorts_both_ways_and_an_unknown_one_not_at_all(sort: str, first: str) -> None:
    table = build_table(SHAPE, THINGS, ListQuery(sort=sort))
    assert names(table)[0] == first


def test_the_heading_of_the_sorted_column_turns_the_order() -> None:
    column = build_table(SHAPE, THINGS, ListQuery(sort="size", q="thing")).columns[1]
    assert (column.sorted, column.href) == ("ascending", "/console/things?q=thing&sort=-size")


def test_a_page_is_at_least_the_first() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"page": "0"}, ListQuery, strict=False)

"""Reports of cells: the tree that their names make, and lines that cannot be read."""

from __future__ import annotations

import pytest

from skerry.model import cell_reports, errors
from skerry.model.cell_reports import CellReport
from skerry.model.ids import CellName


def report(name: str) -> CellReport:
    return CellReport(CellName(name))


def test_cells_are_below_the_cells_that_they_are_in() -> None:
    top, inside = cell_reports.tree(map(report, ("b", "a/c", "a", "a/c/d", "a-b")))
    assert [one.name for one in top] == ["a", "a-b", "b"]
    assert {name: [one.name for one in below] for name, below in inside.items()} == {
        "a": ["a/c"],
        "a/c": ["a/c/d"],
    }


def test_a_cell_whose_parent_was_just_freed_is_below_the_next_one() -> None:
    top, inside = cell_reports.tree([report("a"), report("a/gone/c"), report("lost/d")])
    assert [one.name for one in top] == ["a", "lost/d"]
    assert [one.name for one in inside[CellName("a")]] == ["a/gone/c"]


def test_what_is_no_report_is_the_fault_of_the_node() -> None:
    assert cell_reports.decode_lines(b'{"name":"a","new":1}\n{"name":"b"}\n') == [report("a"), report("b")]
    with pytest.raises(errors.Unavailable, match="cannot be read"):
        cell_reports.decode_lines(b"[]\n")

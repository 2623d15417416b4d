"""Cells: names are whole or nothing, limits are within what the kernel takes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import cells, errors
from skerry.model.cells import Cell, CellLimits, Executable
from skerry.model.ids import CellName, ExecutableName

GOOD = ["a", "ae-1", "A-b", "0", "a/b", "a/b/c", "x" * 63, "a--b", "9/8/7"]
BAD = [
    "",
    "/",
    "a/",
    "/a",
    "a//b",
    "-a",
    "a-",
    "a/-b",
    "a/b-",
    "-",
    "_",
    "ae-no_underscore",
    "parent/bad_child",
    "parent/../other",
    ".",
    "..",
    "a.b",
    "a b",
    "a\n",
    "a\0",
    "é",
    "٣",
    "x" * 64,
    "/".join(["abc"] * 100),
]


@pytest.mark.parametrize("name", GOOD)
def test_good_names_are_taken_as_they_are(name: str) -> None:
    assert cells.parse_name(name) == name
    assert Cell(CellName(name)).name == name


@pytest.mark.parametrize("name", BAD)
def test_bad_names_are_refused_whole(name: str) -> None:
    with pytest.raises(errors.Invalid, match="cell name"):
        cells.parse_name(name)
    with pytest.raises(errors.Invalid):
        Cell(CellName(name))


@given(st.text() | st.text(alphabet="ab-_/."))
def test_a_name_comes_back_unchanged_or_not_at_all(text: str) -> None:
    parts = text.split("/")
    is_good = len(text) <= 255 and all(
        re.fullmatch("[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?", part) for part in parts
    )
    try:
        assert cells.parse_name(text) == text
    except errors.Invalid:
        assert not is_good
    else:
        assert is_good


def test_cells_nest_by_name() -> None:
    assert cells.parent_of(CellName("a/b/c")) == "a/b"
    assert cells.parent_of(CellName("a")) is None
    assert cells.is_within(CellName("a/b"), CellName("a"))
    assert cells.is_within(CellName("a"), CellName("a"))
    assert not cells.is_within(CellName("ab"), CellName("a"))
    assert not cells.is_within(CellName("a"), CellName("a/b"))


@pytest.mark.parametrize("cpus", ["", "0", "1,2", "1-3", "1,2-5,6", "12-15"])
def test_lists_of_cpus_as_the_kernel_writes_them(cpus: str) -> None:
    assert CellLimits(cpus=cpus, mems=cpus).cpus == cpus


@pytest.mark.parametrize(
    "cpus", ["foo", "1:2", "1..3", "1,", ",1", "3-1", "-1", "1-", "0x1", "1\n", "1," * 600 + "1"]
)
@pytest.mark.parametrize("field", ["cpus", "mems"])
def test_other_lists_are_refused(field: str, cpus: str) -> None:
    with pytest.raises(errors.Invalid, match=field):
        CellLimits(**{field: cpus})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpu_weight", 0),
        ("cpu_weight", 10_001),
        ("cpu_shares", 1),
        ("cpu_shares", 262_145),
        ("cpu_quota", 0),
        ("cpu_quota", -1),
        ("memory", -1),
        ("pids", 0),
    ],
)
def test_limits_out_of_range_are_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(errors.Invalid, match=field):
        CellLimits(**{field: value})  # type: ignore[arg-type]


def test_limits_at_their_bounds_are_taken() -> None:
    assert CellLimits(cpu_weight=1).cpu_weight == 1
    assert CellLimits(cpu_weight=10_000, pids=1).pids == 1


def test_a_share_of_the_cpu_is_given_in_one_unit() -> None:
    assert CellLimits(cpu_shares=2).cpu_shares == 2
    with pytest.raises(errors.Invalid, match="not both"):
        CellLimits(cpu_weight=100, cpu_shares=1024)


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "a\n", "a\0b", "x" * 129])
def test_an_executable_needs_a_name_that_can_be_a_file(name: str) -> None:
    with pytest.raises(errors.Invalid, match="name"):
        Executable(ExecutableName(name), CellName("cell"), "sleep 1")


@pytest.mark.parametrize("command", ["", "  ", "a\0b", "x" * 70_000])
def test_an_executable_needs_a_command(command: str) -> None:
    with pytest.raises(errors.Invalid, match="command"):
        Executable(ExecutableName("exe"), CellName("cell"), command)


def test_an_executable_cannot_be_in_a_cell_of_no_good_name() -> None:
    assert Executable(ExecutableName("my exe_1"), CellName("a/b"), "sleep 1").cell == "a/b"
    with pytest.raises(errors.Invalid, match="cell name"):
        Executable(ExecutableName("exe"), CellName("parent/bad_child"), "sleep 1")

"""What the watcher decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model.cells import CellLimits
from skerry.node.watched import decisions

MEGABYTE = 1 << 20


@given(st.dictionaries(st.integers(1, 1000), st.integers(0, 1 << 40)), st.integers(0, 1 << 40))
def test_the_largest_is_killed_if_and_only_if_they_do_not_fit(used: dict[int, int], limit: int) -> None:
    chosen = decisions.victim(used, limit)
    assert (chosen is None) == (sum(used.values()) <= limit)
    if chosen is not None:
        assert used[chosen] == max(used.values())


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_a_cell_is_looked_at_several_times_a_second_and_never_without_a_pause(used: int, limit: int) -> None:
    assert 0.02 <= decisions.pause_s(used, limit) <= 0.25


def test_a_cell_in_which_nothing_runs_is_looked_at_less_often() -> None:
    assert decisions.idle_pause_s(0.5) == 0.25
    assert decisions.idle_pause_s(60) == 0.5


def test_a_cell_near_its_limit_is_looked_at_more_often() -> None:
    far, near = (decisions.pause_s(used * MEGABYTE, 128 * MEGABYTE) for used in (16, 120))
    assert near < far


@pytest.mark.parametrize(
    ("limits", "niceness"),
    [
        (CellLimits(), 0),
        (CellLimits(cpu_weight=100), 0),
        (CellLimits(cpu_weight=1000), 0),
        (CellLimits(cpu_weight=80), 1),
        (CellLimits(cpu_weight=50), 3),
        (CellLimits(cpu_shares=512), 3),
        (CellLimits(cpu_weight=1), 19),
    ],
)
def test_niceness_gives_about_the_share_of_the_weight_and_never_more_than_the_usual_one(
    limits: CellLimits, niceness: int
) -> None:
    assert decisions.niceness(limits) == niceness


def test_who_lowered_its_tag_is_where_its_parent_is() -> None:
    leaves = {900: "_init", 50: "_x1", 40: "_x2"}
    processes = [(10, 1, 50), (11, 10, 7), (12, 11, 3), (20, 1, 40), (21, 20, 0)]
    found = decisions.leaves_of(processes, leaves)
    assert found == {10: "_x1", 11: "_x1", 12: "_x1", 20: "_x2", 21: "_x2"}


def test_an_orphan_that_lowered_its_tag_is_where_it_can_have_been() -> None:
    leaves = {900: "_init", 50: "_x1", 40: "_x2"}
    assert decisions.leaves_of([(10, 1, 45)], leaves) == {10: "_x1"}
    assert decisions.leaves_of([(10, 1, 7)], leaves) == {}  # of one of two


def test_what_an_init_has_just_forked_is_in_no_executable_yet() -> None:
    assert decisions.leaves_of([(10, 1, 900)], {900: "_init", 50: "_x1"}) == {10: "_init"}

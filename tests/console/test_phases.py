"""Bars of calls have one scale, and every number in words."""

from __future__ import annotations

import pytest

from skerry.console.phases import phase_bars
from skerry.functions.invocation.call_history import FinishedCall


def call(queue: float = 0.0, start: float = 0.0, run: float = 0.0, network: float = 0.0) -> FinishedCall:
    return FinishedCall(0.0, queue, start, run, network, None, "")


def test_the_longest_call_fills_its_bar_and_others_are_shares_of_it() -> None:
    longest, half = phase_bars([call(0.1, 0.2, 0.6, 0.1), call(run=0.5)])
    assert sum(float(one.width.rstrip("%")) for one in longest.phases) == pytest.approx(100)
    assert [one.start for one in longest.phases] == ["0.00%", "10.00%", "30.00%", "90.00%"]
    assert half.phases[2].width == "50.00%"
    assert half.total == "500 ms"


def test_a_part_that_took_no_time_is_named_and_not_drawn() -> None:
    (bar,) = phase_bars([call(run=0.25)])
    assert [one.is_drawn for one in bar.phases] == [False, False, True, False]
    assert bar.label == "queue 0.0 ms, start 0.0 ms, run 250 ms, network 0.0 ms"


def test_a_call_that_took_no_time_at_all_has_a_bar() -> None:
    (bar,) = phase_bars([call()])
    assert not any(one.is_drawn for one in bar.phases)
    assert phase_bars([]) == ()

"""Rates and percentiles of counters that only grow."""

from __future__ import annotations

import pytest

from skerry.console.statistics import (
    SAMPLE_S,
    CallCounters,
    CallRates,
    CallStatistics,
    FunctionCounters,
    percentile,
)
from skerry.kit.clock import ManualClock

BOUNDS = (0.001, 0.01, 0.1)


def test_a_rate_is_the_difference_of_two_samples() -> None:
    clock = ManualClock()
    counters = CallCounters({"a": FunctionCounters(100, 0, 1)}, BOUNDS, (100, 0, 0, 0))
    statistics = CallStatistics(lambda: counters, clock)
    assert statistics.rates() == CallRates()
    statistics.sample()
    clock.advance(SAMPLE_S)
    counters = CallCounters(
        {"a": FunctionCounters(150, 10, 3), "b": FunctionCounters(50, 0, 0)}, BOUNDS, (100, 100, 0, 0)
    )
    statistics.sample()
    rates = statistics.rates()
    assert (rates.per_second, rates.failed_per_second, rates.cold) == (20, 2, 2)
    assert rates.course == (20,)
    assert rates.p50_s == pytest.approx(0.0055)
    assert statistics.rates("a").per_second == 10
    assert statistics.rates("unknown").per_second == 0


def test_the_rates_of_some_functions_leave_out_the_others() -> None:
    clock = ManualClock()
    counters = CallCounters({}, BOUNDS, (0, 0, 0, 0))
    statistics = CallStatistics(lambda: counters, clock)
    statistics.sample()
    clock.advance(SAMPLE_S)
    counters = CallCounters(
        {
            "a": FunctionCounters(50, 5, 1, (50, 0, 0, 0)),
            "b": FunctionCounters(100, 0, 0, (0, 100, 0, 0)),
            "other": FunctionCounters(1000, 9, 9, (0, 0, 1000, 0)),
        },
        BOUNDS,
        (50, 100, 1000, 0),
    )
    statistics.sample()
    rates = statistics.rates(among=["a", "b", "unknown"])
    assert (rates.per_second, rates.failed_per_second, rates.cold) == (30, 1, 1)
    assert rates.p99_s == pytest.approx(0.0099, rel=0.1)
    assert statistics.rates(among=[]) == CallRates(course=(0,))


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [((0, 0, 0, 0), None), ((10, 0, 0, 0), 0.0005), ((0, 10, 0, 0), 0.0055), ((0, 0, 0, 1), 0.1)],
)
def test_a_percentile_is_within_its_bucket(buckets: tuple[int, ...], expected: float | None) -> None:
    assert percentile(BOUNDS, buckets, 0.5) == (None if expected is None else pytest.approx(expected))

"""The history of usage: what charts show, and how much is kept."""

from __future__ import annotations

import pytest

from skerry.console import usage_history
from skerry.console.usage_history import STEP_S, STEPS, UsageHistory
from skerry.kit.clock import ManualClock
from skerry.model.ids import InstanceId
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources

A, B = InstanceId("a"), InstanceId("b")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class Source:
    """What nodes report, and how many calls were counted."""

    def __init__(self, clock: ManualClock) -> None:
        self.used: dict[InstanceId, Resources] = {}
        self.calls = 0
        self.clock = clock
        self.history = UsageHistory(lambda: self.used.items(), lambda: self.calls, clock)

    def use(self, **millicores: int) -> None:
        """A step in which these are used, with as many megabytes."""
        self.used = {
            InstanceId(id): Resources(Millicores(amount), Megabytes(amount), Gigabytes(0))
            for id, amount in millicores.items()
        }
        self.clock.advance(STEP_S)
        self.history.sample()


def values(source: Source, *ids: InstanceId) -> list[tuple[float | None, ...]]:
    return [chart.series[0][1] for chart in source.history.copies_charts(ids)]


def test_copies_are_added_also_if_one_began_later(clock: ManualClock) -> None:
    source = Source(clock)
    source.use(a=1000)
    source.use(a=1000, b=500)
    assert values(source, A, B) == [(1.0, 1.5, 1.5), (1000.0, 1500.0, 1500.0)]
    assert source.history.instance_charts(B)[0].series == (("CPU", (0.5, 0.5)),)
    assert source.history.instance_charts(B)[0].times == (round(clock.now()),) * 2


def test_a_chart_ends_with_what_is_reported_now_as_bars_do(clock: ManualClock) -> None:
    source = Source(clock)
    source.use(a=100)
    clock.advance(STEP_S / 2)
    source.used[A] = Resources(Millicores(0), Megabytes(250))
    _, memory = source.history.instance_charts(A)
    assert memory.series == (("Memory", (100.0, 250.0)),)
    assert memory.label == "Memory: 250 MB now, 250 at most"
    assert memory.times[-1] == round(clock.now())
    assert source.history.cloud_charts()[1].label == "Memory: 250 MB now, 250 at most"


def test_what_was_not_measured_yet_is_not_zero(clock: ManualClock) -> None:
    source = Source(clock)
    source.used = {A: Resources()}  # it runs, and its node has not measured it
    source.history.sample()
    assert source.history.instance_charts(A) == ()
    source.use(a=2)
    _, memory = source.history.instance_charts(A)
    assert memory.series == (("Memory", (None, 2.0, 2.0)),)
    assert memory.label == "Memory: 2 MB now, 2 at most"


def test_what_no_longer_runs_has_no_chart(clock: ManualClock) -> None:
    source = Source(clock)
    source.use(a=1000)
    source.use(b=1000)
    assert source.history.instance_charts(A) == ()
    assert values(source, A) == []


def test_an_hour_is_kept_and_a_chart_ends_with_the_newest(clock: ManualClock) -> None:
    source = Source(clock)
    for step in range(STEPS + 7):
        source.use(a=step)
    (chart, _) = source.history.instance_charts(A)
    assert len(chart.times) == len(chart.series[0][1]) <= 180
    assert chart.times[-1] == round(clock.now())
    assert chart.times[0] >= chart.times[-1] - STEPS * STEP_S
    assert chart.series[0][1][-1] == round((STEPS + 6) / 1000, 3)


def test_calls_are_a_rate(clock: ManualClock) -> None:
    source = Source(clock)
    source.use()
    source.calls = 50
    source.use()
    (*_, calls) = source.history.cloud_charts()
    assert calls.series == (("Calls", (None, 5.0)),)


def test_the_number_of_series_is_bounded(clock: ManualClock) -> None:
    source = Source(clock)
    source.use(**{f"i{number}": 1 for number in range(usage_history.MAX_SERIES + 1)})
    charted = [id for id in source.used if source.history.instance_charts(id)]
    assert len(charted) == usage_history.MAX_SERIES

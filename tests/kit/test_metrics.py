"""The text for scrapes: shared while it would cost too much to make it anew, and with a bound on series."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prometheus_client import Gauge, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from skerry.kit import metrics
from skerry.kit.metrics import MAX_SERIES, SERIES_LEFT_OUT, ExpositionCache, Registry, SampledCollector


class Machine:
    """A clock, and a processor on which every text takes `cost_s`."""

    def __init__(self, cost_s: float) -> None:
        self.now = 0.0
        self.used = 0.0
        self.cost_s = cost_s

    def processor_s(self) -> float:
        self.used += self.cost_s
        return self.used


async def test_scrapes_that_come_too_often_share_one_text() -> None:
    registry, machine = Registry(), Machine(0.006)
    number = Gauge("skerry_test_number", "A number", registry=registry)
    cache = ExpositionCache(registry, monotonic=lambda: machine.now, processor_s=machine.processor_s)
    number.set(1)
    first = await cache.render()
    number.set(2)
    machine.now = 3.9
    assert await cache.render() is first
    machine.now = 4.1  # 12 ms every 4 s are 0.3 %
    assert b"skerry_test_number 2.0" in (await cache.render()).content


async def test_no_text_is_older_than_some_seconds_however_much_it_costs() -> None:
    machine = Machine(10.0)
    cache = ExpositionCache(Registry(), monotonic=lambda: machine.now, processor_s=machine.processor_s)
    first = await cache.render()
    machine.now = 5.1
    assert await cache.render() is not first


async def test_both_formats_are_kept_apart() -> None:
    registry = Registry()
    Gauge("skerry_test_number", "A number", registry=registry).set(3)
    cache = ExpositionCache(registry)
    old, new = await cache.render(), await cache.render(is_open=True)
    assert old.media.startswith("text/plain")
    assert new.media.startswith("application/openmetrics-text")
    [family] = text_string_to_metric_families(new.content.decode())
    assert family.samples[0].value == 3
    assert metrics.accepts_open_metrics("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert not metrics.accepts_open_metrics("text/plain, */*")


def test_series_beyond_the_limit_are_left_out_and_counted() -> None:
    make = metrics.gauge_family("skerry_test_crowd", "Many", ["name"])
    family = metrics.add_series(make(), (([str(number)], 1.0) for number in range(MAX_SERIES + 5)))
    assert len(family.samples) == MAX_SERIES
    assert SERIES_LEFT_OUT.labels("skerry_test_crowd")._value.get() == 5
    metrics.add_series(make(), [])
    assert b'left_out{family="skerry_test_crowd"}' not in metrics.render()
    del metrics.DECLARED["skerry_test_crowd"]


def test_what_takes_a_scan_is_made_at_most_so_often() -> None:
    now, scans = [0.0], []

    class Scan(SampledCollector):
        def sample(self) -> Iterator[Metric]:
            scans.append(now[0])
            yield Metric("skerry_test", "", "gauge")

    collector = Scan(30.0, monotonic=lambda: now[0])
    for now[0] in (0.0, 10.0, 29.0, 31.0):
        assert len(list(collector.collect())) == 1
    assert scans == [0.0, 31.0]


async def test_other_tasks_run_while_a_long_text_is_made() -> None:
    registry, machine = Registry(), Machine(0.002)
    for number in range(6):
        Gauge(f"skerry_test_number_{number}", "A number", registry=registry).set(number)
    cache = ExpositionCache(registry, processor_s=machine.processor_s)
    turns: list[int] = []

    async def others() -> None:
        while True:
            turns.append(len(turns))
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    made = await cache.render(is_open=True)
    other.cancel()
    assert len(turns) >= 3
    found = list(text_string_to_metric_families(made.content.decode()))
    assert [family.samples[0].value for family in found] == list(range(6))
    assert made.content.count(b"# EOF") == 1


def test_a_registry_lists_what_is_registered() -> None:
    registry = Registry()
    gauge = Gauge("skerry_test_number", "A number", registry=registry)
    assert registry.collectors() == (gauge,)
    registry.unregister(gauge)
    assert registry.collectors() == ()

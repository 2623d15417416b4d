"""Metrics of calls for Prometheus.

Plain numbers in the path of a call, formatted for Prometheus only when they are read: its own counters take a
lock and a microsecond each. Counters are per function that was called; histograms are of the node, because
one per function would be too many series.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from skerry.functions.invocation.worker_pool import FunctionWorkers
from skerry.kit import metrics

_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class DurationHistogram:
    """How often which time was measured."""

    __slots__ = ("buckets", "total_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(_BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(_BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    def family(self, name: str, help_text: str) -> HistogramMetricFamily:
        cumulated, reached = [], 0
        for bound, count in zip([*map(str, _BOUNDS_S), "+Inf"], self.buckets, strict=True):
            reached += count
            cumulated.append((bound, float(reached)))
        return HistogramMetricFamily(name, help_text, buckets=cumulated, sum_value=self.total_s)


class InvocationMetrics(Collector):
    """All of it, as one collector of the process's registry."""

    def __init__(
        self, groups: Callable[[], Iterable[FunctionWorkers]], gauges: Callable[[], dict[str, float]]
    ) -> None:
        self.duration = DurationHistogram()
        self.queueing = DurationHistogram()
        self.init = DurationHistogram()
        self._groups = groups
        self._gauges = gauges
        metrics.REGISTRY.register(self)

    def describe(self) -> Iterable[Metric]:
        return ()  # several pools may live in one process, as in tests: their names do not exclude each other

    def collect(self) -> Iterator[Metric]:
        calls = CounterMetricFamily(
            "skerry_function_calls", "Calls that ended, by how", labels=["function", "outcome"]
        )
        cold = CounterMetricFamily(
            "skerry_function_cold_starts", "Calls that waited for their worker to start", labels=["function"]
        )
        busy = CounterMetricFamily(
            "skerry_function_run_seconds", "Time that calls spent in workers", labels=["function"]
        )
        for group in self._groups():
            calls.add_metric([group.name, "Success"], group.succeeded)
            for failure, count in group.failed.items():
                calls.add_metric([group.name, failure], count)
            cold.add_metric([group.name], group.cold)
            busy.add_metric([group.name], group.run_total_s)
        yield from (calls, cold, busy)
        yield self.duration.family("skerry_function_duration_seconds", "Time of calls in handlers")
        yield self.queueing.family(
            "skerry_function_queueing_seconds", "Time that calls waited which found no worker free"
        )
        yield self.init.family("skerry_function_init_seconds", "Time of starts that a call waited for")
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(f"skerry_function_{name}", _GAUGES[name], value=value)

    def close(self) -> None:
        metrics.REGISTRY.unregister(self)


_GAUGES = {
    "queue_length": "Calls that wait for a worker",
    "workers": "Workers, also starting and ending ones",
    "idle_workers": "Workers that wait for a call",
    "memory_used_megabytes": "Memory set aside for workers",
    "cpus_used": "Cores set aside for busy workers",
}

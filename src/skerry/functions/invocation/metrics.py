"""Metrics of calls for Prometheus.

Plain numbers in the path of a call, formatted for Prometheus only when they are read: its own counters take a
lock and a microsecond each. Counters are per function that was called; histograms are of the node, because
one per function would be too many series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import HistogramMetricFamily, Metric

from skerry.functions.invocation.durations import DURATION_BOUNDS_S, DurationHistogram
from skerry.functions.invocation.worker_pool import FunctionWorkers
from skerry.kit import metrics

CALLS = metrics.counter_family(
    "skerry_function_calls_total", "Calls that ended, by how", ["function", "outcome"]
)
COLD = metrics.counter_family(
    "skerry_function_cold_starts_total", "Calls that waited for their worker to start", ["function"]
)
BUSY = metrics.counter_family(
    "skerry_function_run_seconds_total", "Time that calls spent in workers", ["function"]
)
DURATION = metrics.histogram_family("skerry_function_duration_seconds", "Time of calls in handlers")
QUEUEING = metrics.histogram_family(
    "skerry_function_queueing_seconds", "Time that calls waited which found no worker free"
)
INIT = metrics.histogram_family("skerry_function_init_seconds", "Time of starts that a call waited for")
_GAUGES = {
    name: metrics.gauge_family(f"skerry_function_{name}", help_text)
    for name, help_text in {
        "queue_length": "Calls that wait for a worker",
        "workers": "Workers, also starting and ending ones",
        "idle_workers": "Workers that wait for a call",
        "memory_used_megabytes": "Memory set aside for workers",
        "cpus_used": "Cores set aside for busy workers",
    }.items()
}


class InvocationMetrics(metrics.UndescribedCollector):
    """All of it, as one collector of the process's registry."""

    def __init__(
        self, groups: Callable[[], Iterable[FunctionWorkers]], gauges: Callable[[], dict[str, float]]
    ) -> None:
        self.duration = DurationHistogram()
        self.queueing = DurationHistogram()
        self.init = DurationHistogram()
        self.groups = groups
        self._gauges = gauges
        metrics.REGISTRY.register(self)

    def collect(self) -> Iterator[Metric]:
        calls, cold, busy = CALLS(), COLD(), BUSY()
        for group in self.groups():
            calls.add_metric([group.name, "Success"], group.succeeded)
            for failure, count in group.failed.items():
                calls.add_metric([group.name, failure], count)
            cold.add_metric([group.name], group.cold)
            busy.add_metric([group.name], group.run_total_s)
        yield from (calls, cold, busy)
        for histogram, make in ((self.duration, DURATION), (self.queueing, QUEUEING), (self.init, INIT)):
            yield _filled(make(), histogram)
        for name, value in self._gauges().items():
            gauge = _GAUGES[name]()
            gauge.add_metric([], value)
            yield gauge

    def close(self) -> None:
        metrics.REGISTRY.unregister(self)


def _filled(family: HistogramMetricFamily, histogram: DurationHistogram) -> HistogramMetricFamily:
    cumulated, reached = [], 0
    for bound, count in zip([*map(str, DURATION_BOUNDS_S), "+Inf"], histogram.buckets, strict=True):
        reached += count
        cumulated.append((bound, float(reached)))
    family.add_metric([], cumulated, histogram.total_s)
    return family

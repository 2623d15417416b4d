"""The metrics of HTTP requests: by route and never by path, so that callers cannot make new series.

`dispatcher` counts every request, all on one loop. So these are plain numbers that become Prometheus's
families only when `/metrics` is read; its own counters take a lock each time, which would cost a short
request too much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client import Histogram, Metric
from prometheus_client.registry import Collector

from skerry.kit import metrics

REQUESTS = metrics.counter_family(
    "skerry_http_requests_total", "HTTP requests answered", ["route", "method", "status"]
)
SECONDS = metrics.histogram_family(
    "skerry_http_request_seconds", "From the end of the headers to the end of the answer", ["route", "method"]
)
IN_FLIGHT = metrics.gauge_family("skerry_http_requests_in_flight", "HTTP requests being answered now")
UNMATCHED = "unmatched"
_BOUNDS: tuple[float, ...] = Histogram.DEFAULT_BUCKETS  # the last one is infinity


class _Series:
    """Requests of one route, verb and status."""

    __slots__ = ("buckets", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.buckets = [0] * len(_BOUNDS)


class HttpMetrics(Collector):
    """What was answered so far, and how much is being answered now."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._series: dict[tuple[str, str, int], _Series] = {}

    def note(self, route: str | None, method: str, status: int, seconds: float) -> None:
        """One answered request; `route` is the template, None if nothing matched."""
        key = (route or UNMATCHED, method, status)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series()
        series.count += 1
        series.seconds += seconds
        series.buckets[bisect_left(_BOUNDS, seconds)] += 1

    def collect(self) -> Iterator[Metric]:
        requests = REQUESTS()
        by_route: dict[tuple[str, str], _Series] = {}
        for (route, method, status), series in self._series.items():
            requests.add_metric([route, method, str(status)], series.count)
            whole = by_route.setdefault((route, method), _Series())
            whole.seconds += series.seconds
            whole.buckets = [a + b for a, b in zip(whole.buckets, series.buckets, strict=True)]
        yield requests
        times = SECONDS()
        for labels, whole in by_route.items():
            times.add_metric(list(labels), _cumulated(whole.buckets), whole.seconds)
        yield times
        in_flight = IN_FLIGHT()
        in_flight.add_metric([], self.in_flight)
        yield in_flight


def _cumulated(buckets: list[int]) -> list[tuple[str, float]]:
    total = 0
    named: list[tuple[str, float]] = []
    for bound, count in zip(_BOUNDS, buckets, strict=True):
        total += count
        named.append(("+Inf" if bound == float("inf") else str(bound), total))
    return named


HTTP_METRICS = HttpMetrics()
metrics.REGISTRY.register(HTTP_METRICS)

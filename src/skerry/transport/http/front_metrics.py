"""The metrics of front processes: plain numbers of one loop, as in `metrics`, because a request counts."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.registry import Collector

from skerry.kit import metrics

RUNNING = metrics.gauge_family("skerry_fronts", "Front processes that run")
ASSIGNED = metrics.gauge_family("skerry_front_connections", "HTTP connections that fronts read and write")
REQUESTS = metrics.counter_family("skerry_front_requests_total", "Requests that came by a front")
RETURNS = metrics.counter_family(
    "skerry_front_returns_total", "Connections that a front returned, with a request that takes the server"
)
ENDS = metrics.counter_family("skerry_front_ends_total", "Fronts that ended by themselves")


class FrontMetrics(Collector):
    """Of all fronts of this process."""

    def __init__(self) -> None:
        self.running = 0
        self.assigned = 0
        self.requests = 0
        self.returns = 0
        self.ends = 0

    def collect(self) -> Iterator[Metric]:
        for gauge, value in ((RUNNING(), self.running), (ASSIGNED(), self.assigned)):
            gauge.add_metric([], value)
            yield gauge
        counts = ((REQUESTS(), self.requests), (RETURNS(), self.returns), (ENDS(), self.ends))
        for counter, value in counts:
            counter.add_metric([], value)
            yield counter


FRONT_METRICS = FrontMetrics()
metrics.REGISTRY.register(FRONT_METRICS)

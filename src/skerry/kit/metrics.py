"""The process's Prometheus registry and the metrics that belong to no package.

Names are `skerry_<what>_<unit>`. A package creates its metrics with `counter`, `gauge` or `histogram`, so
that all of them are in the one registry of `/metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

REGISTRY = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)

CONTENT_TYPE = CONTENT_TYPE_LATEST


def counter(name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
    return Counter(name, help_text, labels, registry=REGISTRY)


def gauge(name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
    return Gauge(name, help_text, labels, registry=REGISTRY)


def histogram(
    name: str, help_text: str, labels: Sequence[str] = (), buckets: Sequence[float] = ()
) -> Histogram:
    chosen = tuple(buckets) or Histogram.DEFAULT_BUCKETS
    return Histogram(name, help_text, labels, buckets=chosen, registry=REGISTRY)


def render() -> bytes:
    """Everything, in the text format that Prometheus scrapes."""
    return generate_latest(REGISTRY)


LOOP_DEATHS = counter(
    "skerry_loop_deaths_total", "Background loops that ended though they should not", ["loop"]
)

"""The process's Prometheus registry, the metrics that belong to no package, and the text for a scrape.

Names are `skerry_<what>_<unit>`. A package creates its metrics with `counter`, `gauge` or `histogram`, so
that all of them are in the one registry of `/metrics`. Numbers that are cheaper to read than to keep up to
date are declared by `gauge_family`, `counter_family` or `histogram_family`, and made by a `Collector`. Either
way they are in `DECLARED`, of which docs/metrics.md is made.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, choose_encoder
from prometheus_client.registry import Collector


class Registry(CollectorRegistry):
    """One whose collectors can be used one by one."""

    def __init__(self) -> None:
        super().__init__(auto_describe=True)
        self._listed: list[Collector] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        self._listed.append(collector)

    def unregister(self, collector: Collector) -> None:
        super().unregister(collector)
        self._listed.remove(collector)

    def collectors(self) -> tuple[Collector, ...]:
        return tuple(self._listed)


REGISTRY = Registry()
ProcessCollector(registry=REGISTRY)

CONTENT_TYPE = CONTENT_TYPE_LATEST
OPEN_METRICS: Final = "application/openmetrics-text"

F = TypeVar("F", GaugeMetricFamily, CounterMetricFamily)

# Series of one family with a label that users choose (nodes, services, namespaces), at most. The others are
# counted by `SERIES_LEFT_OUT`.
MAX_SERIES: Final = 1000

# Of the processor time of one core, what making the text may take. Scrapes that come more often than that
# allows share one text.
_SHARE: Final = 0.003
_OLDEST_S: Final = 5.0
_TURN_S: Final = 0.003  # of making a text, before other tasks run
_END: Final = b"# EOF\n"  # of a text in OpenMetrics
_ACCEPTS: Final = {True: f"{OPEN_METRICS};version=1.0.0", False: ""}  # one format each, whoever asks


class MetricFamily(NamedTuple):
    """The name, type and labels of a metric."""

    name: str  # of a counter: with `_total`
    kind: str  # counter, gauge or histogram
    help_text: str
    labels: tuple[str, ...] = ()


DECLARED: dict[str, MetricFamily] = {}


def _declare(name: str, kind: str, help_text: str, labels: Sequence[str]) -> MetricFamily:
    family = MetricFamily(name, kind, help_text, tuple(labels))
    present = DECLARED.setdefault(name, family)
    assert present == family, f"{name} is declared twice, and not alike"
    return family


def counter(name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
    _declare(name, "counter", help_text, labels)
    return Counter(name, help_text, labels, registry=REGISTRY)


def gauge(name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
    _declare(name, "gauge", help_text, labels)
    return Gauge(name, help_text, labels, registry=REGISTRY)


def histogram(
    name: str, help_text: str, labels: Sequence[str] = (), buckets: Sequence[float] = ()
) -> Histogram:
    _declare(name, "histogram", help_text, labels)
    chosen = tuple(buckets) or Histogram.DEFAULT_BUCKETS
    return Histogram(name, help_text, labels, buckets=chosen, registry=REGISTRY)


def gauge_family(name: str, help_text: str, labels: Sequence[str] = ()) -> Callable[[], GaugeMetricFamily]:
    """Declare a gauge that a collector makes; the result makes an empty one."""
    declared = _declare(name, "gauge", help_text, labels)
    return lambda: GaugeMetricFamily(declared.name, declared.help_text, labels=declared.labels)


def counter_family(
    name: str, help_text: str, labels: Sequence[str] = ()
) -> Callable[[], CounterMetricFamily]:
    """Likewise, a counter."""
    declared = _declare(name, "counter", help_text, labels)
    return lambda: CounterMetricFamily(declared.name, declared.help_text, labels=declared.labels)


def histogram_family(
    name: str, help_text: str, labels: Sequence[str] = ()
) -> Callable[[], HistogramMetricFamily]:
    """Likewise, a histogram."""
    declared = _declare(name, "histogram", help_text, labels)
    return lambda: HistogramMetricFamily(declared.name, declared.help_text, labels=declared.labels)


class UndescribedCollector(Collector):
    """A collector of which several may be in one process, as in tests: their names do not exclude each
    other."""

    def describe(self) -> Iterable[Metric]:
        return ()


class SampledCollector(UndescribedCollector):
    """One whose families take a scan: they are made at most every `every_s`."""

    def __init__(self, every_s: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._monotonic = monotonic
        self._sampled_at = -math.inf
        self._families: list[Metric] = []

    def sample(self) -> Iterator[Metric]:
        """The families now."""
        raise NotImplementedError

    def collect(self) -> Iterable[Metric]:
        now = self._monotonic()
        if now - self._sampled_at >= self._every_s:
            self._families = list(self.sample())
            self._sampled_at = now
        return self._families


def add_series(family: F, series: Iterable[tuple[Sequence[str], float]]) -> F:
    """Fill a gauge or counter whose labels users choose, up to `MAX_SERIES`."""
    count = 0
    for labels, value in series:
        count += 1
        if count <= MAX_SERIES:
            family.add_metric(labels, value)
    if count > MAX_SERIES:
        SERIES_LEFT_OUT.labels(family.name).set(count - MAX_SERIES)
    else:
        SERIES_LEFT_OUT.remove(family.name)
    return family


def accepts_open_metrics(header: str) -> bool:
    """Whether a request with this `Accept` gets OpenMetrics."""
    return OPEN_METRICS in header


def media_type(*, is_open: bool) -> str:
    return choose_encoder(_ACCEPTS[is_open])[1]


def render() -> bytes:
    """Everything, in the text format that Prometheus scrapes."""
    return generate_latest(REGISTRY)


class Exposition(NamedTuple):
    """What a scrape gets."""

    content: bytes
    media: str


class _SharedText(NamedTuple):
    exposition: Exposition
    fresh_until: float


class ExpositionCache:
    """The text of a registry for scrapes.

    A text is made anew for every scrape, unless they come so often that this would take more than a small
    share of a core: then those within a moment, of seconds at most, get the same.
    """

    def __init__(
        self,
        registry: Registry = REGISTRY,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        processor_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._registry = registry
        self._monotonic = monotonic
        self._processor_s = processor_s
        self._texts: dict[bool, _SharedText] = {}

    async def render(self, *, is_open: bool = False) -> Exposition:
        """In OpenMetrics if `is_open`, else in the text format. Lets other tasks run meanwhile."""
        shared = self._texts.get(is_open)
        if shared is not None and self._monotonic() < shared.fresh_until:
            return shared.exposition
        encode, media = choose_encoder(_ACCEPTS[is_open])
        parts: list[bytes] = []
        took_s, began = 0.0, self._processor_s()
        for collector in self._registry.collectors():
            # A collector is never left halfway: it may iterate over what other tasks change.
            for family in list(collector.collect()):
                parts.append(encode(_OneFamily(family)).removesuffix(_END))
                if (turn_s := self._processor_s() - began) >= _TURN_S:
                    took_s += turn_s
                    await asyncio.sleep(0)
                    began = self._processor_s()
        took_s += self._processor_s() - began
        made = Exposition(b"".join([*parts, _END if is_open else b""]), media)
        fresh_until = self._monotonic() + min(took_s / _SHARE, _OLDEST_S)
        self._texts[is_open] = _SharedText(made, fresh_until)
        return made


class _OneFamily(NamedTuple):
    """A registry of one, for an encoder."""

    family: Metric

    def collect(self) -> tuple[Metric]:
        return (self.family,)


EXPOSITIONS = ExpositionCache()

LOOP_DEATHS = counter(
    "skerry_loop_deaths_total", "Background loops that ended though they should not", ["loop"]
)
BUILD = gauge(
    "skerry_build_info", "1; the version of this process, and whether it is a server", ["version", "role"]
)
SERIES_LEFT_OUT = gauge(
    "skerry_metrics_series_left_out",
    f"Series of a family beyond the {MAX_SERIES} that are exported",
    ["family"],
)

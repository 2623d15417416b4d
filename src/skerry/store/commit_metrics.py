"""How long transactions take, and how far the store is, for `/metrics`.

Whoever commits measures (`skerry.control.namespaces.admission`), so that all backends are measured alike.
Plain numbers, as one loop commits: Prometheus's own histograms take a lock.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from skerry.kit import metrics
from skerry.model import errors
from skerry.store.protocol import Store

log = structlog.get_logger(__name__)

SECONDS = metrics.histogram_family(
    "skerry_store_commit_seconds", "Time of transactions of this process until they were durable or refused"
)
FAILURES = metrics.counter_family(
    "skerry_store_commit_errors_total", "Transactions that were refused or failed, by reason", ["reason"]
)
REVISION = metrics.gauge_family("skerry_store_revision", "The newest revision of the store")
SIZE = metrics.gauge_family("skerry_store_size_bytes", "Size of the file of the store; SQLite alone")
_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SAMPLE_S: Final = 10.0


class _Commits:
    """Transactions so far."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(_BOUNDS) + 1)
        self.seconds = 0.0
        self.failures = {"conflict": 0, "unavailable": 0, "other": 0}


_COMMITS: Final = _Commits()


@contextmanager
def measured() -> Iterator[None]:
    """Measure one transaction."""
    began = time.perf_counter()
    try:
        yield
    except errors.Conflict:
        _COMMITS.failures["conflict"] += 1
        raise
    except errors.Unavailable:
        _COMMITS.failures["unavailable"] += 1
        raise
    except errors.SkerryError:
        _COMMITS.failures["other"] += 1
        raise
    finally:
        took = time.perf_counter() - began
        _COMMITS.buckets[bisect_left(_BOUNDS, took)] += 1
        _COMMITS.seconds += took


class StoreMetrics(metrics.UndescribedCollector):
    """Of one store; `run` reads its revision now and then."""

    def __init__(self, store: Store, file: Path | None, *, sample_s: float = SAMPLE_S) -> None:
        """`file` is that of SQLite."""
        self._store = store
        self._file = file
        self._sample_s = sample_s
        self._revision: int | None = None

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                self._revision = await self._store.revision()
            except errors.Unavailable as error:
                log.debug("store.revision_unknown", error=error.message)
            await asyncio.sleep(self._sample_s)

    def collect(self) -> Iterator[Metric]:
        seconds, failures = SECONDS(), FAILURES()
        total, buckets = 0, []
        for bound, count in zip([*map(str, _BOUNDS), "+Inf"], _COMMITS.buckets, strict=True):
            total += count
            buckets.append((bound, float(total)))
        seconds.add_metric([], buckets, _COMMITS.seconds)
        yield seconds
        for reason, count in _COMMITS.failures.items():
            failures.add_metric([reason], count)
        yield failures
        yield from _known(REVISION, self._revision)
        yield from _known(SIZE, None if self._file is None else _size(self._file))


def _known(make: Callable[[], GaugeMetricFamily], value: float | None) -> Iterator[Metric]:
    if value is not None:
        family = make()
        family.add_metric([], value)
        yield family


def _size(file: Path) -> float | None:
    """With what is not folded into it yet."""
    total = 0
    for path in (file, file.with_name(f"{file.name}-wal")):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total or None

"""Rates of function calls on this server: counters that are sampled every few seconds, for figures and
sparklines.

Counters only grow, so a rate is the difference of two samples, and a percentile that of two histograms. The
last five minutes are kept in memory; nothing is stored.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from skerry.kit.clock import Clock

SAMPLE_S = 5.0
_SAMPLES = 61  # five minutes
_MINUTE = int(60 / SAMPLE_S) + 1


class FunctionCounters(msgspec.Struct, frozen=True):
    """What was counted of one function since this process started."""

    calls: int
    failed: int
    cold: int
    buckets: tuple[int, ...] = ()  # of the times from arrival to answer


class CallCounters(msgspec.Struct, frozen=True):
    """What was counted of all functions: `buckets` count durations up to each of `bounds_s`, and above."""

    functions: Mapping[str, FunctionCounters]
    bounds_s: Sequence[float] = ()
    buckets: tuple[int, ...] = ()


class CallRates(msgspec.Struct, frozen=True):
    """The calls of the last minute, and the course of five."""

    per_second: float = 0.0
    failed_per_second: float = 0.0
    cold: int = 0  # in five minutes
    p50_s: float | None = None  # None: there were no calls
    p99_s: float | None = None
    course: tuple[float, ...] = ()  # calls each second, the oldest first


class CallStatistics:
    """Samples of the counters."""

    def __init__(
        self,
        read: Callable[[], CallCounters],
        clock: Clock,
        changed: Callable[[str], None] = lambda function: None,
    ) -> None:
        """`changed` is called with each function that was called since the last sample."""
        self._read = read
        self._clock = clock
        self._changed = changed
        self._samples: deque[tuple[float, CallCounters]] = deque(maxlen=_SAMPLES)

    async def run(self) -> None:
        """Sample for ever."""
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_S)

    def sample(self) -> None:
        counters = self._read()
        before = self._samples[-1][1].functions if self._samples else {}
        called = [name for name, counted in counters.functions.items() if before.get(name) != counted]
        if before:
            # Functions that were not called share what the last sample holds of them.
            kept = {name: before.get(name, counted) for name, counted in counters.functions.items()}
            kept |= {name: counters.functions[name] for name in called}
            counters = msgspec.structs.replace(counters, functions=kept)
        self._samples.append((self._clock.monotonic(), counters))
        for name in called:
            self._changed(name)

    def per_second(self, function: str) -> float:
        """The calls of one function in the last minute: `rates` without the rest, for sorting."""
        if len(self._samples) < 2:
            return 0.0
        (since, first), (until, last) = self._samples[-min(len(self._samples), _MINUTE)], self._samples[-1]
        calls = _counted(last, function).calls - _counted(first, function).calls
        return max(0, calls) / max(until - since, 1e-9)

    def rates(self, function: str = "", *, among: Collection[str] | None = None) -> CallRates:
        """Of one function, of those `among` which they are sought, or of all."""
        wanted = (function,) if function else among
        samples = list(self._samples)
        if len(samples) < 2:
            return CallRates()
        counted = [(at, _total(counters, wanted)) for at, counters in samples]
        course = [
            max(0, after.calls - before.calls) / (until - since)
            for (since, before), (until, after) in itertools.pairwise(counted)
            if until > since
        ]
        minute = counted[-min(len(counted), _MINUTE) :]
        (since, first), (until, last) = minute[0], minute[-1]
        elapsed = max(until - since, 1e-9)
        durations = _difference(_buckets(samples[0][1], wanted), _buckets(samples[-1][1], wanted))
        bounds = samples[-1][1].bounds_s
        return CallRates(
            per_second=max(0, last.calls - first.calls) / elapsed,
            failed_per_second=max(0, last.failed - first.failed) / elapsed,
            cold=max(0, last.cold - counted[0][1].cold),
            p50_s=percentile(bounds, durations, 0.5),
            p99_s=percentile(bounds, durations, 0.99),
            course=tuple(course),
        )


def _counted(counters: CallCounters, function: str) -> FunctionCounters:
    return counters.functions.get(function, FunctionCounters(0, 0, 0))


def _total(counters: CallCounters, wanted: Collection[str] | None) -> FunctionCounters:
    """Of these, or of all; without the durations."""
    every = counters.functions.values() if wanted is None else [_counted(counters, name) for name in wanted]
    return FunctionCounters(
        sum(one.calls for one in every), sum(one.failed for one in every), sum(one.cold for one in every)
    )


def _buckets(counters: CallCounters, wanted: Collection[str] | None) -> tuple[int, ...]:
    if wanted is None:
        return counters.buckets
    known = [one.buckets for name in wanted if (one := counters.functions.get(name)) is not None]
    return tuple(map(sum, zip(*known, strict=True)))


def _difference(before: Sequence[int], after: Sequence[int]) -> tuple[int, ...]:
    if len(before) != len(after):
        return tuple(after)
    return tuple(max(0, new - old) for old, new in zip(before, after, strict=True))


def percentile(bounds_s: Sequence[float], buckets: Sequence[int], share: float) -> float | None:
    """The time that `share` of the durations were below, by their histogram; None if there are none. Within a
    bucket they are taken as spread evenly."""
    total = sum(buckets)
    if not total:
        return None
    wanted, reached, low = share * total, 0, 0.0
    for bound, count in zip(bounds_s, buckets, strict=False):
        if reached + count >= wanted:
            return low + (bound - low) * (wanted - reached) / max(count, 1)
        reached += count
        low = bound
    return low

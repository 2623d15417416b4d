"""What instances used in the last hour, and how many functions were called: for charts.

Of what nodes report to this server, sampled every ten seconds. Each instance has two arrays of fixed size;
nothing is stored, and a server that restarts begins anew. More instances than `MAX_SERIES` have no charts.
A chart ends with what is reported now, as the bars beside it do. What a node has not measured yet is not 0,
but not known.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable

from skerry.console.components import Chart
from skerry.kit.clock import Clock
from skerry.model.ids import InstanceId
from skerry.model.resources import Resources

STEP_S = 10.0
STEPS = 360  # an hour
MAX_SERIES = 4000
_POINTS = 180  # of a chart
_LARGE_MB = 4096  # charts that reach this are of gigabytes


class _Series:
    """Values of the last steps, the newest at the end."""

    __slots__ = ("cpu", "memory")

    def __init__(self) -> None:
        self.cpu = array("f")
        self.memory = array("f")

    def add(self, cpu: float, memory: float) -> None:
        for values, value in ((self.cpu, cpu), (self.memory, memory)):
            values.append(value)
            if len(values) > STEPS:
                del values[0]


class UsageHistory:
    """Samples of usage, and charts of them."""

    def __init__(
        self,
        usages: Callable[[], Iterable[tuple[InstanceId, Resources]]],
        calls: Callable[[], int],
        clock: Clock,
    ) -> None:
        """`usages` are those that nodes reported last, `calls` all calls of functions until now."""
        self._usages = usages
        self._count_calls = calls
        self._clock = clock
        self._times: deque[float] = deque(maxlen=STEPS)
        self._series: dict[InstanceId, _Series] = {}
        self._total = _Series()
        self._calls: deque[float | None] = deque(maxlen=STEPS)
        self._counted: int | None = None

    async def run(self) -> None:
        """Sample for ever."""
        while True:
            self.sample()
            await asyncio.sleep(STEP_S)

    def sample(self) -> None:
        before, self._counted = self._counted, self._count_calls()
        now = self._clock.now()
        elapsed = now - self._times[-1] if self._times else 0.0
        rate = (self._counted - before) / elapsed if before is not None and elapsed > 0 else None
        self._calls.append(None if rate is None else max(0.0, rate))
        self._times.append(now)
        kept: dict[InstanceId, _Series] = {}
        cpu = memory = 0
        for id, usage in self._usages():
            cpu += usage.cpu
            memory += usage.memory
            series = self._series.get(id)
            if series is None and len(kept) < MAX_SERIES:
                series = _Series()
            if series is not None:
                series.add(*_measured(usage))
                kept[id] = series
        self._series = kept
        self._total.add(cpu, memory)

    def instance_charts(self, id: InstanceId) -> tuple[Chart, ...]:
        """CPU and memory of one instance."""
        return self.copies_charts([id])

    def copies_charts(self, ids: Iterable[InstanceId]) -> tuple[Chart, ...]:
        """CPU and memory of several together."""
        wanted = set(ids)
        known = [self._series[id] for id in wanted if id in self._series]
        if not known:
            return ()
        present = [_measured(usage) for id, usage in self._usages() if id in wanted]
        return self._charts(known, present)

    def cloud_charts(self) -> tuple[Chart, ...]:
        """CPU, memory and calls of everything that reports to this server."""
        calls = list(self._calls)
        present = [(float(usage.cpu), float(usage.memory)) for _, usage in self._usages()]
        charts = self._charts([self._total], present or [(0.0, 0.0)])
        return *charts, self._chart("Calls", list(self._times), calls, "calls/s")

    def _charts(self, series: list[_Series], present: Iterable[tuple[float, float]]) -> tuple[Chart, ...]:
        """Of all together, with what each uses now."""
        amounts = [one for one in present if not math.isnan(one[0])]
        cpu, memory = _sum([one.cpu for one in series]), _sum([one.memory for one in series])
        times = list(self._times)[-len(cpu) :] if cpu else []
        if amounts:
            times.append(self._clock.now())
            cpu.append(sum(one for one, _ in amounts))
            memory.append(sum(one for _, one in amounts))
        if not any(one is not None for one in memory):
            return ()
        cores = [None if one is None else one / 1000 for one in cpu]
        unit, size = ("GB", 1024) if max(one or 0.0 for one in memory) >= _LARGE_MB else ("MB", 1)
        sizes = [None if one is None else one / size for one in memory]
        return self._chart("CPU", times, cores, "cores"), self._chart("Memory", times, sizes, unit)

    def _chart(self, name: str, times: list[float], values: list[float | None], unit: str) -> Chart:
        step = max(1, -(-len(times) // _POINTS))
        # Counted from the end, so that the newest is always one of them.
        at = range(len(times) - 1, -1, -step)[::-1]
        known = [one for one in values if one is not None]
        label = f"{name}: {_figure(known[-1])} {unit} now, {_figure(max(known))} at most" if known else name
        return Chart(
            label,
            tuple(float(round(times[index])) for index in at),
            (((name, tuple(_rounded(values[index]) for index in at))),),
            unit,
        )


def _measured(usage: Resources) -> tuple[float, float]:
    """CPU and memory; NaN if nothing was measured: what runs has some memory."""
    return (usage.cpu, usage.memory) if usage.memory else (math.nan, math.nan)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _sum(series: list[array[float]]) -> list[float | None]:
    """Of each step; arrays end together and may begin later."""
    length = max(map(len, series), default=0)
    totals: list[float | None] = [None] * length
    for values in series:
        for index, value in enumerate(values, start=length - len(values)):
            if not math.isnan(value):
                totals[index] = (totals[index] or 0.0) + value
    return totals

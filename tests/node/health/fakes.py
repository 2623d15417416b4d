"""Probes that find what a test says."""

from __future__ import annotations

import asyncio
from collections import Counter

from skerry.model.health_checks import HealthCheck
from skerry.model.workloads import MetricSource
from skerry.node.health.decisions import CheckResult
from skerry.node.health.monitor import CheckDone, RunningProbe
from skerry.node.health.probes import ContainerProbes
from tests.node.health.servers import LocalContainers


class FakeProbes(ContainerProbes):
    """Passes unless `failures` says why not, by the target of the check; counts what it was asked."""

    def __init__(self) -> None:
        super().__init__(LocalContainers())
        self.failures: dict[str, str] = {}
        self.metrics: dict[str, float | None] = {}
        self.asked: Counter[str] = Counter()
        self.gate: asyncio.Event | None = None  # while it is closed, nobody answers
        self.running = 0
        self.most = 0  # at once

    def begin(self, name: str, check: HealthCheck, done: CheckDone) -> RunningProbe:
        return self._begin_task(self._check(self.check(name, check), check.timeout_s), done)

    async def check(self, name: str, check: HealthCheck) -> CheckResult:
        self.asked[check.target] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.running -= 1
        why = self.failures.get(check.target, "")
        return CheckResult(not why, why)

    async def _read_metric(self, name: str, source: MetricSource) -> float | None:
        self.asked[source.name] += 1
        return self.metrics.get(source.name)

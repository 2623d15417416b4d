"""Instances for `/metrics`: how many have which status in each namespace, and how many crash again and again.

Counted from the changes of the instance table. `skerry_instances_ready` is in
`skerry.control.instances.readiness_metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from skerry.control.instance_index import InstanceTable
from skerry.control.telemetry.table_counts import TableCounts
from skerry.kit import metrics
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance

INSTANCES = metrics.gauge_family(
    "skerry_instances", "Instances, by namespace and status", ["namespace", "status"]
)
CRASHING = metrics.gauge_family(
    "skerry_instances_crash_looping",
    "Instances that have ended badly at least 3 times in a row and are started again",
    ["namespace"],
)
FAILING = metrics.gauge_family(
    "skerry_instances_failing_checks", "Instances that run and do not pass their health checks", ["namespace"]
)
CRASH_LOOP_RESTARTS: Final = 3


class InstanceMetrics(metrics.UndescribedCollector):
    """Follows the instance table."""

    def __init__(self, table: InstanceTable) -> None:
        self._statuses = TableCounts(table, lambda one: (one.namespace, one.observed.status.value))
        self._crashing = TableCounts(table, lambda one: (one.namespace,) if is_crash_looping(one) else None)
        self._failing = TableCounts(table, lambda one: (one.namespace,) if is_failing(one) else None)

    def close(self) -> None:
        for counts in (self._statuses, self._crashing, self._failing):
            counts.close()

    def collect(self) -> Iterator[Metric]:
        yield metrics.add_series(INSTANCES(), self._statuses.items())
        yield metrics.add_series(CRASHING(), self._crashing.items())
        yield metrics.add_series(FAILING(), self._failing.items())


def is_crash_looping(instance: Instance, restarts: int = CRASH_LOOP_RESTARTS) -> bool:
    """True if it ended badly so often in a row, and its node waits before the next start. A run of some
    length begins a new count (`fleet.restart_reset_s`)."""
    return (
        instance.restarts >= restarts
        and instance.desired is DesiredStatus.RUNNING
        and instance.observed.status in (InstanceStatus.CRASHED, InstanceStatus.STARTING)
    )


def is_failing(instance: Instance) -> bool:
    """True if it runs and does not pass its checks."""
    return instance.observed.status is InstanceStatus.RUNNING and not instance.observed.has_passed

"""Rollouts of workloads: instances follow a new version, and are deleted with their workload.

`next_rollout_targets` is pure; `RolloutPlanner` tracks which workloads have work left, so that nothing is
examined while nothing changes. Like `skerry.control.placement.planner` it decides and does not write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from skerry.control.instance_index import InstanceIndex, InstanceRecord
from skerry.control.instances import transitions
from skerry.control.instances.transitions import InstanceTransition
from skerry.control.workloads.registry import WorkloadRecord, WorkloadRegistry
from skerry.model.ids import InstanceId, Namespace, WorkloadId
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import RolloutStrategy, Workload

PlannedTransition = tuple[InstanceRecord, InstanceTransition]


def next_rollout_targets(workload: Workload, instances: Iterable[InstanceRecord]) -> list[InstanceRecord]:
    """Whose turn it is to take on the present version.

    Those that are stopped, at once; of the others the eldest, when all that were made new run or are done.
    One that failed holds the rollout up, until it is destroyed or a newer version comes.
    """
    stopped: list[InstanceRecord] = []
    running: list[InstanceRecord] = []
    is_blocked = False
    for record in instances:
        one = record.value
        if one.desired is DesiredStatus.DESTROYED:
            continue
        if one.version >= workload.version:
            is_new = (
                one.desired is DesiredStatus.RUNNING and one.observed.status is not InstanceStatus.TERMINATED
            )
            is_blocked |= is_new and (
                one.observed.status is not InstanceStatus.RUNNING or one.leaving is not None
            )
        elif one.observed.status not in TERMINAL:
            (running if one.desired is DesiredStatus.RUNNING else stopped).append(record)
    oldest = sorted(running, key=lambda record: (record.value.created_at, record.value.id))
    return stopped if is_blocked else stopped + oldest[:1]


class RolloutPlanner:
    """Workloads that have something left to do with their instances."""

    def __init__(self, workloads: WorkloadRegistry, index: InstanceIndex) -> None:
        self._workloads = workloads
        self._index = index
        self._active: dict[WorkloadId, WorkloadRecord] = {}
        self._dirty: dict[WorkloadId, None] = {}
        self._refused: dict[WorkloadId, str] = {}  # by the quota of their namespace, and why

    def begin(self) -> None:
        """Examine all workloads again."""
        for record in self._workloads.records():
            self.workload_changed(record)

    def workload_changed(self, record: WorkloadRecord) -> None:
        """A workload is like this now."""
        workload = record.value
        self._refused.pop(workload.id, None)
        if workload.is_deleting or workload.rollout is RolloutStrategy.ROLLING:
            self._active[workload.id] = record
            self._dirty[workload.id] = None
        else:
            self.forget(workload.id)

    def forget(self, workload: WorkloadId) -> None:
        """It is removed, or has no work left."""
        self._active.pop(workload, None)
        self._dirty.pop(workload, None)
        self._refused.pop(workload, None)

    def instances_changed(self, workload: WorkloadId | None) -> None:
        """Something changed about an instance of this workload."""
        if workload in self._active and workload not in self._refused:
            self._dirty[workload] = None

    def refused(self, workload: WorkloadId | None, reason: str) -> bool:
        """Its next step exceeds a quota: it waits until `quota_changed`, or until the workload changes. True
        if it did not wait before."""
        if workload not in self._active or workload is None:
            return False
        is_new = workload not in self._refused
        self._refused[workload] = reason
        self._dirty.pop(workload, None)
        return is_new

    def quota_changed(self, namespace: Namespace) -> None:
        """There may be room in a namespace for what was refused."""
        for id in list(self._refused):
            record = self._active.get(id)
            if record is None or record.value.namespace == namespace:
                del self._refused[id]
                self.instances_changed(id)

    def plan(
        self, now: float, limit: int, is_in_progress: Callable[[InstanceId], bool]
    ) -> tuple[list[PlannedTransition], list[WorkloadRecord]]:
        """At most about `limit` decisions, and the deleted workloads whose instances are all to be
        destroyed."""
        decided: list[PlannedTransition] = []
        deleted: list[WorkloadRecord] = []
        while self._dirty and len(decided) < limit:
            id = next(iter(self._dirty))
            del self._dirty[id]
            record = self._active[id]
            instances = self._index.of_workload(id)
            if any(is_in_progress(record.value.id) for record in instances):
                continue  # that something changed comes when it is done
            if record.value.is_deleting:
                decided += _destroy(self._left(record)[:limit], record.value, now)
                if self.is_done_with(record):
                    deleted.append(record)
            else:
                decided += _renew(next_rollout_targets(record.value, instances)[:limit], record.value)
        return decided, deleted

    def is_done_with(self, record: WorkloadRecord) -> bool:
        """True if every instance of a deleted workload is to be destroyed."""
        return not self._left(record)

    def _left(self, record: WorkloadRecord) -> list[InstanceRecord]:
        of_it = self._index.of_workload(record.value.id)
        return [record for record in of_it if record.value.desired is not DesiredStatus.DESTROYED]


def _destroy(
    instances: Iterable[InstanceRecord], workload: Workload, now: float
) -> Iterable[PlannedTransition]:
    for record in instances:
        step = transitions.set_desired(record.value, DesiredStatus.DESTROYED, at=now, actor="skerry")
        if step is not None:
            yield record, step.because_of(workload.request_id)


def _renew(instances: Iterable[InstanceRecord], workload: Workload) -> Iterable[PlannedTransition]:
    for record in instances:
        step = transitions.change_spec(
            record.value, workload.spec, workload=workload.id, version=workload.version, actor="skerry"
        )
        if step is not None:
            yield record, step.because_of(workload.request_id)

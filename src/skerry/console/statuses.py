"""Statuses as badges: which tone each has. Pure."""

from __future__ import annotations

from skerry.console.components import Badge, Tone
from skerry.control.nodes.conditions import NodeCondition
from skerry.model.jobs import JobStatus
from skerry.model.nodes import Liveness
from skerry.model.schedules import RunStatus
from skerry.model.services import RevisionOutcome, ServiceStatus
from skerry.model.statuses import InstanceStatus
from skerry.model.volumes import VolumeStatus
from skerry.model.workloads import Instance

_SERVICES = {
    ServiceStatus.HEALTHY: Tone.GOOD,
    ServiceStatus.STARTING: Tone.BUSY,
    ServiceStatus.UPDATING: Tone.BUSY,
    ServiceStatus.CANARY: Tone.BUSY,
    ServiceStatus.REVERTING: Tone.WARNING,
    ServiceStatus.PAUSED: Tone.WARNING,
    ServiceStatus.DEGRADED: Tone.BAD,
    ServiceStatus.FAILED: Tone.BAD,
    ServiceStatus.DELETING: Tone.QUIET,
}
_INSTANCES = {
    InstanceStatus.RUNNING: Tone.GOOD,
    InstanceStatus.SCHEDULING: Tone.WARNING,
    InstanceStatus.SCHEDULED: Tone.BUSY,
    InstanceStatus.STARTING: Tone.BUSY,
    InstanceStatus.STOPPING: Tone.BUSY,
    InstanceStatus.DESTROYING: Tone.BUSY,
    InstanceStatus.STOPPED: Tone.QUIET,
    InstanceStatus.TERMINATED: Tone.QUIET,
    InstanceStatus.CRASHED: Tone.BAD,
    InstanceStatus.FAILED: Tone.BAD,
}
_REVISIONS = {
    RevisionOutcome.GOOD: Tone.GOOD,
    RevisionOutcome.PENDING: Tone.BUSY,
    RevisionOutcome.FAILED: Tone.BAD,
}

_VOLUMES = {
    VolumeStatus.UNBOUND: Tone.QUIET,
    VolumeStatus.CREATING: Tone.BUSY,
    VolumeStatus.READY: Tone.GOOD,
    VolumeStatus.FAILED: Tone.BAD,
    VolumeStatus.DELETING: Tone.BUSY,
}

_JOBS = {
    JobStatus.RUNNING: Tone.BUSY,
    JobStatus.SUCCEEDED: Tone.GOOD,
    JobStatus.FAILED: Tone.BAD,
    JobStatus.CANCELLED: Tone.QUIET,
    JobStatus.DELETING: Tone.QUIET,
}
_RUNS = {
    RunStatus.RUNNING: Tone.BUSY,
    RunStatus.QUEUED: Tone.BUSY,
    RunStatus.SUCCEEDED: Tone.GOOD,
    RunStatus.FAILED: Tone.BAD,
    RunStatus.SKIPPED: Tone.QUIET,
    RunStatus.MISSED: Tone.WARNING,
    RunStatus.CANCELLED: Tone.QUIET,
}


def job_badge(status: JobStatus) -> Badge:
    return Badge(status.value, _JOBS[status])


def run_badge(status: RunStatus) -> Badge:
    return Badge(status.value, _RUNS[status])


def service_badge(status: ServiceStatus) -> Badge:
    return Badge(status.value, _SERVICES[status])


def instance_badge(instance: Instance) -> Badge:
    """Its status; one that runs and has not passed its checks is marked."""
    status = instance.observed.status
    if status is InstanceStatus.RUNNING and not instance.observed.has_passed:
        return Badge("RUNNING, NOT READY", Tone.WARNING)
    return Badge(status.value, _INSTANCES[status])


def revision_badge(outcome: RevisionOutcome) -> Badge:
    return Badge(outcome.value, _REVISIONS[outcome])


def volume_badge(status: VolumeStatus) -> Badge:
    return Badge(status.value, _VOLUMES[status])


def node_badge(condition: NodeCondition) -> Badge:
    if condition.liveness is Liveness.LOST:
        return Badge("LOST", Tone.BAD)
    if condition.liveness is Liveness.SUSPECT:
        return Badge("SILENT", Tone.WARNING)
    if condition.drain_by is not None:
        return Badge("DRAINING", Tone.BUSY)
    return Badge("READY", Tone.GOOD) if condition.view.is_schedulable else Badge("CLOSED", Tone.WARNING)

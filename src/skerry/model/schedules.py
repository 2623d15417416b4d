"""Schedules: a job or a call of a function at the times of a cron expression.

A run is due at a minute of the schedule's time zone. Each due time is run at most once, whichever server
leads then; due times that are missed while no server runs are run later, within a window.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from skerry.model import errors, ids
from skerry.model.function_names import check_function_key
from skerry.model.ids import DEFAULT_NAMESPACE, FunctionName, Namespace, ScheduleId
from skerry.model.jobs import JobSpec
from skerry.model.services import check_service_name

MAX_CRON = 200
MAX_NAME = 39  # the names of its jobs are longer by a number of ten digits
MAX_PARAMETERS = 256 * 1024
MAX_RUNS_KEPT = 20
MAX_QUEUED = 100
_MAX_SECONDS = 7 * 86_400.0


class OverlapPolicy(enum.StrEnum):
    """The policy for a run that is due while the one before it is running."""

    SKIP = "skip"
    QUEUE = "queue"  # it begins when the one before it has ended
    REPLACE = "replace"  # the one before it is cancelled


class FunctionTarget(msgspec.Struct, frozen=True, tag_field="kind", tag="function"):
    """A call of a function."""

    function: FunctionName  # with its namespace
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_function_key(self.function, "function")
        if len(msgspec.json.encode(self.parameters)) > MAX_PARAMETERS:
            raise errors.TooLarge(
                f"the parameters of a scheduled call take at most {MAX_PARAMETERS // 1024} KiB"
            )


class JobTarget(msgspec.Struct, frozen=True, tag_field="kind", tag="job"):
    """A new job for every run."""

    spec: JobSpec


class RunStatus(enum.StrEnum):
    """The status of a run."""

    RUNNING = "RUNNING"
    QUEUED = "QUEUED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"  # the one before it went on
    MISSED = "MISSED"  # no server was there within the window
    CANCELLED = "CANCELLED"


class ScheduledRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run of a schedule."""

    due_at: float  # seconds since the epoch
    status: RunStatus
    started_at: float | None = None
    ended_at: float | None = None
    target: str = ""  # the name of its job, or the id of its call
    reason: str = ""
    is_manual: bool = False  # requested by a user

    @property
    def is_over(self) -> bool:
        return self.status not in (RunStatus.RUNNING, RunStatus.QUEUED)


class Schedule(msgspec.Struct, frozen=True):
    """A schedule as it is stored; its name is its own in its namespace."""

    id: ScheduleId
    name: str
    cron: str
    target: JobTarget | FunctionTarget
    created_at: float
    timezone: str = "UTC"
    namespace: Namespace = DEFAULT_NAMESPACE
    overlap: OverlapPolicy = OverlapPolicy.SKIP
    window_s: float = 3600.0  # a run that is later than this is missed
    is_paused: bool = False
    handled_until: float = 0.0  # every due time up to here is decided on
    runs: tuple[ScheduledRun, ...] = ()  # the latest, the newest last; those that are not over are all here
    request_id: str = ""  # of the request that last changed it

    def __post_init__(self) -> None:
        check_service_name(self.name, "schedule")
        if len(self.name) > MAX_NAME:
            raise errors.Invalid(f"the name of a schedule has at most {MAX_NAME} characters", field="name")
        ids.check_namespace(self.namespace)
        if not 0 < len(self.cron) <= MAX_CRON or not self.cron.isprintable():
            raise errors.Invalid(
                f"a cron expression has at most {MAX_CRON} characters, such as `30 3 * * *`", field="cron"
            )
        if not 0 <= self.window_s <= _MAX_SECONDS:
            raise errors.Invalid("the window for missed runs is 0 to 7 days", field="window_s")
        if isinstance(self.target, FunctionTarget) and self.overlap is OverlapPolicy.REPLACE:
            raise errors.Invalid(
                "a call of a function cannot be cancelled, and so not be replaced; choose `skip` or `queue`",
                field="overlap",
            )

    @property
    def active(self) -> tuple[ScheduledRun, ...]:
        """Runs that have begun and are not over."""
        return tuple(run for run in self.runs if run.status is RunStatus.RUNNING)

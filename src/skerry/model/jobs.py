"""Jobs: a template that is run to completion, so many times, some at once, and tried again if it fails.

Every try is an instance of its own, with its own logs, and has the job as its `owner`: `index` is which
completion it is for, `attempt` how many tries of that failed before it.
"""

from __future__ import annotations

import enum
import math

import msgspec
from msgspec.structs import replace

from skerry.model import errors, ids
from skerry.model.ids import DEFAULT_NAMESPACE, JobId, Namespace, ScheduleId
from skerry.model.services import check_service_name
from skerry.model.workloads import InstanceSpec, WorkloadKind

MAX_COMPLETIONS = 10_000
MAX_RETRIES = 1000
_MAX_SECONDS = 366 * 86_400.0


class JobStatus(enum.StrEnum):
    """The status of a job."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"  # stopped by a user, or replaced by the next run of its schedule
    DELETING = "DELETING"


class JobSpec(msgspec.Struct, frozen=True):
    """What a job runs, and how often."""

    template: InstanceSpec
    completions: int = 1  # runs that have to end with exit code 0
    parallelism: int = 1  # runs at once
    retries: int = 3  # of each completion
    deadline_s: float | None = None  # of the whole job; None: as long as it takes
    keep_for_s: float = 86_400.0  # after its end, with the logs of every try

    def __post_init__(self) -> None:
        if not 1 <= self.completions <= MAX_COMPLETIONS:
            raise errors.Invalid(
                f"completions are 1 to {MAX_COMPLETIONS}, not {self.completions}", field="completions"
            )
        if not 1 <= self.parallelism <= MAX_COMPLETIONS:
            raise errors.Invalid(
                f"parallelism is 1 to {MAX_COMPLETIONS}, not {self.parallelism}", field="parallelism"
            )
        if not 0 <= self.retries <= MAX_RETRIES:
            raise errors.Invalid(f"retries are 0 to {MAX_RETRIES}, not {self.retries}", field="retries")
        if self.deadline_s is not None and not 0 < self.deadline_s <= _MAX_SECONDS:
            raise errors.Invalid("the deadline of a job is above 0 s, and at most a year", field="deadline_s")
        if not (math.isfinite(self.keep_for_s) and 0 <= self.keep_for_s <= _MAX_SECONDS):
            raise errors.Invalid("a job is kept for 0 s to a year", field="keep_for_s")
        if self.template.kind is not WorkloadKind.CONTAINER:
            raise errors.Invalid("a job is made of containers", field="type")


class Job(msgspec.Struct, frozen=True):
    """A job as it is stored; its name is its own in its namespace."""

    id: JobId
    name: str
    spec: JobSpec
    created_at: float
    namespace: Namespace = DEFAULT_NAMESPACE
    status: JobStatus = JobStatus.RUNNING
    succeeded: tuple[int, ...] = ()  # completions, by index
    failures: int = 0  # tries that failed
    ended_at: float | None = None
    reason: str = ""
    schedule: ScheduleId | None = None  # whose run it is
    request_id: str = ""  # of the request that last changed it
    failed: dict[int, int] = msgspec.field(default_factory=dict)  # tries that failed, by index
    tries: int = 0  # made so far: a transaction that makes some changes it, and so happens once
    quota_message: str = ""  # why a try that is due is not made: the quota of its namespace

    def __post_init__(self) -> None:
        check_service_name(self.name, "job")
        ids.check_namespace(self.namespace)

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    def end(self, status: JobStatus, reason: str, at: float) -> Job:
        """This job, over."""
        return replace(self, status=status, reason=reason, ended_at=at)

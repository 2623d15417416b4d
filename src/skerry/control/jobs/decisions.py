"""Decisions about a job: which tries to make, stop and destroy, and the new record.

Pure. `decide` takes one job and its tries, which are instances. The result of a try is written into the job's
record, so that nothing is lost or counted twice when an instance is destroyed. A try on a lost node has not
ended: the same instance is placed on another node. `skerry.control.jobs.controller` writes the plans.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from skerry.model.jobs import Job, JobStatus
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceOwner, InstanceSpec, RestartMode, RestartPolicy

# Creations, and stops or destructions, that fit into one transaction beside the record and its events.
MAX_CREATES = 30
MAX_ENDINGS = 15
INDEX_VARIABLE = "SKERRY_JOB_INDEX"
ATTEMPT_VARIABLE = "SKERRY_JOB_ATTEMPT"


class RetryPauses(NamedTuple):
    """How long a job waits before it tries again: `base_s`, doubled with each failure, at most `cap_s`."""

    base_s: float = 10.0
    cap_s: float = 300.0

    def after(self, failures: int) -> float:
        # Above 64 doublings of anything the cap counts; a larger power would be no float any more.
        return min(self.cap_s, self.base_s * 2.0 ** min(max(failures - 1, 0), 64))


class NewTry(msgspec.Struct, frozen=True):
    """A try to be made: of which completion, after how many that failed."""

    index: int
    attempt: int


class NewTryLimits(NamedTuple):
    """How many tries one plan makes, and why the next, after so many others, is refused by a quota."""

    most: int
    refusal: Callable[[int], str]


class JobEvent(NamedTuple):
    """An event to be written: `kind` without its noun."""

    kind: str
    reason: str
    data: dict[str, str]


@dataclass(slots=True)
class JobPlan:
    """What is to be written at once."""

    job: Job
    creates: list[NewTry] = field(default_factory=list)
    stops: list[Instance] = field(default_factory=list)
    releases: list[Instance] = field(default_factory=list)  # they have stopped for good
    destroys: list[Instance] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    wake_at: float | None = None
    is_removed: bool = False

    def wake(self, at: float) -> None:
        self.wake_at = at if self.wake_at is None else min(self.wake_at, at)


class _Outcome(enum.Enum):
    LIVE = enum.auto()  # it runs, waits, or is being removed
    SUCCEEDED = enum.auto()
    FAILED = enum.auto()


def decide(
    job: Job,
    tries: Sequence[Instance],
    now: float,
    pauses: RetryPauses = RetryPauses(),  # noqa: B008 - a tuple
    *,
    max_creates: int = MAX_CREATES,
    refusal: Callable[[int], str] = lambda _: "",
) -> JobPlan:
    """What the job does next. `refusal` says why a try is not made, after so many others, because of a quota;
    empty if it is."""
    plan = JobPlan(job)
    if job.status is JobStatus.DELETING:
        _remove(plan, tries, now)
    elif job.ended_at is not None:
        _keep(plan, tries, job.ended_at + job.spec.keep_for_s, now)
    else:
        _count(plan, tries)
        _end(plan, tries, now)
        if not plan.job.is_over:
            _start(plan, tries, now, pauses, NewTryLimits(max_creates, refusal))
            if plan.creates:
                plan.job = replace(plan.job, tries=plan.job.tries + len(plan.creates))
    return plan


def try_spec(job: Job, index: int, attempt: int) -> InstanceSpec:
    """The spec of one try: it never restarts by itself, and its program knows which one it is."""
    template = job.spec.template
    named = {variable.partition("=")[0] for variable in template.environment}
    added = {INDEX_VARIABLE: index, ATTEMPT_VARIABLE: attempt}
    return replace(
        template,
        name=f"{job.name}-{index}-{attempt}",
        restart=RestartPolicy(RestartMode.NEVER),
        environment=(
            *template.environment,
            *(f"{name}={value}" for name, value in added.items() if name not in named),
        ),
    )


def in_order(tries: Iterable[Instance]) -> list[Instance]:
    """Tries in the order in which they were made, which is how people count them."""

    def key(instance: Instance) -> tuple[float, int, int, str]:
        owner = owner_of(instance)
        return instance.created_at, owner.index, owner.attempt, instance.id

    return sorted(tries, key=key)


def owner_of(instance: Instance) -> InstanceOwner:
    assert instance.owner is not None, "tries have an owner"
    return instance.owner


def is_live(instance: Instance) -> bool:
    """True if it takes one of the places that `parallelism` gives."""
    return _outcome(instance) is _Outcome.LIVE


def _outcome(instance: Instance) -> _Outcome:
    seen = instance.observed
    if seen.status not in TERMINAL:
        return _Outcome.LIVE
    # An instance that is destroyed before it has ended is removed with its record, and never comes here.
    is_done = seen.status is InstanceStatus.TERMINATED and seen.exit_code == 0
    return _Outcome.SUCCEEDED if is_done else _Outcome.FAILED


def _count(plan: JobPlan, tries: Sequence[Instance]) -> None:
    """Write down what tries came to that was not known yet."""
    job = plan.job
    succeeded, failed = set(job.succeeded), dict(job.failed)
    for each in tries:
        owner, outcome = owner_of(each), _outcome(each)
        if outcome is _Outcome.SUCCEEDED:
            succeeded.add(owner.index)
        elif outcome is _Outcome.FAILED and failed.get(owner.index, 0) <= owner.attempt:
            failed[owner.index] = owner.attempt + 1
            reason = _last_error(each)
            data = {"instance": each.id, "index": str(owner.index), "attempt": str(owner.attempt)}
            if len(plan.events) < MAX_CREATES // 2:
                plan.events.append(JobEvent("try-failed", reason, data))
    failures = sum(failed.values())
    if len(succeeded) != len(job.succeeded) or failures != job.failures:
        plan.job = replace(job, succeeded=tuple(sorted(succeeded)), failed=failed, failures=failures)


def _end(plan: JobPlan, tries: Sequence[Instance], now: float) -> None:
    """End the job if it is done, if a completion has failed too often, or if it took too long."""
    job, spec = plan.job, plan.job.spec
    if len(job.succeeded) >= spec.completions:
        _finish(plan, JobStatus.SUCCEEDED, "", now)
        return
    done = set(job.succeeded)
    lost = [index for index, count in job.failed.items() if count > spec.retries and index not in done]
    if lost:
        _finish(plan, JobStatus.FAILED, _why_failed(job, min(lost), tries), now)
    elif spec.deadline_s is not None:
        ends_at = job.created_at + spec.deadline_s
        if now >= ends_at:
            _finish(plan, JobStatus.FAILED, f"deadline: it was not done within {spec.deadline_s:g} s", now)
        else:
            plan.wake(ends_at)


def _finish(plan: JobPlan, status: JobStatus, reason: str, now: float) -> None:
    plan.job = plan.job.end(status, reason, now)
    plan.events.append(JobEvent(status.lower(), reason, {"failures": str(plan.job.failures)}))


def _why_failed(job: Job, index: int, tries: Sequence[Instance]) -> str:
    count = job.failed[index]
    last = [each for each in tries if owner_of(each).index == index and not is_live(each)]
    words = f": {_last_error(in_order(last)[-1])}" if last else ""
    often = "once" if count == 1 else f"{count} times"
    return f"completion {index} failed {often}, and is not tried again{words}"


def _last_error(instance: Instance) -> str:
    seen = instance.observed
    if seen.exit_code is not None:
        return f"exit code {seen.exit_code}"
    return seen.reason or f"it is {seen.status}"


def _start(
    plan: JobPlan, tries: Sequence[Instance], now: float, pauses: RetryPauses, limits: NewTryLimits
) -> None:
    """Make tries for completions that have none, as many as may run at once and the quota admits."""
    before = plan.job.quota_message
    message = _add_tries(plan, tries, now, pauses, limits)
    if message == before:
        return
    if not before:
        plan.events.append(JobEvent("quota-exceeded", message, {}))
    plan.job = replace(plan.job, quota_message=message)


def _add_tries(
    plan: JobPlan, tries: Sequence[Instance], now: float, pauses: RetryPauses, limits: NewTryLimits
) -> str:
    """Why there are fewer than may run at once, if it is the quota."""
    job = plan.job
    live = [each for each in tries if is_live(each)]
    free = job.spec.parallelism - len(live)
    if free <= 0:
        return ""
    busy = {owner_of(each).index for each in live}
    busy.update(job.succeeded)
    ended_at = _failed_at(job.failed, tries, now)
    for index in range(job.spec.completions):
        if index in busy:
            continue
        attempt = job.failed.get(index, 0)
        due_at = ended_at.get(index, 0.0) + pauses.after(attempt) if attempt else 0.0
        if due_at > now:
            plan.wake(due_at)
            continue
        if message := limits.refusal(len(plan.creates)):
            return message
        if len(plan.creates) >= limits.most:
            plan.wake(now)
            return ""
        plan.creates.append(NewTry(index, attempt))
        free -= 1
        if free <= 0:
            return ""
    return ""


def _failed_at(failed: Mapping[int, int], tries: Sequence[Instance], now: float) -> dict[int, float]:
    """When the last try of each completion that failed did."""
    if not failed:
        return {}
    times: dict[int, float] = {}
    for each in tries:
        if _outcome(each) is _Outcome.FAILED:
            index = owner_of(each).index
            times[index] = max(times.get(index, 0.0), each.status_since(now))
    return times


def _keep(plan: JobPlan, tries: Sequence[Instance], until: float, now: float) -> None:
    """Stop what still runs of a job that is over, and keep all tries for their logs until it is time."""
    if now >= until:
        plan.job = replace(plan.job, status=JobStatus.DELETING)
        plan.events.append(JobEvent("expired", "", {"name": plan.job.name}))
        return
    plan.wake(until)
    running = [each for each in tries if is_live(each) and _can_run(each)]
    for each in running[:MAX_ENDINGS]:
        # What has no node has no logs, and would wait for one again.
        (plan.destroys if each.node is None else plan.stops).append(each)
    stopped = [each for each in tries if _is_to_be_released(each)]
    plan.releases += stopped[:MAX_ENDINGS]
    if max(len(running), len(stopped)) > MAX_ENDINGS:
        plan.wake(now)


def _is_to_be_released(instance: Instance) -> bool:
    has_stopped = instance.observed.status is InstanceStatus.STOPPED
    return has_stopped and instance.retiring_at is not None and not instance.is_released


def _can_run(instance: Instance) -> bool:
    """True if it runs, or was stopped and can be started again."""
    if instance.desired is DesiredStatus.DESTROYED:
        return False
    return instance.desired is DesiredStatus.RUNNING or instance.retiring_at is None


def _remove(plan: JobPlan, tries: Sequence[Instance], now: float) -> None:
    if not tries:
        plan.is_removed = True
        return
    left = [each for each in tries if each.desired is not DesiredStatus.DESTROYED]
    plan.destroys += left[:MAX_ENDINGS]
    if len(left) > MAX_ENDINGS:
        plan.wake(now)

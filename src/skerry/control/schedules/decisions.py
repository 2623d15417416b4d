"""Decisions about a schedule: which run starts, which are skipped, missed, queued or replaced.

Pure. `decide` takes one schedule and the jobs of its runs. Every due time is decided once: `handled_until`
only grows, also if the clock is set back. At most one run starts in one decision, in the transaction that
writes the decision (`skerry.control.schedules.controller`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import NamedTuple

from msgspec.structs import replace

from skerry.control.schedules import due_times
from skerry.model.ids import ScheduleId
from skerry.model.jobs import Job, JobStatus
from skerry.model.schedules import (
    MAX_QUEUED,
    MAX_RUNS_KEPT,
    FunctionTarget,
    JobTarget,
    OverlapPolicy,
    RunStatus,
    Schedule,
    ScheduledRun,
)

# A run that is so late is on time: another server had to take the lead, or there was much to do.
GRACE_S = 30.0
MAX_DUE = 50  # due times that are decided on at once
_MAX_COUNTED = 1000  # of those that were missed
_NO_RESULT = "its server took the call, and has not written its result"


class ScheduleEvent(NamedTuple):
    """An event to be written: `kind` without its noun."""

    kind: str
    reason: str
    data: dict[str, str]


class RunContext(NamedTuple):
    """What a decision needs to know beside the schedule."""

    job: Callable[[str], Job | None]  # of that name, in the schedule's namespace
    call_id: Callable[[Schedule, ScheduledRun], str]  # of a call that this server makes
    timeout_s: float  # a call without a result for so long has failed


@dataclass(slots=True)
class SchedulePlan:
    """What is to be written at once."""

    schedule: Schedule
    start: ScheduledRun | None = None  # it begins: its job is made with this, or its call behind it
    cancels: list[str] = field(default_factory=list)  # names of jobs, with `cancel_reason`
    cancel_reason: str = ""
    events: list[ScheduleEvent] = field(default_factory=list)
    wake_at: float | None = None

    def wake(self, at: float) -> None:
        self.wake_at = at if self.wake_at is None else min(self.wake_at, at)


def decide(schedule: Schedule, context: RunContext, now: float) -> SchedulePlan:
    """What the schedule does next."""
    return _Decision(schedule, context, now).plan()


def job_name(schedule: Schedule, run: ScheduledRun) -> str:
    """Of the job of a run; of two runs never the same."""
    return f"{schedule.name}-{int(run.due_at):010}"


def end_run(run: ScheduledRun, status: RunStatus, at: float, reason: str = "") -> ScheduledRun:
    return replace(run, status=status, ended_at=at, reason=reason)


def replace_run(schedule: Schedule, before: ScheduledRun, after: ScheduledRun) -> Schedule:
    """The schedule with one run as it is now."""
    return replace(schedule, runs=tuple(after if run is before else run for run in schedule.runs))


def run_event(schedule: Schedule, run: ScheduledRun) -> ScheduleEvent:
    """The event of a run in its present status."""
    kind = "run-started" if run.status is RunStatus.RUNNING else f"run-{run.status.lower()}"
    data = {"name": schedule.name, "due_at": due_times.display(run.due_at, schedule.timezone)}
    return ScheduleEvent(kind, run.reason, data | ({"target": run.target} if run.target else {}))


class _Decision:
    """One decision on its way."""

    def __init__(self, schedule: Schedule, context: RunContext, now: float) -> None:
        self._schedule = schedule
        self._context = context
        self._now = now
        self._runs = list(schedule.runs)
        self._handled_until = schedule.handled_until
        self._plan = SchedulePlan(schedule)
        self._started: int | None = None  # the place of the run that begins

    def plan(self) -> SchedulePlan:
        for place, run in enumerate(self._runs):
            if run.status is RunStatus.RUNNING:
                self._follow(place, run)
        if not self._schedule.is_paused:
            self._handle_due_times()
        self._begin_queued()
        plan = self._plan
        if self._started is not None:
            plan.start = self._runs[self._started]
        plan.schedule = replace(self._schedule, runs=trim(self._runs), handled_until=self._handled_until)
        return plan

    def _set(self, place: int, run: ScheduledRun) -> None:
        self._runs[place] = run
        self._plan.events.append(run_event(self._schedule, run))

    def _add(self, run: ScheduledRun) -> None:
        self._runs.append(run)
        if run.status is not RunStatus.QUEUED:
            self._plan.events.append(run_event(self._schedule, run))

    def _follow(self, place: int, run: ScheduledRun) -> None:
        """A run ends with its job. The result of a call is written by the server that made it."""
        if isinstance(self._schedule.target, FunctionTarget):
            give_up_at = (run.started_at or run.due_at) + self._context.timeout_s
            if self._now >= give_up_at:
                self._set(place, end_run(run, RunStatus.FAILED, self._now, _NO_RESULT))
            else:
                self._plan.wake(give_up_at)
            return
        job = self._context.job(run.target)
        if job is None or job.schedule != self._schedule.id:
            self._set(place, end_run(run, RunStatus.CANCELLED, self._now, "its job was deleted"))
        elif job.is_over or job.status is JobStatus.DELETING:
            self._set(place, end_run(run, outcome_of(job), job.ended_at or self._now, job.reason))

    def _handle_due_times(self) -> None:
        """Decide on what has become due."""
        cron, zone = self._schedule.cron, self._schedule.timezone
        since = self._handled_until
        horizon = self._now - max(self._schedule.window_s, GRACE_S)
        if since < horizon:
            self._miss(since, horizon)
            since = horizon
        due: list[float] = []
        known = {run.due_at for run in self._runs if not run.is_manual}
        for due_at in due_times.after(cron, zone, since):
            if due_at in known:
                continue  # the clock was set back, and the schedule was changed since
            if due_at > self._now or len(due) == MAX_DUE:
                self._plan.wake(max(due_at, self._now))
                break
            due.append(due_at)
        for due_at in due:
            self._handled_until = due_at
            run = ScheduledRun(due_at, RunStatus.QUEUED)
            if self._schedule.overlap is OverlapPolicy.REPLACE and due_at != due[-1]:
                self._add(end_run(run, RunStatus.CANCELLED, self._now, self._replaced_by(due[-1])))
            else:
                self._arrive(run)

    def _miss(self, since: float, horizon: float) -> None:
        """Due times that are too long ago are one entry, however many they are."""
        times = due_times.after(self._schedule.cron, self._schedule.timezone, since)
        missed = list(islice(takewhile(lambda at: at <= horizon, times), _MAX_COUNTED))
        if not missed:
            return
        count = f"{len(missed)}{' or more' if len(missed) == _MAX_COUNTED else ''}"
        runs = "a run was" if len(missed) == 1 else f"{count} runs were"
        reason = f"{runs} due longer ago than the window of {self._schedule.window_s:g} s"
        self._handled_until = horizon
        self._add(ScheduledRun(missed[-1], RunStatus.MISSED, ended_at=self._now, reason=reason))

    def _arrive(self, run: ScheduledRun) -> None:
        """A run is due: start it, or apply the overlap rule."""
        going_on = [other for other in self._runs if not other.is_over]
        overlap = self._schedule.overlap
        if going_on and overlap is OverlapPolicy.SKIP:
            since = due_times.display(going_on[0].due_at, self._schedule.timezone)
            reason = f"the run of {since} went on"
            self._add(end_run(run, RunStatus.SKIPPED, self._now, reason))
        elif len(going_on) > MAX_QUEUED:
            self._add(end_run(run, RunStatus.SKIPPED, self._now, f"{MAX_QUEUED} runs wait already"))
        else:
            self._add(run)
            self._begin_queued()

    def _begin_queued(self) -> None:
        """Start the first queued run, if none is running; with `replace` the last, in place of the running
        one."""
        if self._started is not None:
            return
        queued = [place for place, run in enumerate(self._runs) if run.status is RunStatus.QUEUED]
        if not queued:
            return
        active = [place for place, run in enumerate(self._runs) if run.status is RunStatus.RUNNING]
        if self._schedule.overlap is OverlapPolicy.REPLACE:
            place = queued.pop()
            reason = self._replaced_by(self._runs[place].due_at)
            self._plan.cancel_reason = reason
            self._plan.cancels += [self._runs[other].target for other in active]
            for other in (*active, *queued):
                self._set(other, end_run(self._runs[other], RunStatus.CANCELLED, self._now, reason))
        elif active:
            return
        else:
            place = queued[0]
        self._begin(place, self._runs[place])

    def _replaced_by(self, due_at: float) -> str:
        return f"replaced by the run of {due_times.display(due_at, self._schedule.timezone)}"

    def _begin(self, place: int, run: ScheduledRun) -> None:
        if isinstance(self._schedule.target, JobTarget):
            target = job_name(self._schedule, run)
            if self._context.job(target) is not None:
                reason = f"there is a job {target!r} already"
                self._set(place, end_run(run, RunStatus.FAILED, self._now, reason))
                self._plan.wake(self._now)
                return
        else:
            target = self._context.call_id(self._schedule, run)
        self._started = place
        self._set(place, replace(run, status=RunStatus.RUNNING, started_at=self._now, target=target))


def outcome_of(job: Job) -> RunStatus:
    """The status of a run whose job has ended, or is being deleted."""
    if len(job.succeeded) >= job.spec.completions:
        return RunStatus.SUCCEEDED
    if job.status is JobStatus.FAILED:
        return RunStatus.FAILED
    return RunStatus.CANCELLED


def trim(runs: Sequence[ScheduledRun]) -> tuple[ScheduledRun, ...]:
    """All that are not over, and the latest of the others."""
    over = [run for run in runs if run.is_over]
    dropped = set(map(id, over[: max(0, len(over) - MAX_RUNS_KEPT)]))
    return tuple(run for run in runs if id(run) not in dropped)


def call_id(function: str, schedule: ScheduleId, due_at: float, mark: str) -> str:
    """The id of the call of a run, which the server of `mark` makes once."""
    return f"{function}-{schedule}-{int(due_at):010}" + (f"-{mark}" if mark else "")

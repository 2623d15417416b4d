"""The invariants of jobs and schedules, checked on every transaction, and what holds after convergence.

The properties, by name:

- never too many: no job has more tries at once than its parallelism, nor two of one completion at once, nor
  more of one completion than its retries allow;
- never forgotten: what has succeeded stays so, and a job that is over does not start again;
- never twice: a due time makes at most one job, ever, and is not decided again.

After convergence every job is over, every active run has its job, and every try has one. Called by
`skerry.sim.cluster.invariants`, which follows the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from skerry.control.instance_index import PREFIX as INSTANCES
from skerry.control.jobs import decisions
from skerry.kit import json_codec
from skerry.model.ids import InstanceId, JobId, ScheduleId
from skerry.model.jobs import Job, JobStatus
from skerry.model.schedules import RunStatus, Schedule
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance
from skerry.store.protocol import Batch

JOBS = "job/"
SCHEDULES = "schedule/"
# Marks the record of a try, so that others need not be decoded.
_MARK = b'"kind":"job"'


class JobInvariants:
    """The jobs, their tries and the schedules after each transaction."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self.jobs: dict[str, Job] = {}  # by key
        self.schedules: dict[str, Schedule] = {}
        self.tries: dict[JobId, dict[InstanceId, Instance]] = {}
        self.runs: Counter[tuple[ScheduleId, str]] = Counter()  # jobs that were made, by their name
        self._violated = violated
        self._owners: dict[InstanceId, JobId] = {}

    def observe(self, batch: Batch) -> None:
        """Check one transaction."""
        touched: set[JobId] = set()
        for change in batch.changes:
            value = None if change.entry is None else change.entry.value
            if change.key.startswith(JOBS):
                self._job_changed(change.key, None if value is None else json_codec.decode(value, Job))
            elif change.key.startswith(SCHEDULES):
                after = None if value is None else json_codec.decode(value, Schedule)
                self._schedule_changed(change.key, after)
            elif change.key.startswith(INSTANCES):
                is_try = value is not None and _MARK in value
                instance = json_codec.decode(value, Instance) if value is not None and is_try else None
                touched |= self._try_changed(InstanceId(change.key.removeprefix(INSTANCES)), instance)
        for job in self.jobs.values():
            if job.id in touched:
                self._check_tries(job)

    def unfulfilled(self, explain: Callable[[Instance], bool]) -> Iterator[str]:
        """What does not hold after convergence; `explain` is whether a waiting try could be placed."""
        known = {job.id: job for job in self.jobs.values()}
        for owner, tries in self.tries.items():
            if owner not in known and tries:
                yield f"{min(tries)} is a try of job {owner}, which is gone"
        for job in known.values():
            tries = self.tries.get(job.id, {})
            waiting = [each for each in tries.values() if each.observed.status is InstanceStatus.SCHEDULING]
            is_short = bool(waiting) and not any(map(explain, waiting))
            if job.status is JobStatus.DELETING or (not job.is_over and not is_short):
                yield f"job {job.name} is still {job.status}"
        for schedule in self.schedules.values():
            for run in schedule.active:
                of_run = self.jobs.get(f"{JOBS}{schedule.namespace}/{run.target}")
                if of_run is None or of_run.is_over:
                    yield f"schedule {schedule.name} still waits for {run.target}, which is over"
            if any(run.status is RunStatus.QUEUED for run in schedule.runs) and not schedule.active:
                yield f"schedule {schedule.name} has a run that waits for nothing"

    def _job_changed(self, key: str, after: Job | None) -> None:
        before = self.jobs.pop(key, None)
        if after is None:
            return
        self.jobs[key] = after
        if before is None or before.id != after.id:
            if after.schedule is not None:
                self.runs[after.schedule, after.name] += 1
                if self.runs[after.schedule, after.name] > 1:
                    self._violated(f"{after.name} was made twice")
            return
        if not set(before.succeeded) <= set(after.succeeded):
            self._violated(f"job {after.name} has forgotten what succeeded")
        if before.is_over and not after.is_over:
            self._violated(f"job {after.name} was over, and goes on")

    def _schedule_changed(self, key: str, after: Schedule | None) -> None:
        before = self.schedules.pop(key, None)
        if after is None:
            return
        self.schedules[key] = after
        if before is not None and before.id == after.id and after.handled_until < before.handled_until:
            self._violated(f"schedule {after.name} goes back to before {before.handled_until}")
        if len(after.active) > 1:
            self._violated(f"{len(after.active)} runs of schedule {after.name} go on at once")

    def _try_changed(self, id: InstanceId, after: Instance | None) -> set[JobId]:
        if after is None:
            owner = self._owners.pop(id, None)
            if owner is None:
                return set()
            self.tries[owner].pop(id)
            if not self.tries[owner]:
                del self.tries[owner]
            return {owner}
        owner = JobId(decisions.owner_of(after).id)
        self._owners[id] = owner
        self.tries.setdefault(owner, {})[id] = after
        return {owner}

    def _check_tries(self, job: Job) -> None:
        live = [each for each in self.tries.get(job.id, {}).values() if decisions.is_live(each)]
        if len(live) > job.spec.parallelism:
            self._violated(f"job {job.name} has {len(live)} tries at once, of {job.spec.parallelism}")
        indexes = [decisions.owner_of(each).index for each in live]
        if len(indexes) != len(set(indexes)):
            self._violated(f"job {job.name} has two tries of one completion at once")
        if any(decisions.owner_of(each).attempt > job.spec.retries for each in live):
            self._violated(f"job {job.name} tries more often than {job.spec.retries} retries allow")

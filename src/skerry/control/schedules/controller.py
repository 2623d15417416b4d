"""The schedule controller: on the leader, it starts the runs that are due.

A schedule is reconciled when a run is due, and when it or a job of its runs changes. That a due time is
handled, the run, and its job are written in one transaction, under the leader's fence, which expects the
schedule's record as it was read: no due time is run twice, whoever leads. Of a call of a function only the
intent is written; the server that the call's id names makes it (`skerry.control.schedules.calls`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from skerry.control.controller_loop import ControllerLoop, settled_at_once
from skerry.control.events.log import EventLog
from skerry.control.jobs import registry as job_registry
from skerry.control.jobs.table import JobTable
from skerry.control.leadership.election import LeaderElection
from skerry.control.named_table import key_of, key_of_name
from skerry.control.schedules import decisions
from skerry.control.schedules.decisions import RunContext, ScheduleEvent, SchedulePlan
from skerry.control.schedules.table import ScheduleRecord, ScheduleTable
from skerry.kit import metrics, ulid
from skerry.kit.clock import Clock
from skerry.model.ids import JobId
from skerry.model.jobs import Job
from skerry.model.schedules import FunctionTarget, JobTarget, Schedule, ScheduledRun
from skerry.store import fencing
from skerry.store.protocol import Expect, Op, Put, Store
from skerry.store.tables.table import RecordChange

RUNS = metrics.counter("skerry_schedule_runs_total", "Runs of schedules, by what became of them", ["event"])


class CallNames(NamedTuple):
    """What is to be known of this server's async calls to write one down."""

    mark: str  # what their ids end in
    timeout_s: float  # a call without a result for so long has failed


class ScheduleController:
    """Begins the runs of schedules."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        *,
        schedules: ScheduleTable,
        jobs: JobTable,
        calls: CallNames,
        settled: Callable[[], Awaitable[None]] = settled_at_once,
        new_id: Callable[[float], str] = ulid.new_id,
    ) -> None:
        """Nothing is decided before `settled` returns, which is called before every decision."""
        self._store = store
        self._events = events
        self._clock = clock
        self._schedules = schedules
        self._jobs = jobs
        self._calls = calls
        self._new_id = new_id
        self._loop = ControllerLoop("schedules", clock, schedules, jobs, settled=settled)
        jobs.subscribe(self._jobs_changed)

    async def run(self, leader: LeaderElection) -> None:
        """For ever: decide while `leader` leads. The tables must be running."""
        await self._loop.ready()
        await leader.run_while_leading("schedules", self.lead)

    async def lead(self, fence: Expect) -> None:
        """Decide for ever, as the leader."""
        # Transactions of the leader before are in the store now, or never will be.
        await self._loop.refresh()
        await self._loop.run_each(partial(self._reconcile, fence))

    async def _reconcile(self, fence: Expect, key: str) -> float | None:
        """Do what is to be done about one schedule now; returns when to do so again."""
        record = self._schedules.get(key)
        if record is None:
            return None
        schedule, now = record.value, self._clock.now()
        context = RunContext(
            lambda name: self._jobs.value(key_of_name(name, schedule.namespace)),
            self._call_id,
            self._calls.timeout_s,
        )
        plan = decisions.decide(schedule, context, now)
        if plan.schedule != schedule:
            await self._write(record, plan, now, fence)
        return plan.wake_at

    def _call_id(self, schedule: Schedule, run: ScheduledRun) -> str:
        assert isinstance(schedule.target, FunctionTarget)
        return decisions.call_id(schedule.target.function, schedule.id, run.due_at, self._calls.mark)

    async def _write(self, record: ScheduleRecord, plan: SchedulePlan, now: float, fence: Expect) -> None:
        schedule = plan.schedule
        key = key_of(schedule)
        ops: list[Op] = [self._schedules.put(key, schedule)]
        expect = [self._schedules.expect(key, record)]
        changed_jobs: list[tuple[Expect, Sequence[Op]]] = []
        if plan.start is not None and isinstance(schedule.target, JobTarget):
            changed_jobs.append(self._create(schedule, schedule.target, plan.start, now))
        changed_jobs += [
            change
            for name in plan.cancels
            if (change := self._cancel(schedule, name, plan.cancel_reason, now)) is not None
        ]
        for expected, more in changed_jobs:
            expect.append(expected)
            ops += more
        ops += [self._event(schedule, event) for event in plan.events]
        revision = await fencing.commit(self._store, ops, expect, fence)
        await self._schedules.wait_for_change(revision)
        if changed_jobs:
            await self._jobs.wait_for_change(revision)
        for event in plan.events:
            RUNS.labels(event.kind.removeprefix("run-")).inc()

    def _create(
        self, schedule: Schedule, target: JobTarget, run: ScheduledRun, now: float
    ) -> tuple[Expect, Sequence[Op]]:
        job = Job(
            JobId(self._new_id(now)),
            run.target,
            target.spec,
            now,
            namespace=schedule.namespace,
            schedule=schedule.id,
        )
        key = key_of(job)
        event = job_registry.created_event(self._jobs, self._events, job, actor="skerry")
        return self._jobs.expect(key, None), [self._jobs.put(key, job), event]

    def _cancel(
        self, schedule: Schedule, name: str, reason: str, now: float
    ) -> tuple[Expect, Sequence[Op]] | None:
        key = key_of_name(name, schedule.namespace)
        record = self._jobs.get(key)
        if record is None or record.value.is_over:
            return None
        write = job_registry.cancelled(self._jobs, self._events, record.value, reason, at=now, actor="skerry")
        return self._jobs.expect(key, record), self._jobs.ops(key, write)

    def _event(self, schedule: Schedule, event: ScheduleEvent) -> Put:
        return self._events.put(
            f"schedule.{event.kind}",
            self._schedules.subject(schedule),
            actor="skerry",
            reason=event.reason,
            **event.data,
        )

    def _jobs_changed(self, changes: Sequence[RecordChange[Job]]) -> None:
        """The name of a run's job begins with that of its schedule."""
        for _, before, after in changes:
            record = after or before
            if record is None or record.value.schedule is None:
                continue
            job = record.value
            key = key_of_name(job.name.rpartition("-")[0], job.namespace)
            if self._schedules.get(key) is not None:
                self._loop.add(key)

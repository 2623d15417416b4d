"""The leader's loop of schedules: what is due is decided, and begun in the transaction that says so.

A schedule is looked at when its time has come, and when it or a job of its runs has changed. That a due time
is handled, the run, and the job it makes are one transaction under the leader's fence, on the record as it
was read: no due time is run twice, whoever leads. A call of a function is only written down; the server
that its id names makes it (`skerry.control.schedules.calls`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from skerry.control.controller_loop import ControllerLoop, settled_at_once
from skerry.control.events.log import EventLog
from skerry.control.jobs import registry as job_registry
from skerry.control.jobs.table import JobTable, job_key
from skerry.control.leadership.election import LeaderElection
from skerry.control.schedules import decisions
from skerry.control.schedules.decisions import RunContext, ScheduleEvent, SchedulePlan
from skerry.control.schedules.table import ScheduleRecord, ScheduleTable, schedule_key
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
    give_up_s: float  # a call whose server has said nothing of it for so long has failed


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
        """Nothing is decided before `settled` returns, which is asked before every decision."""
        self._store = store
        self._events = events
        self._clock = clock
        self._schedules = schedules
        self._jobs = jobs
        self._calls = calls
        self._settled = settled
        self._new_id = new_id
        self._loop = ControllerLoop("schedules", clock)
        schedules.subscribe(self._hear)
        jobs.subscribe(self._hear_of_jobs)

    async def run(self, leader: LeaderElection) -> None:
        """For ever: decide while `leader` leads. The tables must be running."""
        await self._schedules.ready()
        await self._jobs.ready()
        await leader.run_while_leading("schedules", self.lead)

    async def lead(self, fence: Expect) -> None:
        """Decide for ever, as the one who leads."""
        # What was decided by who led before is in the store now, or never will be.
        await self._refresh()
        keys = [key for key, _ in self._schedules.items()]
        await self._loop.run(keys, lambda key: self._reconcile(key, fence), self._refresh, self._settled)

    async def _refresh(self) -> None:
        await self._schedules.sync()
        await self._jobs.sync()

    async def _reconcile(self, key: str, fence: Expect) -> float | None:
        """Do what is to be done with one schedule now; when to look again."""
        record = self._schedules.get(key)
        if record is None:
            return None
        schedule, now = record.value, self._clock.now()
        context = RunContext(
            lambda name: self._jobs.value(job_key(schedule.namespace, name)),
            self._call_id,
            self._calls.give_up_s,
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
        key = schedule_key(schedule.namespace, schedule.name)
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
        expect = self._jobs.expect(job_key(job.namespace, job.name), None)
        return expect, job_registry.created_ops(self._jobs, self._events, job, actor="skerry")

    def _cancel(
        self, schedule: Schedule, name: str, reason: str, now: float
    ) -> tuple[Expect, Sequence[Op]] | None:
        key = job_key(schedule.namespace, name)
        record = self._jobs.get(key)
        if record is None or record.value.is_over:
            return None
        write = job_registry.cancelled(self._jobs, self._events, record.value, reason, at=now, actor="skerry")
        return self._jobs.expect(key, record), self._jobs.ops(key, write)

    def _event(self, schedule: Schedule, event: ScheduleEvent) -> Put:
        return self._events.put(
            f"schedule.{event.kind}",
            self._schedules.key(schedule_key(schedule.namespace, schedule.name)),
            actor="skerry",
            reason=event.reason,
            **event.data,
        )

    def _hear(self, changes: Sequence[RecordChange[Schedule]]) -> None:
        for key, _, after in changes:
            if after is not None:
                self._loop.add(key)

    def _hear_of_jobs(self, changes: Sequence[RecordChange[Job]]) -> None:
        """The name of a run's job begins with that of its schedule."""
        for _, before, after in changes:
            record = after or before
            if record is None or record.value.schedule is None:
                continue
            job = record.value
            key = schedule_key(job.namespace, job.name.rpartition("-")[0])
            if self._schedules.get(key) is not None:
                self._loop.add(key)

"""The leader's loop of jobs: what `decisions` says is written, together with the tries it makes and ends.

A job is looked at when it or one of its tries changes, or when a time comes that the decision named; nothing
is polled. All of one decision is one transaction under the leader's fence, on the job's record as it was
read: tries are made of a job that is still as it was, and never twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog

from skerry.control.controller_loop import ControllerLoop, settled_at_once
from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.instances import transitions
from skerry.control.instances.writer import TransitionWriter
from skerry.control.jobs import decisions
from skerry.control.jobs.decisions import JobPlan, NewTry, RetryPauses
from skerry.control.jobs.table import JobRecord, JobTable, job_key
from skerry.control.leadership.election import LeaderElection
from skerry.kit import metrics, ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import InstanceId, JobId
from skerry.model.jobs import Job
from skerry.model.settings import FleetSettings
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceOwner, ObservedState, OwnerKind
from skerry.store import fencing
from skerry.store.protocol import Expect, Op, Store
from skerry.store.tables.table import RecordChange

log = structlog.get_logger(__name__)

TRIES = metrics.counter("skerry_job_tries_total", "Tries of jobs that were made")


class JobController:
    """Makes and ends the tries of jobs."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        settings: FleetSettings,
        *,
        jobs: JobTable,
        instances: InstanceTable,
        settled: Callable[[], Awaitable[None]] = settled_at_once,
        new_id: Callable[[float], str] = ulid.new_id,
    ) -> None:
        """Nothing is decided before `settled` returns, which is asked before every decision."""
        self._store = store
        self._events = events
        self._clock = clock
        self._pauses = RetryPauses(settings.job_retry_base_s, settings.job_retry_cap_s)
        self._jobs = jobs
        self._instances = instances
        self._settled = settled
        self._new_id = new_id
        self._writer = TransitionWriter(events, instances)
        self._loop = ControllerLoop("jobs", clock)
        jobs.subscribe(self._hear)
        instances.listen(self._hear_of_instance)

    async def run(self, leader: LeaderElection) -> None:
        """For ever: decide while `leader` leads. The tables must be running."""
        await self._jobs.ready()
        await self._instances.ready()
        await leader.run_while_leading("jobs", self.lead)

    async def lead(self, fence: Expect) -> None:
        """Decide for ever, as the one who leads."""
        # What was decided by who led before is in the store now, or never will be.
        await self._refresh()
        await self._settled()
        await self._destroy_orphans(fence)
        keys = [key for key, _ in self._jobs.items()]
        await self._loop.run(keys, lambda key: self._reconcile(key, fence), self._refresh, self._settled)

    async def _refresh(self) -> None:
        await self._jobs.sync()
        await self._instances.sync()

    async def _reconcile(self, key: str, fence: Expect) -> float | None:
        """Do what is to be done with one job now; when to look again, if nothing changes before."""
        record = self._jobs.get(key)
        if record is None:
            return None
        plan = self._decide(record, decisions.MAX_CREATES)
        try:
            await self._write(record, plan, fence)
        except errors.TooLarge:
            # Large specs: one at a time fits, since a job of one was taken.
            plan = self._decide(record, 1)
            await self._write(record, plan, fence)
        return plan.wake_at

    def _decide(self, record: JobRecord, max_creates: int) -> JobPlan:
        tries = [known.value for known in self._instances.index.of_owner(OwnerKind.JOB, record.value.id)]
        return decisions.decide(record.value, tries, self._clock.now(), self._pauses, max_creates=max_creates)

    async def _write(self, record: JobRecord, plan: JobPlan, fence: Expect) -> None:
        before, now = record.value, self._clock.now()
        key = job_key(before.namespace, before.name)
        ops: list[Op] = []
        expect = [self._jobs.expect(key, record)]
        for new in plan.creates:
            instance = new_try(plan.job, new, InstanceId(self._new_id(now)), now)
            ops += self._writer.ops(transitions.create(instance, actor="skerry"))
            expect.append(self._instances.expect(instance.id, None))
        endings = [(each, DesiredStatus.STOPPED) for each in plan.stops]
        endings += [(each, DesiredStatus.DESTROYED) for each in plan.destroys]
        for instance, desired in endings:
            ops += self._end(instance, desired, now)
            expect.append(self._instances.expect(instance.id, self._instances.get(instance.id)))
        for instance in plan.releases:
            ops += self._writer.ops(transitions.release(instance))
            expect.append(self._instances.expect(instance.id, self._instances.get(instance.id)))
        touches_instances = bool(ops)
        is_changed = plan.job != before or plan.is_removed
        if is_changed:
            ops.append(self._jobs.delete(key) if plan.is_removed else self._jobs.put(key, plan.job))
        ops += self._event_ops(plan)
        if not ops:
            return
        revision = await fencing.commit(self._store, ops, expect, fence)
        if touches_instances:
            await self._instances.wait_for_change(revision)
        if is_changed:
            await self._jobs.wait_for_change(revision)
        TRIES.inc(len(plan.creates))

    def _end(self, instance: Instance, desired: DesiredStatus, now: float) -> Sequence[Op]:
        step = transitions.set_desired(instance, desired, at=now, actor="skerry")
        if desired is DesiredStatus.STOPPED:
            # It is not started again, and when it has stopped others may have its resources.
            step = transitions.combine(step, transitions.retire(step.after if step else instance, at=now))
        return () if step is None else self._writer.ops(step)

    def _event_ops(self, plan: JobPlan) -> list[Op]:
        job = plan.job
        subject = self._jobs.key(job_key(job.namespace, job.name))
        return [
            self._events.put(
                f"job.{event.kind}",
                subject,
                actor="skerry",
                reason=event.reason,
                request_id=job.request_id,
                **event.data,
            )
            for event in plan.events
        ]

    async def _destroy_orphans(self, fence: Expect) -> None:
        """Tries of a job that is not there any more, as after a store was put back to a backup."""
        index = self._instances.index
        for id in index.owner_ids(OwnerKind.JOB):
            if self._jobs.key_of(JobId(id)) is not None:
                continue
            for known in index.of_owner(OwnerKind.JOB, id):
                await self._destroy_orphan(known, fence)

    async def _destroy_orphan(self, known: InstanceRecord, fence: Expect) -> None:
        try:
            await self._writer.change(
                known.value.id,
                lambda record: transitions.set_desired(
                    record.value, DesiredStatus.DESTROYED, at=self._clock.now(), actor="skerry"
                ),
                fence=fence,
            )
        except errors.NotFound:
            pass
        except errors.Unavailable as error:
            log.warning("jobs.interrupted", instance=known.value.id, error=error.message)

    def _hear(self, changes: Sequence[RecordChange[Job]]) -> None:
        for key, _, after in changes:
            if after is not None:
                self._loop.add(key)

    def _hear_of_instance(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        known = after or before
        owner = known.value.owner if known is not None else None
        if owner is None or owner.kind is not OwnerKind.JOB:
            return
        if (key := self._jobs.key_of(JobId(owner.id))) is not None:
            self._loop.add(key)


def new_try(job: Job, new: NewTry, id: InstanceId, now: float) -> Instance:
    """The instance of a try that is made now."""
    spec = decisions.try_spec(job, new.index, new.attempt)
    return Instance(
        id=id,
        spec=spec,
        created_at=now,
        observed=ObservedState(InstanceStatus.SCHEDULING, now, "waits for a node"),
        namespace=job.namespace,
        request_id=job.request_id,
        owner=InstanceOwner(OwnerKind.JOB, job.id, job.name, index=new.index, attempt=new.attempt),
    )

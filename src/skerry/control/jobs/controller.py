"""The job controller: on the leader, it writes what `decisions` plans for each job, with its tries.

A job is reconciled when it or one of its tries changes, and at the times that a plan names. A plan is written
in one transaction, under the leader's fence, which expects the job's record as it was read: no try is made
twice, and none of a job that has changed. Every try was created in a transaction that wrote the record, so
that a table of instances that is as new as the record has them all; no other is good enough to create more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog

from skerry.control.controller_loop import ControllerLoop, settled_at_once
from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.instances import transitions
from skerry.control.instances.writer import TransitionWriter
from skerry.control.jobs import decisions
from skerry.control.jobs.decisions import JobPlan, NewTry, RetryPauses
from skerry.control.jobs.table import JobRecord, JobTable
from skerry.control.leadership.election import LeaderElection
from skerry.control.named_table import key_of
from skerry.control.namespaces.quotas import NamespaceQuotas
from skerry.control.namespaces.usage import spec_use
from skerry.kit import metrics, ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import InstanceId, Namespace
from skerry.model.jobs import Job
from skerry.model.settings import FleetSettings
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceOwner, ObservedState, OwnerKind
from skerry.store import fencing
from skerry.store.protocol import Expect, Op, Store

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
        """Nothing is decided before `settled` returns, which is called before every decision."""
        self._store = store
        self._events = events
        self._clock = clock
        self._pauses = RetryPauses(settings.job_retry_base_s, settings.job_retry_cap_s)
        self._jobs = jobs
        self._instances = instances
        self._settled = settled
        self._new_id = new_id
        self._writer = TransitionWriter(events, instances)
        self._loop = ControllerLoop("jobs", clock, jobs, instances, settled=settled)
        self._quotas: NamespaceQuotas | None = None
        instances.listen(self._instance_changed)

    def follow_quotas(self, quotas: NamespaceQuotas) -> None:
        """Plan no tries that `quotas` refuse; without this, the store refuses them."""
        self._quotas = quotas
        quotas.listen(self._quota_changed)

    async def run(self, leader: LeaderElection) -> None:
        """For ever: decide while `leader` leads. The tables must be running."""
        await self._loop.ready()
        await leader.run_while_leading("jobs", self.lead)

    async def lead(self, fence: Expect) -> None:
        """Decide for ever, as the leader."""
        # Transactions of the leader before are in the store now, or never will be.
        await self._loop.refresh()
        await self._settled()
        await self._destroy_orphans(fence)
        await self._loop.run_each(partial(self._reconcile, fence))

    async def _reconcile(self, fence: Expect, key: str) -> float | None:
        """Do what is to be done about one job now; returns when to do so again if nothing changes before."""
        record = self._jobs.get(key)
        if record is None:
            return None
        plan = self._decide(record, decisions.MAX_CREATES)
        if plan.creates and record.value.tries and self._instances.revision < record.revision:
            # The record may have come before the tries of a transaction whose result was not known here.
            await self._instances.wait_for_revision(record.revision)
            plan = self._decide(record, decisions.MAX_CREATES)
        try:
            await self._write(record, plan, fence)
        except errors.QuotaExceeded as error:
            # What others use was not known here when it was decided, and is now.
            raise errors.Conflict(error.message) from None
        except errors.TooLarge:
            # Large specs: one at a time fits, since a job of one was taken.
            plan = self._decide(record, 1)
            await self._write(record, plan, fence)
        return plan.wake_at

    def _decide(self, record: JobRecord, max_creates: int) -> JobPlan:
        tries = [known.value for known in self._instances.index.of_owner(OwnerKind.JOB, record.value.id)]
        job = record.value

        def refusal(after: int) -> str:
            if self._quotas is None:
                return ""
            one = spec_use(job.spec.template)
            return self._quotas.refusal(job.namespace, one, one * -after)

        return decisions.decide(
            job, tries, self._clock.now(), self._pauses, max_creates=max_creates, refusal=refusal
        )

    async def _write(self, record: JobRecord, plan: JobPlan, fence: Expect) -> None:
        before, now = record.value, self._clock.now()
        key = key_of(before)
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
        subject = self._jobs.subject(job)
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
        """Destroy tries of a job that does not exist, as after a restore of the store."""
        index = self._instances.index
        for id in index.owner_ids(OwnerKind.JOB):
            if self._jobs.key_of_id(id) is not None:
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

    def _quota_changed(self, namespace: Namespace) -> None:
        """There may be room in a namespace for tries that were left out."""
        for key, record in self._jobs.items(f"{namespace}/"):
            if record.value.quota_message:
                self._loop.add(key)

    def _instance_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        known = after or before
        owner = known.value.owner if known is not None else None
        if owner is None or owner.kind is not OwnerKind.JOB:
            return
        if (key := self._jobs.key_of_id(owner.id)) is not None:
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

"""Jobs as callers see them: requests made durable, and what is known told from memory.

A request is acknowledged when the store has it. Nothing here makes or stops tries: that does whichever
server leads (`skerry.control.jobs.controller`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from skerry.control import idempotency, paging
from skerry.control.events.log import EventLog
from skerry.control.idempotency import IdempotencyTable, IdempotentRequest
from skerry.control.instance_index import InstanceTable, age_key_at
from skerry.control.jobs import decisions
from skerry.control.jobs.table import JobRecord, JobTable, job_key
from skerry.control.paging import ListPage
from skerry.control.workloads.registry import check_may_create, check_size, check_space
from skerry.kit import logs, ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, JobId, Namespace, ScheduleId
from skerry.model.jobs import Job, JobSpec, JobStatus
from skerry.model.workloads import Instance, OwnerKind, check_granted
from skerry.store.protocol import Op, Put, Store
from skerry.store.tables.table import Write

MAX_JOBS = 100_000


class JobRegistry:
    """The jobs of one cloud."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        jobs: JobTable,
        instances: InstanceTable,
        new_id: Callable[[float], str] = ulid.new_id,
    ) -> None:
        self._events = events
        self._clock = clock
        self._table = jobs
        self._instances = instances.index
        self._new_id = new_id
        self._idempotency = IdempotencyTable(store, clock)

    async def create(
        self,
        name: str,
        spec: JobSpec,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
        idempotency_key: str | None = None,
    ) -> tuple[Job, bool]:
        """A job of this name, and whether it is new.

        The same name with the same spec, or the same key with the same request, gives the one that is there;
        the same name with another spec raises `AlreadyExists`.
        """
        check_may_create(namespace, actor)
        check_space()
        check_spec(name, spec)
        request = (
            IdempotentRequest.of(idempotency_key, actor, namespace, "job", name, spec)
            if idempotency_key
            else None
        )
        key = job_key(namespace, name)
        while True:
            if made := await self._idempotency.recall(request):
                again = await self._table.read(key)
                if again is None or again.value.id != made:
                    raise idempotency.created_then_deleted("job", made)
                return again.value, False
            if there := await self._table.read(key):
                return _same(there.value, spec), False
            if len(self._table) >= MAX_JOBS:
                raise errors.TooLarge(f"there are {MAX_JOBS} jobs, and no more are taken; delete some")
            now = self._clock.now()
            job = Job(
                JobId(self._new_id(now)),
                name,
                spec,
                now,
                namespace=namespace,
                request_id=logs.request_id(),
            )
            puts, expect = await self._idempotency.put(request, job.id)
            try:
                await self._table.commit(
                    [*created_ops(self._table, self._events, job, actor=actor), *puts],
                    [self._table.expect(key, None), *expect],
                )
            except errors.Conflict:
                continue  # somebody was quicker with the name or the key; reading again shows which
            return job, True

    def get(self, name: str, namespace: Namespace | None = None) -> Job:
        return self.find(name, namespace).value

    def find(self, name_or_id: str, namespace: Namespace | None = None) -> JobRecord:
        """The job of that name, or else of that id, in a namespace; without one, a name in the default."""
        record = self._table.get(job_key(namespace or DEFAULT_NAMESPACE, name_or_id))
        if record is None:
            record = self._table.by_id(JobId(name_or_id))
        if record is None or namespace not in (None, record.value.namespace):
            raise unknown_job(name_or_id, namespace)
        return record

    async def read(self, name_or_id: str, namespace: Namespace | None = None) -> JobRecord:
        """`find`, also of one that another server has just made."""
        try:
            return self.find(name_or_id, namespace)
        except errors.NotFound:
            await self._table.sync()
            return self.find(name_or_id, namespace)

    def tries(self, job: Job) -> Sequence[Instance]:
        """Its tries in the order in which they were made."""
        return decisions.in_order(known.value for known in self._instances.of_owner(OwnerKind.JOB, job.id))

    def count_active(self, job: Job) -> int:
        """Its tries that run or wait for a node."""
        if job.is_over:
            return 0
        return sum(
            decisions.is_live(known.value) for known in self._instances.of_owner(OwnerKind.JOB, job.id)
        )

    def list(
        self,
        *,
        namespace: Namespace | None = None,
        schedule: ScheduleId | None = None,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
    ) -> ListPage[Job]:
        """Jobs by age and id, of all namespaces if none is given."""
        return paging.paginate_sorted(
            (
                job
                for job in self._table.values()
                if namespace in (None, job.namespace) and schedule in (None, job.schedule)
            ),
            lambda job: age_key_at(job.created_at, job.id),
            limit=limit,
            offset=offset,
            cursor=cursor,
        )

    async def cancel(self, name: str, *, actor: str, namespace: Namespace | None = None) -> Job:
        """End it now: tries that run are stopped, and no others made. One that is over stays as it is."""

        def decide(record: JobRecord) -> Write[Job] | None:
            job = record.value
            if job.is_over or job.status is JobStatus.DELETING:
                return None
            return cancelled(
                self._table,
                self._events,
                job,
                f"cancelled by {actor}",
                at=self._clock.now(),
                actor=actor,
                request_id=logs.request_id(),
            )

        return await self._update(name, namespace, decide)

    async def delete(self, name: str, *, actor: str, namespace: Namespace | None = None) -> Job:
        """Delete it, its tries and their logs; a job that runs ends by that. It is there, as DELETING, until
        its nodes have removed the tries."""

        def decide(record: JobRecord) -> Write[Job] | None:
            job = record.value
            if job.status is JobStatus.DELETING:
                return None
            request_id = logs.request_id()
            event = self._events.put(
                "job.deleted", self._key(job), actor=actor, request_id=request_id, name=job.name
            )
            return Write(replace(job, status=JobStatus.DELETING, request_id=request_id), [event])

        return await self._update(name, namespace, decide)

    async def _update(
        self, name: str, namespace: Namespace | None, decide: Callable[[JobRecord], Write[Job] | None]
    ) -> Job:
        job = (await self.read(name, namespace)).value
        return await self._table.update(
            job_key(job.namespace, job.name), decide, missing=unknown_job(name, namespace)
        )

    def _key(self, job: Job) -> str:
        return self._table.key(job_key(job.namespace, job.name))


def created_ops(table: JobTable, events: EventLog, job: Job, *, actor: str) -> list[Op]:
    """What makes a job: its record and the event."""
    key = job_key(job.namespace, job.name)
    event = events.put(
        "job.created",
        table.key(key),
        actor=actor,
        request_id=job.request_id,
        name=job.name,
        namespace=job.namespace,
    )
    return [table.put(key, job), event]


def cancelled(
    table: JobTable,
    events: EventLog,
    job: Job,
    reason: str,
    *,
    at: float,
    actor: str,
    request_id: str = "",
) -> Write[Job]:
    """What ends a job before it is done."""
    event: Put = events.put(
        "job.cancelled",
        table.key(job_key(job.namespace, job.name)),
        actor=actor,
        reason=reason,
        request_id=request_id,
    )
    after = job.end(JobStatus.CANCELLED, reason, at)
    return Write(replace(after, request_id=request_id), [event])


def check_spec(name: str, spec: JobSpec) -> None:
    """Raise unless jobs of this name and spec can be made, and their tries."""
    check_size(spec.template)
    check_granted(spec.template)
    decisions.try_spec(Job(JobId("checked"), name, spec, 0.0), 0, 0)


def unknown_job(name: str, namespace: Namespace | None = None) -> errors.NotFound:
    within, option = (f" in the namespace {namespace!r}", f" -n {namespace}") if namespace else ("", "")
    return errors.NotFound(
        f"there is no job {name[:128]!r}{within}; `skerry job list{option}` lists those there are"
    )


def _same(there: Job, spec: JobSpec) -> Job:
    if there.status is JobStatus.DELETING:
        raise errors.AlreadyExists(
            f"job {there.name!r} is being deleted; make it again when it is gone, or choose another name"
        )
    if there.spec != spec:
        raise errors.AlreadyExists(
            f"job {there.name!r} exists with another spec; choose another name, or delete it first"
        )
    return there

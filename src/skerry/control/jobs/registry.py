"""The registry of jobs: it takes requests durably, and answers reads from memory.

A request is acknowledged when the store has it. Nothing here makes or stops tries: the leader does
(`skerry.control.jobs.controller`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.idempotency import IdempotencyTable, IdempotentRequest
from skerry.control.instance_index import InstanceTable
from skerry.control.jobs import decisions
from skerry.control.jobs.table import JobRecord, JobTable
from skerry.control.named_table import key_of
from skerry.control.paging import ListPage
from skerry.control.workloads.mount_checks import MountChecks, UncheckedMounts
from skerry.control.workloads.registry import check_may_create, check_size, check_space
from skerry.kit import logs, ulid
from skerry.kit.clock import Clock
from skerry.model import errors, secret_versions
from skerry.model.ids import DEFAULT_NAMESPACE, JobId, Namespace, ScheduleId
from skerry.model.jobs import Job, JobSpec, JobStatus
from skerry.model.namespace_scope import ListedNamespaces
from skerry.model.secret_versions import NO_SECRETS, SecretVersions
from skerry.model.workloads import Instance, OwnerKind, check_granted, check_no_templates
from skerry.store.protocol import Put, Store
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
        secrets: SecretVersions = NO_SECRETS,
        mounts: MountChecks = UncheckedMounts(),  # noqa: B008 - it has no state
    ) -> None:
        self._secrets = secrets
        self._mounts = mounts
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

        The same name with the same spec, or the same key with the same request, returns the existing one; the
        same name with another spec raises `AlreadyExists`.
        """
        check_may_create(namespace, actor)
        check_space()
        check_spec(name, spec)
        await self._mounts.check_mounts(spec.template, namespace)
        await self._secrets.catch_up(namespace, spec.template.secrets)
        given = spec
        spec = replace(spec, template=secret_versions.settle(spec.template, namespace, self._secrets))
        now = self._clock.now()
        job = Job(
            JobId(self._new_id(now)), name, spec, now, namespace=namespace, request_id=logs.request_id()
        )
        return await self._table.create(
            job,
            [created_event(self._table, self._events, job, actor=actor)],
            IdempotentRequest.of(idempotency_key, actor, namespace, "job", name, given),
            self._idempotency,
            check_existing=lambda existing: _check_same(existing, spec),
            limit=MAX_JOBS,
        )

    def get(self, name: str, namespace: Namespace | None = None) -> Job:
        return self.find(name, namespace).value

    def find(self, name_or_id: str, namespace: Namespace | None = None) -> JobRecord:
        """The job of that name, or else of that id, in a namespace; without one, a name in the default."""
        record = self._table.by_name(name_or_id, namespace) or self._table.by_id(name_or_id)
        if record is None or namespace not in (None, record.value.namespace):
            raise self._table.unknown(name_or_id, namespace)
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
        namespace: ListedNamespaces = None,
        schedule: ScheduleId | None = None,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
    ) -> ListPage[Job]:
        """Jobs by age and id, of all namespaces if none is given."""
        page = self._table.list_page(
            namespace,
            limit=limit,
            offset=offset,
            cursor=cursor,
            matches=lambda job: schedule in (None, job.schedule),
        )
        return page.map(lambda record: record.value)

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
        """Delete it, its tries and their logs; a running job ends. It is DELETING until its nodes have
        removed the tries."""

        def decide(record: JobRecord) -> Write[Job] | None:
            job = record.value
            if job.status is JobStatus.DELETING:
                return None
            request_id = logs.request_id()
            event = self._events.put(
                "job.deleted", self._table.subject(job), actor=actor, request_id=request_id, name=job.name
            )
            return Write(replace(job, status=JobStatus.DELETING, request_id=request_id), [event])

        return await self._update(name, namespace, decide)

    async def _update(
        self, name: str, namespace: Namespace | None, decide: Callable[[JobRecord], Write[Job] | None]
    ) -> Job:
        job = (await self.read(name, namespace)).value
        return await self._table.update(key_of(job), decide, missing=self._table.unknown(name, namespace))


def created_event(table: JobTable, events: EventLog, job: Job, *, actor: str) -> Put:
    """The event of a new job."""
    return events.put(
        "job.created",
        table.subject(job),
        actor=actor,
        request_id=job.request_id,
        name=job.name,
        namespace=job.namespace,
    )


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
    event = events.put(
        "job.cancelled",
        table.subject(job),
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
    check_no_templates(spec.template)
    decisions.try_spec(Job(JobId("checked"), name, spec, 0.0), 0, 0)


def _check_same(existing: Job, spec: JobSpec) -> None:
    if existing.status is JobStatus.DELETING:
        raise errors.AlreadyExists(
            f"job {existing.name!r} is being deleted; create it again after that, or choose another name"
        )
    # Versions of secrets are the server's: which there are now does not matter.
    given, present = (
        replace(one, template=secret_versions.without_versions(one.template)) for one in (spec, existing.spec)
    )
    if given != present:
        raise errors.AlreadyExists(
            f"job {existing.name!r} exists with another spec; choose another name, or delete it first"
        )

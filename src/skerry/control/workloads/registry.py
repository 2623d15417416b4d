"""Workloads: templates in versions, under names that are unique in their namespace.

A name is a key of its own, written in the same transaction as the workload, so that two cannot have it. What
a new version or a deletion means for instances is only written down here; `skerry.control.placement.rollout`
does it, on whichever server leads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from skerry.control import idempotency, paging
from skerry.control.events.log import EventLog
from skerry.control.idempotency import IdempotencyTable, IdempotentRequest
from skerry.control.instance_index import InstanceTable, age_key_at
from skerry.control.paging import ListPage
from skerry.kit import disk_reserve, json_codec, logs, ulid
from skerry.kit.clock import Clock
from skerry.model import errors, ids, secret_versions
from skerry.model.callers import MARKET
from skerry.model.ids import DEFAULT_NAMESPACE, MARKET_NAMESPACE, Namespace, WorkloadId
from skerry.model.namespace_scope import ListedNamespaces, scope_of
from skerry.model.secret_versions import NO_SECRETS, SecretVersions
from skerry.model.statuses import DesiredStatus
from skerry.model.workloads import (
    Instance,
    InstanceSpec,
    RolloutStrategy,
    Workload,
    check_granted,
    check_no_templates,
)
from skerry.store.protocol import ABSENT, Delete, Expect, Op, Put, Store
from skerry.store.tables.table import Record, RecordChange, Table, Write, json_of

PREFIX = "workload/"
_NAMES = "workload-name/"

# An instance that leaves a node has two specs in its record, and both must fit in one value of the store.
MAX_SPEC = 256 * 1024

WorkloadRecord = Record[Workload]
WorkloadListener = Callable[[WorkloadRecord | None, WorkloadRecord | None], None]


def name_key(namespace: Namespace, name: str) -> str:
    """Of a workload's name: which workload has it, in that namespace.

    Names have no slash, so no two of these are the same; those of the default namespace are as they were
    before there were others.
    """
    return _NAMES + (name if namespace == DEFAULT_NAMESPACE else f"{namespace}/{name}")


class WorkloadRegistry:
    """The workloads of one cloud."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        instances: InstanceTable,
        secrets: SecretVersions = NO_SECRETS,
    ) -> None:
        self.secrets = secrets
        self._store = store
        self._events = events
        self._clock = clock
        self._instances = instances.index
        self._idempotency = IdempotencyTable(store, clock)
        self.table = Table(store, PREFIX, json_of(Workload))
        self.table.subscribe(self._records_changed)
        self._by_name: dict[tuple[Namespace, str], WorkloadId] = {}

    async def run(self) -> None:
        """Follow the store for ever."""
        await self.table.run()

    async def ready(self) -> None:
        await self.table.ready()

    async def create(
        self,
        spec: InstanceSpec,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
        id: str | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[Workload, bool]:
        """A workload of this spec, and whether it is new.

        The same id with the same spec, or the same key with the same request, returns the existing one; an id
        or name that is taken raises `AlreadyExists`.
        """
        check_may_create(namespace, actor)
        check_size(spec)
        check_granted(spec)
        check_no_templates(spec)
        request = IdempotentRequest.of(idempotency_key, actor, namespace, "workload", spec, id)
        await self.secrets.catch_up(namespace, spec.secrets)
        spec = secret_versions.settle(spec, namespace, self.secrets)
        name = name_key(namespace, spec.name)
        while True:
            if created := await self._idempotency.recorded_id(request):
                again = await self.table.read(created)
                if again is None:
                    raise idempotency.created_then_deleted("workload", created)
                return again.value, False
            if id is not None and (existing := await self.table.read(ids.check_id(id))):
                if existing.value.namespace != namespace:
                    raise exists_elsewhere("workload", existing.value)
                if not _is_same(existing.value.spec, spec) or existing.value.is_deleting:
                    raise errors.AlreadyExists(f"workload {id} exists with another spec; change it instead")
                return existing.value, False
            if taken := await self._store.get(name):
                raise errors.AlreadyExists(
                    f"the name {spec.name!r} belongs to workload {taken.value.decode()}; "
                    "change that, or choose another name"
                )
            now = self._clock.now()
            workload = Workload(WorkloadId(id or ulid.new_id(now)), spec, now, namespace=namespace)
            puts, expect = await self._idempotency.put(request, workload.id)
            key = self.table.key(workload.id)
            try:
                await self.table.commit(
                    [
                        self.table.put(workload.id, workload),
                        Put(name, workload.id.encode()),
                        self._events.put(
                            "workload.created",
                            key,
                            actor=actor,
                            request_id=logs.request_id(),
                            name=spec.name,
                            namespace=namespace,
                        ),
                        *puts,
                    ],
                    [Expect(key, ABSENT), Expect(name, ABSENT), *expect],
                )
            except errors.Conflict:
                continue  # somebody was quicker with the id, the name or the key; reading again shows which
            return workload, True

    def get(self, id_or_name: str, namespace: Namespace | None = None) -> Workload:
        return self.find(id_or_name, namespace).value

    def revision(self, id_or_name: str, namespace: Namespace | None = None) -> int:
        """Changes with the workload: what an ETag is made of."""
        return self.find(id_or_name, namespace).revision

    def find(self, id_or_name: str, namespace: Namespace | None = None) -> WorkloadRecord:
        """The workload of that id, or else of that name, in a namespace.

        Without one, an id is looked for in all and a name in the default one.
        """
        record = self.table.get(id_or_name)
        if record is None or not _is_in(record, namespace):
            by_name = self._by_name.get((namespace or DEFAULT_NAMESPACE, id_or_name), "")
            record = self.table.get(by_name)
        return _require(record, id_or_name, namespace)

    async def read(self, id_or_name: str, namespace: Namespace | None = None) -> WorkloadRecord:
        """`find` in the store itself, for when the cache is known to be behind."""
        record = await self.table.read(ids.check_id(id_or_name, "workload"))
        if record is None or not _is_in(record, namespace):
            name = await self._store.get(name_key(namespace or DEFAULT_NAMESPACE, id_or_name))
            record = await self.table.read(name.value.decode()) if name else None
        return _require(record, id_or_name, namespace)

    async def template(self, id_or_name: str, namespace: Namespace) -> WorkloadRecord:
        """What instances in `namespace` are made from; `Unprocessable` if that is the id of one elsewhere."""
        with suppress(errors.NotFound):
            return self.find(id_or_name, namespace)
        with suppress(errors.NotFound):
            return await self.read(id_or_name, namespace)  # perhaps another server has just made it
        record = _require(await self.table.read(id_or_name), id_or_name, namespace)
        check_shared(record.value, namespace)
        return record

    def records(self) -> Sequence[WorkloadRecord]:
        """All, also those that are being deleted."""
        return [record for _, record in self.table.items()]

    def list(
        self,
        *,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
        namespace: ListedNamespaces = None,
    ) -> ListPage[Workload]:
        """Workloads by age and id, of all namespaces if none is given."""
        scope = scope_of(namespace)
        existing = sorted(
            (
                record.value
                for record in self.records()
                if not record.value.is_deleting and scope.admits(record.value.namespace)
            ),
            key=_position,
        )
        return paging.paginate(
            lambda position: (one for one in existing if position is None or _position(one) > position),
            _position,
            total=len(existing),
            limit=limit,
            offset=offset,
            cursor=cursor,
        )

    async def change(
        self,
        id_or_name: str,
        merge: Callable[[InstanceSpec], InstanceSpec],
        *,
        actor: str,
        namespace: Namespace | None = None,
        if_match: int | None = None,
        rollout: RolloutStrategy = RolloutStrategy.NONE,
        settles: bool = True,
    ) -> Workload:
        """The next version, with the spec that `merge` makes of this one; none if that is equal. Without
        `settles` the versions of its secrets are as `merge` says."""
        check_space()
        record = self.find(id_or_name, namespace)
        while True:
            check_match(record.revision, if_match)
            before, spec = record.value, merge(record.value.spec)
            check_size(spec)
            check_granted(spec, before.spec)
            check_no_templates(spec)
            if settles:
                spec = secret_versions.settle(spec, before.namespace, self.secrets, before.spec)
            if spec.kind is not before.spec.kind:
                raise errors.Invalid("the type of a workload cannot change", field="type")
            if spec == before.spec and rollout is before.rollout:
                return before
            version = before.version + (spec != before.spec)
            request_id = logs.request_id()
            after = replace(before, spec=spec, version=version, rollout=rollout, request_id=request_id)
            event = self._events.put(
                "workload.changed",
                self.table.key(before.id),
                actor=actor,
                request_id=request_id,
                version=str(version),
                rollout=rollout,
                namespace=before.namespace,
            )
            ops: list[Op] = [self.table.put(before.id, after), event]
            expect = [self.table.expect(before.id, record)]
            if spec.name != before.spec.name:
                old, new = (name_key(before.namespace, one.name) for one in (before.spec, spec))
                ops += [Delete(old), Put(new, before.id.encode())]
                expect.append(Expect(new, ABSENT))
                if await self._store.get(new):
                    raise errors.AlreadyExists(f"the name {spec.name!r} is taken; choose another")
            try:
                await self.table.commit(ops, expect)
            except errors.Conflict:
                record = await self.read(before.id)
                continue
            return after

    async def delete(
        self, id_or_name: str, *, actor: str, namespace: Namespace | None = None, cascade: bool = True
    ) -> Workload:
        """Delete it, and all its instances; without `cascade`, `Conflict` while there are any.

        One that is going already may be deleted again, by its id.
        """
        existing = self.table.get(id_or_name)
        if existing is not None and existing.value.is_deleting and _is_in(existing, namespace):
            return existing.value

        def decide(record: WorkloadRecord) -> Write[Workload]:
            workload = _require(record, id_or_name, namespace).value
            left = [one for one in self._instances.of_workload(workload.id) if _is_wanted(one)]
            if left and not cascade:
                raise errors.Conflict(
                    f"{len(left)} instances of workload {workload.spec.name} are there; "
                    "delete them first, or delete it with them (cascade)"
                )
            request_id = logs.request_id()
            event = self._events.put(
                "workload.deleted",
                self.table.key(workload.id),
                actor=actor,
                request_id=request_id,
                name=workload.spec.name,
                namespace=workload.namespace,
            )
            name = name_key(workload.namespace, workload.spec.name)
            deleting = replace(workload, is_deleting=True, request_id=request_id)
            return Write(deleting, [Delete(name), event], is_delete=not cascade)

        id = self.find(id_or_name, namespace).value.id
        deleted = await self.table.update(id, decide, missing=unknown_workload(id_or_name, namespace))
        return replace(deleted, is_deleting=False)

    async def forget(self, record: WorkloadRecord, fence: Expect) -> None:
        """Remove its record: all its instances are to be destroyed."""
        id = record.value.id
        await self.table.commit([self.table.delete(id)], [self.table.expect(id, record)], fence)

    def listen(self, changed: WorkloadListener) -> Callable[[], None]:
        """Call `changed` with every change from now on; the result ends that."""
        return self.table.listen(changed)

    def _records_changed(self, changes: Sequence[RecordChange[Workload]]) -> None:
        for _, before, after in changes:
            if before is not None and self._by_name.get(_name_of(before)) == before.value.id:
                del self._by_name[_name_of(before)]
            if after is not None and not after.value.is_deleting:
                self._by_name[_name_of(after)] = after.value.id


def check_space() -> None:
    """Raise `Unavailable` while the disk is full: what is left of its reserve is for stops and deletions."""
    if shortage := disk_reserve.shortage():
        raise errors.Unavailable(f"this server takes nothing new: {shortage}")


def check_size(spec: InstanceSpec) -> None:
    if len(json_codec.encode(spec)) > MAX_SPEC:
        raise errors.TooLarge(f"a spec takes at most {MAX_SPEC // 1024} KiB; shorten its environment")


def _is_same(existing: InstanceSpec, given: InstanceSpec) -> bool:
    """True if a user gave the same; versions of secrets are the server's."""
    return secret_versions.without_versions(existing) == secret_versions.without_versions(given)


def check_may_create(namespace: Namespace, actor: str) -> None:
    """Refuse to make anything where contracts have their cells, unless the market itself does."""
    if namespace == MARKET_NAMESPACE and actor != MARKET:
        raise errors.Forbidden(
            f"the namespace {MARKET_NAMESPACE!r} is for the cells of contracts, which the market makes; "
            "choose another"
        )


def check_match(revision: int, if_match: int | None) -> None:
    if if_match is not None and if_match != revision:
        raise errors.FailedPrecondition("it has changed since you read it; read it again, then decide anew")


def check_shared(workload: Workload, namespace: Namespace) -> None:
    """Raise unless instances in `namespace` can be made from it."""
    if workload.namespace != namespace:
        raise errors.Unprocessable(
            f"workload {workload.id} is in the namespace {workload.namespace!r}, and its instances must be, "
            f"too: make them there, or of a workload in {namespace!r}"
        )


def exists_elsewhere(noun: str, existing: Workload | Instance) -> errors.AlreadyExists:
    return errors.AlreadyExists(
        f"{noun} {existing.id} exists in another namespace; ids are unique in all namespaces, choose another"
    )


def unknown_workload(id_or_name: str, namespace: Namespace | None) -> errors.NotFound:
    within, option = (f" in the namespace {namespace!r}", f" -n {namespace}") if namespace else ("", "")
    return errors.NotFound(
        f"there is no workload {id_or_name[:128]!r}{within}; "
        f"`skerry get workloads{option}` lists those there are"
    )


def _require(record: WorkloadRecord | None, id_or_name: str, namespace: Namespace | None) -> WorkloadRecord:
    if record is None or record.value.is_deleting:
        raise unknown_workload(id_or_name, namespace)
    return record


def _is_in(record: WorkloadRecord, namespace: Namespace | None) -> bool:
    return namespace in (None, record.value.namespace)


def _name_of(record: WorkloadRecord) -> tuple[Namespace, str]:
    return record.value.namespace, record.value.spec.name


def _is_wanted(record: Record[Instance]) -> bool:
    return record.value.desired is not DesiredStatus.DESTROYED


def _position(workload: Workload) -> str:
    return age_key_at(workload.created_at, workload.id)

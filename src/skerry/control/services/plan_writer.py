"""Plans of services as operations of the store: the record, its revisions, its copies and the events in one.

Called by `skerry.control.services.controller`, which commits, those of several services together. A plan that
does not fit in one transaction is cut: what is left comes with the next plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.instances import transitions
from skerry.control.instances.transitions import InstanceTransition
from skerry.control.instances.writer import TransitionWriter
from skerry.control.named_table import key_of, key_of_name
from skerry.control.namespaces.usage import spec_use
from skerry.control.services.decisions import MAX_CREATED, NewCopy, ServicePlan
from skerry.control.services.rollouts import ServiceEvent
from skerry.control.services.tables import ServiceRecord, ServiceTables, revision_key
from skerry.control.volumes.table import VolumeTable
from skerry.control.volumes.templates import copy_mounts, template_volume
from skerry.kit import ulid
from skerry.model.ids import InstanceId, VolumeId
from skerry.model.namespaces import QuotaAmounts
from skerry.model.services import Service
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceOwner, ObservedState, OwnerKind
from skerry.store.protocol import MAX_OPS, MAX_TRANSACTION, Delete, Expect, Op, Put

# Of one transaction; the fence, the expectation of the service and those of quotas must fit beside.
_BYTES = MAX_TRANSACTION - 64 * 1024
_OPS = MAX_OPS - 8


@dataclass(slots=True)
class ServiceTransaction:
    """What is to be written for one plan, or the first part of it."""

    key: str  # of the service
    events: Sequence[ServiceEvent]
    ops: list[Op] = field(default_factory=list)
    expect: list[Expect] = field(default_factory=list)
    changes_service: bool = False
    changes_copies: bool = False
    size: int = 0
    is_whole: bool = True  # nothing of the plan is left for the next one
    wake_at: float | None = None  # as the plan says

    def add(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> bool:
        """Add these, if they fit."""
        size = sum(len(op.key) + (0 if isinstance(op, Delete) else len(op.value)) for op in ops)
        if self.ops and (len(self.ops) + len(ops) > _OPS or self.size + size > _BYTES):
            return False
        self.ops += ops
        self.expect += expect
        self.size += size
        return True


def batches(transactions: Sequence[ServiceTransaction]) -> Iterator[Sequence[ServiceTransaction]]:
    """As few as can each be written in one transaction of the store."""
    batch: list[ServiceTransaction] = []
    ops = expect = size = 0
    for one in transactions:
        ops, expect, size = ops + len(one.ops), expect + len(one.expect), size + one.size
        if batch and (ops > _OPS or expect > _OPS or size > _BYTES):
            yield batch
            batch, ops, expect, size = [], len(one.ops), len(one.expect), one.size
        batch.append(one)
    if batch:
        yield batch


class ServicePlanWriter:
    """Turns plans into transactions."""

    def __init__(
        self,
        events: EventLog,
        tables: ServiceTables,
        instance_table: InstanceTable,
        new_id: Callable[[float], str] = ulid.new_id,
    ) -> None:
        """`new_id` names a copy that is made at this time."""
        self._new_id = new_id
        self._volumes: VolumeTable | None = None
        self._events = events
        self._tables = tables
        self._instances = instance_table
        self._writer = TransitionWriter(events, instance_table)

    def follow_volumes(self, volumes: VolumeTable) -> None:
        """Create the volumes of templates there."""
        self._volumes = volumes

    def transaction(
        self, record: ServiceRecord, copies: Sequence[InstanceRecord], plan: ServicePlan, now: float
    ) -> ServiceTransaction:
        """What `plan` says about the service of `record` and its `copies`; no operations if nothing."""
        service = record.value
        made = ServiceTransaction(key_of(service), plan.events, wake_at=plan.wake_at)
        made.is_whole = len(plan.creates) < MAX_CREATED
        made.changes_service = plan.is_removed or _is_changed(plan, service)
        made.add(self._record_ops(service, plan))
        known = {copy.value.id: copy for copy in copies}
        created: set[str] = set()
        for step in self._transitions(plan, now):
            id = step.after.id
            ops, expect = self._volume_ops(service, step.after, created, now)
            ops += self._writer.ops(step)
            expect.append(self._instances.expect(id, known.get(id)))
            if not made.add(ops, expect):
                made.is_whole = False
                break
            made.changes_copies = True
        if made.ops:
            made.expect.append(self._tables.services.expect(made.key, record))
        return made

    def use_of(self, service: Service, new: NewCopy) -> QuotaAmounts:
        """What a new copy adds to its namespace, with the volumes of its templates that do not exist."""
        template = new.revision.template
        use = spec_use(template)
        if self._volumes is None or not template.mounts:
            return use
        for mount in copy_mounts(template.mounts, new.index):
            is_own = mount.is_volume and mount.is_exclusive
            if is_own and self._volumes.get(key_of_name(mount.source, service.namespace)) is None:
                use += QuotaAmounts(disk=mount.size, volumes=1)
        return use

    def _volume_ops(
        self, service: Service, copy: Instance, created: set[str], now: float
    ) -> tuple[list[Op], list[Expect]]:
        """The volumes of templates that a new copy needs and that do not exist."""
        ops: list[Op] = []
        expect: list[Expect] = []
        table = self._volumes
        if table is None or copy.node is not None or copy.desired is not DesiredStatus.RUNNING:
            return ops, expect
        for mount in copy.spec.mounts:
            key = key_of_name(mount.source, copy.namespace)
            if not (mount.is_volume and mount.is_exclusive) or key in created or table.get(key) is not None:
                continue
            created.add(key)
            volume = template_volume(VolumeId(self._new_id(now)), copy, mount, now)
            ops += [
                table.put(key, volume),
                table.event(
                    self._events, "created", volume, actor="skerry", reason=f"for service {service.name}"
                ),
            ]
            expect.append(table.expect(key, None))
        return ops, expect

    def _record_ops(self, before: Service, plan: ServicePlan) -> list[Op]:
        """The service itself, its revisions and its events."""
        services, revisions = self._tables.services, self._tables.revisions
        key = key_of(before)
        if plan.is_removed:
            numbers = [one.number for one in self._tables.revisions_of(before.id)]
            gone = [revisions.delete(revision_key(before.id, number)) for number in numbers]
            return [*gone, services.delete(key), self._event(before, ServiceEvent("removed", "", {}))]
        ops: list[Op] = [services.put(key, plan.service)] if _is_changed(plan, before) else []
        for number, outcome in plan.outcomes.items():
            assert number == before.target.number, "only what is being rolled out has an outcome"
            revision = replace(before.target, outcome=outcome)
            ops.append(revisions.put(revision_key(before.id, number), revision))
        return ops + [self._event(before, event) for event in plan.events]

    def _event(self, service: Service, event: ServiceEvent) -> Put:
        return self._events.put(
            f"service.{event.kind}",
            self._tables.services.subject(service),
            actor="skerry",
            reason=event.reason,
            request_id=service.request_id,
            **event.data,
        )

    def _transitions(self, plan: ServicePlan, now: float) -> Iterator[InstanceTransition]:
        for copy in plan.destroys:
            step = transitions.set_desired(copy, DesiredStatus.DESTROYED, at=now, actor="skerry")
            if step is not None:
                yield step.because_of(plan.service.request_id)
        for copy in plan.retires:
            yield transitions.retire(copy, at=now)
        for new in plan.creates:
            yield transitions.create(new_instance(plan.service, new, now, self._new_id), actor="skerry")


def _is_changed(plan: ServicePlan, before: Service) -> bool:
    return plan.service is not before and plan.service != before


def new_instance(
    service: Service, new: NewCopy, now: float, new_id: Callable[[float], str] = ulid.new_id
) -> Instance:
    """A new copy, which waits for a node."""
    template = new.revision.template
    spec = replace(
        template, name=f"{service.name}-{new.index}", mounts=copy_mounts(template.mounts, new.index)
    )
    number = new.revision.number
    return Instance(
        InstanceId(new_id(now)),
        spec,
        now,
        ObservedState(InstanceStatus.SCHEDULING, now, has_passed=not spec.decides_readiness),
        namespace=service.namespace,
        request_id=service.request_id,
        owner=InstanceOwner(OwnerKind.SERVICE, service.id, service.name, number, new.index, new.attempt),
    )

"""The registry of instances: it takes requests durably, and answers reads from memory.

A request is acknowledged when the store has it. Nothing here waits for a node: the leader places instances
(`skerry.control.placement.reconciler`), and nodes run them and report here. Node sessions read their orders
and changes from here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from skerry.control import idempotency, paging
from skerry.control.events.log import EventLog, StoredEvent
from skerry.control.idempotency import IdempotencyTable, IdempotentRequest
from skerry.control.instance_index import InstanceListener, InstanceRecord, InstanceTable, age_key
from skerry.control.instances import transitions, writer
from skerry.control.instances.readiness_metrics import ReadyCount
from skerry.control.instances.report_rules import ReportOutcome
from skerry.control.instances.reports import ReportProcessor
from skerry.control.instances.silence import with_liveness
from skerry.control.instances.transitions import InstanceTransition
from skerry.control.instances.writer import TransitionWriter
from skerry.control.namespaces.policies import OPEN_POLICIES, InstancePolicies
from skerry.control.nodes.conditions import NodeConditions
from skerry.control.paging import ListPage
from skerry.control.workloads.mount_checks import MountChecks, UncheckedMounts
from skerry.control.workloads.registry import (
    WorkloadRecord,
    WorkloadRegistry,
    check_match,
    check_may_create,
    check_shared,
    check_size,
    check_space,
    exists_elsewhere,
)
from skerry.kit import logs, ulid
from skerry.kit.clock import Clock
from skerry.model import errors, ids, secret_versions
from skerry.model.callers import MARKET
from skerry.model.ids import DEFAULT_NAMESPACE, InstanceId, Namespace, NodeId, WorkloadId
from skerry.model.namespace_scope import WHOLE_CLOUD, ListedNamespaces, NamespaceScope
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.resources import Resources
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import (
    Instance,
    InstanceSpec,
    ObservedState,
    WorkloadKind,
    check_granted,
    check_no_templates,
)
from skerry.schedule.results import NodeFeasibility
from skerry.store.protocol import Expect, Store

T = TypeVar("T")

_MAX_DUE = 256  # changes of status that a reader may be behind


class InstanceFilter(msgspec.Struct, frozen=True):
    """Which instances to list; fields that are left out match all."""

    kind: WorkloadKind | None = None
    states: frozenset[InstanceStatus] = frozenset()
    node: NodeId | None = None
    workload: WorkloadId | None = None
    name: str | None = None

    def matches(self, instance: Instance) -> bool:
        return (
            (self.kind is None or instance.spec.kind is self.kind)
            and (not self.states or instance.observed.status in self.states)
            and (self.node is None or instance.node == self.node)
            and (self.workload is None or instance.workload == self.workload)
            and (self.name is None or instance.spec.name == self.name)
        )


ANY = InstanceFilter()


class InstanceRegistry:
    """The instances of one cloud."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        *,
        instance_table: InstanceTable,
        workloads: WorkloadRegistry,
        conditions: NodeConditions,
        explain: Callable[[Instance], Sequence[NodeFeasibility]],
        policies: InstancePolicies = OPEN_POLICIES,
    ) -> None:
        self._secrets = workloads.secrets
        self._store = store
        self._events = events
        self._clock = clock
        self._table = instance_table
        self._index = instance_table.index
        self._workloads = workloads
        self._conditions = conditions
        self._explain = explain
        self._policies = policies
        self._mounts: MountChecks = UncheckedMounts()
        self._idempotency = IdempotencyTable(store, clock)
        self._writer = TransitionWriter(events, instance_table)
        self._reporter = ReportProcessor(self._writer, instance_table, clock)
        self._watches: dict[InstanceId, set[_InstanceWatch]] = {}
        self._removals: dict[InstanceId, set[asyncio.Event]] = {}
        instance_table.listen(self._notify_watches)
        instance_table.listen(ReadyCount().update)

    def follow_volumes(self, mounts: MountChecks) -> None:
        """Refuse specs that name volumes which do not exist."""
        self._mounts = mounts

    # What callers want

    async def create(
        self,
        what: InstanceSpec | str,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
        id: str | None = None,
        idempotency_key: str | None = None,
        fence: Expect | None = None,
    ) -> tuple[Instance, bool]:
        """An instance of a spec, or of the workload with that id or name; and whether it is new.

        The same id with the same spec or workload, or the same key with the same request, returns the
        existing one; the same id with another raises `AlreadyExists`. The workload must be in the same
        namespace (`Unprocessable`).
        """
        check_may_create(namespace, actor)
        if isinstance(what, InstanceSpec):
            check_size(what)
            check_granted(what)
            check_no_templates(what)
        request = IdempotentRequest.of(idempotency_key, actor, namespace, "instance", what, id)
        if isinstance(what, InstanceSpec):
            await self._secrets.catch_up(namespace, what.secrets)
            what = secret_versions.settle(what, namespace, self._secrets)
        workload = None if isinstance(what, InstanceSpec) else await self._workloads.template(what, namespace)
        spec = workload.value.spec if workload is not None else what
        assert isinstance(spec, InstanceSpec), "what is no spec names a workload"
        await self._mounts.check_mounts(spec, namespace)
        while True:
            if created := await self._idempotency.recorded_id(request):
                again = await self._table.read(created)
                if again is None:
                    raise idempotency.created_then_deleted("instance", created)
                return again.value, False
            if id is not None and (existing := await self._table.read(ids.check_id(id))):
                return _same(existing.value, what, workload, namespace), False
            instance = _new(
                id, what, workload, namespace, self._clock.now(), await self._first_generation(id)
            )
            puts, expect = await self._idempotency.put(request, instance.id)
            expect.append(self._table.expect(instance.id, None))
            if workload is not None:
                expect.append(self._workloads.table.expect(workload.value.id, workload))
            try:
                ops = self._writer.ops(transitions.create(instance, actor=actor))
                await self._table.commit([*ops, *puts], expect, fence)
            except errors.Conflict:
                if workload is not None:
                    workload = await self._workloads.read(workload.value.id, namespace)
                continue
            return instance, True

    async def start(
        self, id: str, *, actor: str, namespace: Namespace | None = None, fence: Expect | None = None
    ) -> Instance:
        """Desire it RUNNING; durable on return. With a namespace, `NotFound` unless it is there, as always
        here."""
        check_space()
        return await self._set_desired(id, DesiredStatus.RUNNING, actor, namespace=namespace, fence=fence)

    async def stop(self, id: str, *, actor: str, namespace: Namespace | None = None) -> Instance:
        """Desire it STOPPED. It keeps its node, its resources and its ports, so that it can be started
        again."""
        return await self._set_desired(id, DesiredStatus.STOPPED, actor, namespace=namespace)

    async def destroy(
        self,
        id: str,
        *,
        actor: str,
        namespace: Namespace | None = None,
        by_admin: bool = False,
        fence: Expect | None = None,
    ) -> Instance:
        """Desire it DESTROYED: DESTROYING until its node has removed it, TERMINATED if nothing is to be
        removed."""
        return await self._set_desired(
            id, DesiredStatus.DESTROYED, actor, namespace=namespace, by_admin=by_admin, fence=fence
        )

    async def change(
        self,
        id: str,
        *,
        actor: str,
        desired: DesiredStatus | None = None,
        merge: Callable[[InstanceSpec], InstanceSpec] | None = None,
        workload: str | None = None,
        if_match: int | None = None,
        namespace: Namespace | None = None,
    ) -> Instance:
        """Change the desired status, the spec (by `merge` of the present one) or the workload. While the disk
        is full, only a stop is accepted."""
        if merge is not None or workload is not None or desired is DesiredStatus.RUNNING:
            check_space()
        follow = None
        if workload is not None:
            namespace = (await self._read(id)).value.namespace
            follow = await self._workloads.template(workload, namespace)

        def decide(record: InstanceRecord) -> InstanceTransition | None:
            check_match(record.revision, if_match)
            instance = record.value
            spec, of, version = instance.spec, instance.workload, instance.version
            if follow is not None:
                check_shared(follow.value, instance.namespace)
                spec, of, version = follow.value.spec, follow.value.id, follow.value.version
            if merge is not None:
                before, spec = spec, merge(spec)
                check_size(spec)
                check_granted(spec, before)
                check_no_templates(spec)
                spec = secret_versions.settle(spec, instance.namespace, self._secrets, before)
            step = transitions.change_spec(instance, spec, workload=of, version=version, actor=actor)
            if step is not None and (owner := instance.owner) is not None:
                raise errors.FailedPrecondition(
                    f"instance {instance.id} is of the {owner.kind} {owner.name}, which says what it runs; "
                    f"change that {owner.kind} instead"
                )
            if desired is None:
                return step
            return transitions.combine(
                step,
                transitions.set_desired(
                    step.after if step else instance, desired, at=self._clock.now(), actor=actor
                ),
            )

        return await self._change(id, decide, actor, namespace=namespace)

    # What is known

    def get(self, id: str) -> Instance:
        record = self._table.get(id)
        if record is None:
            raise writer.unknown_instance(id)
        return self._with_liveness(record)

    async def read(self, id: str) -> Instance:
        """`get`, also of one that another server has just made."""
        return self._with_liveness(await self._read(id))

    async def check_in(self, namespace: Namespace, id: str) -> None:
        """Raise `NotFound` unless it is in that namespace; one elsewhere takes as long as one nowhere."""
        record = self._table.get(id)
        if record is None or record.value.namespace != namespace:
            record = await self._table.read(id)
        if record is None or record.value.namespace != namespace:
            raise writer.unknown_instance(id, namespace)

    def revision(self, id: str) -> int:
        """Changes with the instance: what an ETag is made of."""
        record = self._table.get(id)
        if record is None:
            raise writer.unknown_instance(id)
        return record.revision

    def usage(self, id: str) -> Resources:
        """What it used when its node last reported to this server; nothing if it did not."""
        return self._reporter.usage(InstanceId(id))

    def usages(self) -> Iterable[tuple[InstanceId, Resources]]:
        """What each instance used when its node last reported to this server, as far as it did."""
        return self._reporter.usages()

    def load(self, id: InstanceId) -> tuple[Resources | None, float | None]:
        """What it used, and the metric that it showed, as far as its node reported that to this server."""
        return self._reporter.load(id)

    def list(
        self,
        wanted: InstanceFilter = ANY,
        *,
        namespace: ListedNamespaces = None,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
    ) -> ListPage[Instance]:
        """Instances by age and id, of all namespaces if none is given."""

        def after(position: str | None) -> Iterator[InstanceRecord]:
            found = self._index.after(position, namespace)
            return found if wanted == ANY else (record for record in found if wanted.matches(record.value))

        return paging.paginate(
            lambda position: map(self._with_liveness, after(position)),
            age_key,
            total=self._index.count(namespace) if wanted == ANY else sum(1 for _ in after(None)),
            limit=limit,
            offset=offset,
            cursor=cursor,
        )

    async def events(self, id: str, *, reader: NamespaceScope = WHOLE_CLOUD) -> Sequence[StoredEvent]:
        """Its stored events, as `reader` may know of them; also those of a deleted instance."""
        events = await self._events.of(self._table.key(ids.check_id(id)), reader=reader)
        if not events and self._table.get(id) is None:
            raise writer.unknown_instance(id)
        return events

    def explain(self, id: str) -> Sequence[NodeFeasibility]:
        """The feasibility of every node for it."""
        return self._explain(self.get(id))

    async def watch(self, id: str, *, repeat_s: float | None = None) -> AsyncGenerator[Instance]:
        """The instance now and after each change; ends when it is over.

        Every status comes, in order; of several changes within one, the latest. With `repeat_s` it also comes
        that often while it is RUNNING, for its usage. Raises `Overloaded` for a reader that is too slow.
        """
        record = await self._read(id)
        watch = _InstanceWatch(record.value)
        with _filed(self._watches, record.value.id, watch):
            while True:
                latest = await watch.next(repeat_s)
                yield latest
                if latest.observed.status in TERMINAL:
                    return

    async def removed(self, id: str) -> None:
        """Wait until the instance is removed."""
        removal = asyncio.Event()
        with _filed(self._removals, InstanceId(id), removal):
            if self._table.get(id) is None and await self._table.read(id) is None:
                return
            await removal.wait()

    # For sessions with nodes

    def orders(self, node: NodeId) -> Sequence[InstanceOrder]:
        """All that a node is to have and to do."""
        return [self.order(record.value) for record in self._index.on_node(node)]

    def order(self, instance: Instance) -> InstanceOrder:
        """What its node is to do."""
        is_container = instance.spec.kind is WorkloadKind.CONTAINER
        if not is_container:
            return InstanceOrder.of(instance)
        return InstanceOrder.of(
            instance,
            self._policies.egress(instance.namespace, instance.spec.egress),
            is_isolated=self._policies.of(instance.namespace).is_isolated,
        )

    def follow_policies(self, changed: Callable[[InstanceRecord], None]) -> None:
        """Call `changed` with the instances of a namespace when its policy, and so their orders, changed."""

        def notify(namespace: Namespace) -> None:
            for record in list(self._index.after(None, namespace)):
                changed(record)

        self._policies.listen(notify)

    async def sync(self) -> None:
        """Wait until what is known includes everything that was durable when this was called.

        A whole set of orders is sent only after this: a node removes what is not in it.
        """
        await self._table.sync()
        await self._policies.sync()

    def listen(self, changed: InstanceListener) -> Callable[[], None]:
        """Call `changed(before, after)` with every change from now on; the result ends that."""
        return self._table.listen(changed)

    async def reported(
        self, node: NodeId | None, reports: Sequence[InstanceReport], *, actor: str = ""
    ) -> Sequence[ReportOutcome]:
        """Process reports of a node; one outcome per report, in their order.

        `node` is None if the reports are of `actor` and not of a node; generation 0 is that of the present
        copy.
        """
        return await self._reporter.take(node, reports, actor=actor)

    async def _first_generation(self, id: str | None) -> int:
        """The first generation of a new instance.

        An id that a caller chose may have been used before, and a node that was lost then may come back with
        a copy of that time, which must be the older one. Every copy costs a transaction, so the store's
        revision is higher than any generation before.
        """
        return 1 if id is None else await self._store.revision() + 1

    async def _read(self, id: str) -> InstanceRecord:
        record = self._table.get(id) or await self._table.read(id)  # perhaps another server has just made it
        if record is None:
            raise writer.unknown_instance(id)
        return record

    async def _set_desired(
        self,
        id: str,
        desired: DesiredStatus,
        actor: str,
        *,
        namespace: Namespace | None = None,
        by_admin: bool = False,
        fence: Expect | None = None,
    ) -> Instance:
        return await self._change(
            id,
            lambda record: transitions.set_desired(record.value, desired, at=self._clock.now(), actor=actor),
            actor,
            namespace=namespace,
            by_admin=by_admin,
            fence=fence,
        )

    async def _change(
        self,
        id: str,
        decide: Callable[[InstanceRecord], InstanceTransition | None],
        actor: str,
        *,
        namespace: Namespace | None = None,
        by_admin: bool = False,
        fence: Expect | None = None,
    ) -> Instance:
        request_id = logs.request_id()

        def check(record: InstanceRecord) -> InstanceTransition | None:
            if namespace not in (None, record.value.namespace):
                raise writer.unknown_instance(id, namespace)
            if not (by_admin and record.value.is_adopted):
                _check_may_change(record.value, actor)
            step = decide(record)
            return step and step.because_of(request_id)

        return await self._writer.change(id, check, fence=fence)

    def _with_liveness(self, record: InstanceRecord) -> Instance:
        """The instance, with a reason if its node is not live now."""
        instance = record.value
        if instance.node is None:
            return instance
        return with_liveness(instance, self._conditions.condition(instance.node))

    def _notify_watches(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        one = after or before
        if one is None or not (self._watches or self._removals):
            return
        id = one.value.id
        latest = one.value if after is not None else _removed_instance(one.value, self._clock.now())
        for watch in self._watches.get(id, ()):
            watch.put(latest)
        if after is None:
            for removal in self._removals.get(id, ()):
                removal.set()


class _InstanceWatch:
    """What one watcher of an instance has not received yet."""

    def __init__(self, instance: Instance) -> None:
        self._latest = instance
        self._due = deque([instance], maxlen=_MAX_DUE + 1)  # one too many is enough to know
        self._is_new = asyncio.Event()

    def put(self, instance: Instance) -> None:
        if self._due and self._due[-1].observed.status is instance.observed.status:
            self._due.pop()
        self._latest = instance
        self._due.append(instance)
        self._is_new.set()

    async def next(self, repeat_s: float | None) -> Instance:
        """What is due; with `repeat_s`, after that time the latest again if it is RUNNING."""
        while not self._due:
            self._is_new.clear()
            is_running = self._latest.observed.status is InstanceStatus.RUNNING
            try:
                async with asyncio.timeout(repeat_s if is_running else None):
                    await self._is_new.wait()
            except TimeoutError:
                return self._latest
        if len(self._due) > _MAX_DUE:
            raise errors.Overloaded(
                f"more than {_MAX_DUE} changes of the instance wait to be read; watch again, and read faster"
            )
        return self._due.popleft()


@contextmanager
def _filed(index: dict[InstanceId, set[T]], id: InstanceId, one: T) -> Iterator[None]:
    """`one` is in the index for as long as the context lasts."""
    index.setdefault(id, set()).add(one)
    try:
        yield
    finally:
        index[id].discard(one)
        if not index[id]:
            del index[id]


def _new(
    id: str | None,
    what: InstanceSpec | str,
    workload: WorkloadRecord | None,
    namespace: Namespace,
    now: float,
    generation: int,
) -> Instance:
    spec = what if isinstance(what, InstanceSpec) else None
    if workload is not None:
        spec = workload.value.spec
    assert spec is not None, "what is no spec names a workload"
    return Instance(
        id=InstanceId(id or ulid.new_id(now)),
        spec=spec,
        created_at=now,
        observed=ObservedState(InstanceStatus.SCHEDULING, now, "waits for a node"),
        workload=workload.value.id if workload else None,
        version=workload.value.version if workload else 0,
        generation=generation,
        namespace=namespace,
        request_id=logs.request_id(),
    )


def _same(
    existing: Instance, what: InstanceSpec | str, workload: WorkloadRecord | None, namespace: Namespace
) -> Instance:
    """The existing one, if it is what was requested."""
    if existing.namespace != namespace:
        raise exists_elsewhere("instance", existing)
    is_same = existing.workload == workload.value.id if workload else _is_same_spec(existing.spec, what)
    if not is_same:
        raise errors.AlreadyExists(
            f"instance {existing.id} exists with another spec; change it, or choose an id"
        )
    return existing


def _is_same_spec(existing: InstanceSpec, given: InstanceSpec | str) -> bool:
    """True if a user gave the same; versions of secrets are the server's."""
    return isinstance(given, InstanceSpec) and (
        secret_versions.without_versions(existing) == secret_versions.without_versions(given)
    )


def _check_may_change(instance: Instance, actor: str) -> None:
    """The cell of a contract is the market's. One that was adopted may be of a contract that the ledger no
    longer knows: an admin destroys it."""
    if instance.spec.kind is WorkloadKind.CELL and actor != MARKET:
        raise errors.Forbidden(
            f"instance {instance.id} is the cell of a contract, which only the market changes; an admin "
            "ends a contract with `skerry market reclaim`"
        )


def _removed_instance(instance: Instance, now: float) -> Instance:
    """The last state of an instance that was removed from the store."""
    if instance.observed.status in TERMINAL:
        return instance
    return replace(instance, observed=ObservedState(InstanceStatus.TERMINATED, now, "destroyed"))

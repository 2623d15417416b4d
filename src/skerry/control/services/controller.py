"""The service controller: on the leader, it writes what `decisions` plans for each service.

A service is reconciled when its record, one of its copies or a node of theirs changes, and at the times that
a plan names. The record, the copies and the events of one plan are written in one transaction, under the
leader's fence, which expects the record, and every copy that it changes, as they were read; after a conflict
the plan is made anew. Several transactions are in flight at once, of one service never two. A transaction
whose result is not known may still be written later: before anything else is decided about the service, its
record is written as it is, after which the store refuses the earlier transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from skerry.control.controller_loop import ControllerLoop, NextTimes, settled_at_once
from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.leadership.election import LeaderElection
from skerry.control.named_table import key_of
from skerry.control.namespaces.quotas import NamespaceQuotas
from skerry.control.nodes.conditions import NodeConditions
from skerry.control.services import quota_limits
from skerry.control.services.copies import NodeAvailability
from skerry.control.services.decisions import decide
from skerry.control.services.plan_writer import ServicePlanWriter, ServiceTransaction, batches
from skerry.control.services.tables import ServiceRecord, ServiceTables
from skerry.control.volumes.table import VolumeTable
from skerry.kit import metrics, ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import Namespace, NodeId
from skerry.model.nodes import Liveness
from skerry.model.statuses import TERMINAL, InstanceStatus
from skerry.model.workloads import Instance, OwnerKind
from skerry.store import fencing
from skerry.store.protocol import Expect, Store

_IN_FLIGHT = 32  # transactions at once: enough that the store always has the next group at hand
_KEYS_PER_PASS = 50  # before others have their turn
_REFUSED_S = 5.0  # a second refusal by a quota within this time is a fault, and is tried again later

ROLLOUTS = metrics.counter("skerry_service_rollouts_total", "Updates of services that ended", ["outcome"])
_OUTCOMES = {"updated": "good", "failed": "failed", "reverted": "reverted"}


class ServiceController:
    """Creates, replaces and ends the copies of services."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        *,
        tables: ServiceTables,
        instance_table: InstanceTable,
        conditions: NodeConditions,
        settled: Callable[[], Awaitable[None]] = settled_at_once,
        new_id: Callable[[float], str] = ulid.new_id,
    ) -> None:
        """Nothing is decided before `settled` returns, which is called before every pass; `new_id` gives the
        id of a copy that is made at this time."""
        self._store = store
        self._clock = clock
        self._tables = tables
        self._instances = instance_table
        self._conditions = conditions
        self._writer = ServicePlanWriter(events, tables, instance_table, new_id)
        self._loop = ControllerLoop(
            "services", clock, tables.services, instance_table, settled=settled, in_flight=_IN_FLIGHT
        )
        self._uncertain: set[str] = set()  # keys whose last transaction may have been written, or may be yet
        self._unreachable: set[NodeId] = set()
        self._draining: set[NodeId] = set()
        self._nodes = NodeAvailability()
        self._quotas: NamespaceQuotas | None = None
        self._refused_at: dict[str, float] = {}  # by the quota, against what was decided
        instance_table.listen(self._instance_changed)
        conditions.listen(self._node_changed)

    def follow_quotas(self, quotas: NamespaceQuotas) -> None:
        """Plan no copies that `quotas` refuse; without this, the store refuses them."""
        self._quotas = quotas
        quotas.listen(self._quota_changed)

    def follow_volumes(self, volumes: VolumeTable) -> None:
        """Create the volumes of templates."""
        self._writer.follow_volumes(volumes)

    async def run(self, leader: LeaderElection) -> None:
        """For ever: decide while `leader` leads. The tables must be running."""
        await self._loop.ready()
        await self._tables.ready()
        await self._conditions.ready()
        for condition in self._conditions.conditions():
            self._node_changed(condition.view.id)
        await leader.run_while_leading("services", self._lead)

    async def _lead(self, fence: Expect) -> None:
        # Transactions of the leader before are in the store now, or never will be.
        await self._loop.refresh()
        self._nodes = self._nodes._replace(watched_since=self._clock.now())
        self._uncertain.clear()  # the store refuses what has the fence of an earlier term
        await self._loop.run(partial(self._reconcile, fence), keys_per_pass=_KEYS_PER_PASS)

    async def _reconcile(self, fence: Expect, keys: Sequence[str]) -> None:
        """Decide about these services, and start the transactions."""
        now = self._clock.now()
        decided: list[ServiceTransaction] = []
        for key in keys:
            record = self._tables.services.get(key)
            if record is None:
                self._uncertain.discard(key)
                self._refused_at.pop(key, None)
                self._loop.finish(key, None)
            elif key in self._uncertain:
                await self._loop.start([key], partial(self._write_through, record, fence))
            elif (transaction := self._decide_safely(record, now)) is not None:
                decided.append(transaction)
        for batch in batches(decided):
            await self._loop.start([one.key for one in batch], partial(self._carry_out, batch, fence))

    def _decide_safely(self, record: ServiceRecord, now: float) -> ServiceTransaction | None:
        """As `_decide`; a service that nothing can be done about does not stop the work on the others."""
        try:
            return self._decide(record, now)
        except errors.SkerryError as error:
            self._loop.fail([key_of(record.value)], error)
            return None

    def _decide(self, record: ServiceRecord, now: float) -> ServiceTransaction | None:
        """What is to be written about a service; None if nothing is."""
        copies = self._instances.index.of_owner(OwnerKind.SERVICE, record.value.id)
        plan = decide(record.value, [known.value for known in copies], self._nodes, now)
        if self._quotas is not None:
            refusal = partial(self._quotas.refusal, record.value.namespace)
            quota_limits.limit(plan, refusal, partial(self._writer.use_of, record.value))
        transaction = self._writer.transaction(record, copies, plan, now)
        if transaction.ops:
            return transaction
        self._loop.finish(transaction.key, plan.wake_at)
        return None

    async def _carry_out(self, batch: Sequence[ServiceTransaction], fence: Expect) -> NextTimes:
        async with self._uncertain_if_interrupted([one.key for one in batch]):
            await self._commit(batch, fence)
        # What follows from a whole plan comes as a change, or at a time.
        return {one.key: one.wake_at for one in batch if one.is_whole}

    async def _commit(self, batch: Sequence[ServiceTransaction], fence: Expect) -> None:
        """Write all of `batch` at once; if one conflicts, or together they exceed a quota, each by itself."""
        ops = [op for one in batch for op in one.ops]
        expect = [each for one in batch for each in one.expect]
        try:
            revision = await fencing.commit(self._store, ops, expect, fence)
        except (errors.Conflict, errors.TooLarge, errors.QuotaExceeded) as error:
            if len(batch) == 1:
                if isinstance(error, errors.QuotaExceeded) and not self._is_refused_again(batch[0].key):
                    # What others use was not known here when it was decided, and is now.
                    raise errors.Conflict(error.message) from None
                raise
            refused: list[errors.Conflict] = []
            for one in batch:
                try:
                    await self._commit([one], fence)
                except errors.Conflict as conflict:
                    refused.append(conflict)
            if refused:
                raise refused[0] from None
            return
        if any(one.changes_copies for one in batch):
            await self._instances.wait_for_change(revision)
        if any(one.changes_service for one in batch):
            await self._tables.services.wait_for_change(revision)
        for one in batch:
            for event in one.events:
                if outcome := _OUTCOMES.get(event.kind):
                    ROLLOUTS.labels(outcome).inc()

    def _is_refused_again(self, key: str) -> bool:
        """True if a quota has refused this service a moment ago: then deciding anew does not help."""
        now = self._clock.now()
        before, self._refused_at[key] = self._refused_at.get(key, float("-inf")), now
        return now - before < _REFUSED_S

    async def _write_through(self, record: ServiceRecord, fence: Expect) -> NextTimes:
        """Write the record as it is: what was sent before is known after that, or refused for ever."""
        services, key = self._tables.services, key_of(record.value)
        async with self._uncertain_if_interrupted([key]):
            revision = await fencing.commit(
                self._store, [services.put(key, record.value)], [services.expect(key, record)], fence
            )
            await services.wait_for_change(revision)
            await self._instances.wait_for_revision(revision)
        self._uncertain.discard(key)
        return {}

    @asynccontextmanager
    async def _uncertain_if_interrupted(self, keys: Sequence[str]) -> AsyncIterator[None]:
        """Around a transaction about these services: whether it is written may not be known after it."""
        try:
            yield
        except errors.Unavailable:
            self._uncertain.update(keys)
            raise
        except errors.Conflict:
            await self._loop.refresh()
            self._uncertain.difference_update(keys)
            raise

    def _quota_changed(self, namespace: Namespace) -> None:
        """There may be room in a namespace for copies that were left out."""
        for key, record in self._tables.services.items(f"{namespace}/"):
            if record.value.quota_message:
                self._loop.add(key)

    def _instance_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        if after is not None and not self._matters(before and before.value, after.value):
            return
        for known in (before, after):
            owner = None if known is None else known.value.owner
            if owner is not None and owner.kind is OwnerKind.SERVICE:
                key = self._tables.services.key_of_id(owner.id)
                if key is not None:
                    self._loop.add(key)

    def _matters(self, before: Instance | None, after: Instance) -> bool:
        """False if a copy changed in nothing that is decided on: it was created, as we decided, or placed, or
        starts, or is destroyed when it was out of service."""
        if before is None:
            return after.node is not None or after.observed.status is not InstanceStatus.SCHEDULING
        return (
            before.is_ready
            or after.is_ready
            or before.retiring_at != after.retiring_at
            or (before.desired is not after.desired and before.retiring_at is None)
            or before.restarts != after.restarts
            or (before.observed.status in TERMINAL) is not (after.observed.status in TERMINAL)
            or after.node in self._nodes.unreachable
            or after.node in self._nodes.draining
        )

    def _node_changed(self, node: NodeId) -> None:
        condition = self._conditions.condition(node)
        is_live = condition is not None and condition.liveness is Liveness.LIVE
        is_draining = condition is not None and condition.drain_by is not None
        if _put(self._unreachable, node, not is_live) | _put(self._draining, node, is_draining):
            self._nodes = self._nodes._replace(
                unreachable=frozenset(self._unreachable), draining=frozenset(self._draining)
            )
            for known in self._instances.index.on_node(node):
                self._instance_changed(None, known)


def _put(nodes: set[NodeId], node: NodeId, is_in: bool) -> bool:
    """Put it in or take it out; True if that changes something."""
    if (node in nodes) is is_in:
        return False
    (nodes.add if is_in else nodes.discard)(node)
    return True

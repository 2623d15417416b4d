"""The leader's loop over services: what `decisions` says is written, under the fence.

A service is looked at when its record, one of its copies or a node of theirs has changed, and when a time
comes that a plan named; nothing is polled. The record, the copies and the events of one plan are one
transaction, which expects the record, and every copy that it changes, to be as they were: if somebody was
quicker, nothing is written and it is decided anew. Several transactions are on their way at once, of one
service never two. One that failed may still be written later; before anything is decided again, the record
is written as it is, after which the store refuses what expected it as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import structlog

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.leadership.election import LeaderElection
from skerry.control.nodes.conditions import NodeConditions
from skerry.control.services.copies import NodeAvailability
from skerry.control.services.decisions import decide
from skerry.control.services.plan_writer import ServicePlanWriter, ServiceTransaction, batches
from skerry.control.services.tables import ServiceRecord, ServiceTables, service_key
from skerry.control.work_queue import WorkQueue
from skerry.kit import metrics, ulid
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import NodeId, ServiceId
from skerry.model.nodes import Liveness
from skerry.model.statuses import TERMINAL, InstanceStatus
from skerry.model.workloads import Instance, OwnerKind
from skerry.store import fencing
from skerry.store.fencing import LeadershipLost
from skerry.store.protocol import Expect, Store

log = structlog.get_logger(__name__)

_UNDER_WAY = 32  # transactions at once: enough that the store always has the next group at hand
_FAILED_PAUSE_S = 60.0  # before a service that could not be worked on is looked at again
_LOOKS_PER_TURN = 50  # before others have theirs

ROLLOUTS = metrics.counter("skerry_service_rollouts_total", "Updates of services that ended", ["outcome"])
_OUTCOMES = {"updated": "good", "failed": "failed", "reverted": "reverted"}


async def _at_once() -> None:
    """For a store that needs no time to settle."""


class ServiceController:
    """Keeps the copies of services as their records want them."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        *,
        tables: ServiceTables,
        instance_table: InstanceTable,
        conditions: NodeConditions,
        settled: Callable[[], Awaitable[None]] = _at_once,
        new_id: Callable[[float], str] = ulid.new_id,
    ) -> None:
        """Nothing is decided before `settled` returns, which is asked before every turn; `new_id` names a
        copy that is made at this time."""
        self._store = store
        self._clock = clock
        self._tables = tables
        self._instances = instance_table
        self._conditions = conditions
        self._settled = settled
        self._writer = ServicePlanWriter(events, tables, instance_table, new_id)
        self._queue: WorkQueue[ServiceId] = WorkQueue()
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(_UNDER_WAY)
        self._uncertain: set[ServiceId] = set()  # whose last transaction may have been written, or may be yet
        self._backoff = Backoff(cap_s=5.0)
        self._unreachable: set[NodeId] = set()
        self._draining: set[NodeId] = set()
        self._nodes = NodeAvailability()
        tables.services.listen(self._service_changed)
        instance_table.listen(self._instance_changed)
        conditions.listen(self._node_changed)

    async def run(self, leader: LeaderElection) -> None:
        """For ever, while this server leads. The tables must be running."""
        await self._instances.ready()
        await self._tables.ready()
        await self._conditions.ready()
        for condition in self._conditions.conditions():
            self._node_changed(condition.view.id)
        await leader.run_while_leading("services", self._lead)

    async def _lead(self, fence: Expect) -> None:
        # What was decided by who led before is in the store now, or never will be.
        await self._instances.sync()
        await self._tables.services.sync()
        self._slots = asyncio.Semaphore(_UNDER_WAY)
        self._nodes = self._nodes._replace(watched_since=self._clock.now())
        self._uncertain.clear()  # the store refuses what has the fence of an earlier term
        self._queue.clear()
        self._queue.add_all(record.value.id for _, record in self._tables.services.items())
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._settled()
                    self._changed.clear()
                    if await self._turn(group, fence):
                        await asyncio.sleep(0)  # there is more to do, but not before others had their turn
                    else:
                        await self._rest()
        except* LeadershipLost as lost:
            raise LeadershipLost(str(lost.exceptions[0])) from None

    async def _turn(self, group: asyncio.TaskGroup, fence: Expect) -> bool:
        """Look at some services; False if there are no more to look at."""
        now = self._clock.now()
        decided: list[ServiceTransaction] = []
        has_more = True
        for _ in range(_LOOKS_PER_TURN):
            id = self._queue.take(now)
            if id is None:
                has_more = False
                break
            record = self._tables.by_id(id)
            if record is None:
                self._uncertain.discard(id)
                self._queue.done(id)
            elif id in self._uncertain:
                await self._slots.acquire()
                group.create_task(self._write_through(record, fence))
            elif (transaction := self._decide_safely(record, now)) is not None:
                decided.append(transaction)
        for batch in batches(decided):
            await self._slots.acquire()
            group.create_task(self._carry_out(batch, fence))
        return has_more

    def _decide_safely(self, record: ServiceRecord, now: float) -> ServiceTransaction | None:
        """As `_decide`; a service that nothing can be done with does not stop the work on all others."""
        try:
            return self._decide(record, now)
        except errors.SkerryError as error:
            self._give_up([record.value.id], error)
            return None

    def _give_up(self, ids: Iterable[ServiceId], error: errors.SkerryError) -> None:
        """Look at these again after a pause."""
        for id in ids:
            log.error("services.failed", service=id, error=error.message, exc_info=error)
            self._queue.done(id)
            self._queue.add_at(id, self._clock.now() + _FAILED_PAUSE_S)

    def _decide(self, record: ServiceRecord, now: float) -> ServiceTransaction | None:
        """What is to be written about a service; None if nothing is."""
        id = record.value.id
        copies = self._instances.index.of_owner(OwnerKind.SERVICE, id)
        plan = decide(record.value, [known.value for known in copies], self._nodes, now)
        transaction = self._writer.transaction(record, copies, plan, now)
        if transaction.ops:
            return transaction
        self._queue.done(id)
        self._queue.add_at(id, plan.wake_at)
        return None

    async def _rest(self) -> None:
        at = self._queue.next_at()
        try:
            async with asyncio.timeout(None if at is None else max(0.0, at - self._clock.now())):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _carry_out(self, batch: Sequence[ServiceTransaction], fence: Expect) -> None:
        async with self._working_on([one.service for one in batch]) as unfinished:
            await self._commit(batch, fence)
            for one in batch:
                if one.is_whole:  # what follows from it comes as a change, or at a time
                    unfinished.discard(one.service)
                    self._queue.add_at(one.service, one.wake_at)

    async def _commit(self, batch: Sequence[ServiceTransaction], fence: Expect) -> None:
        """Write all of `batch` at once; if one stands in the way of the others, each by itself."""
        ops = [op for one in batch for op in one.ops]
        expect = [each for one in batch for each in one.expect]
        try:
            revision = await fencing.commit(self._store, ops, expect, fence)
        except errors.Conflict:
            if len(batch) == 1:
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

    async def _write_through(self, record: ServiceRecord, fence: Expect) -> None:
        """Write the record as it is: whatever was sent before is known then, or refused for ever."""
        service, services = record.value, self._tables.services
        key = service_key(service.namespace, service.name)
        async with self._working_on([service.id]):
            revision = await fencing.commit(
                self._store, [services.put(key, service)], [services.expect(key, record)], fence
            )
            await services.wait_for_change(revision)
            await self._instances.wait_for_revision(revision)
            self._uncertain.discard(service.id)

    @asynccontextmanager
    async def _working_on(self, ids: Sequence[ServiceId]) -> AsyncIterator[set[ServiceId]]:
        """A transaction about these services; those that are left in the result are looked at again."""
        unfinished = set(ids)
        try:
            try:
                yield unfinished
            except errors.Conflict:  # decided anew on what it is now
                await self._instances.sync()
                await self._tables.services.sync()
                self._uncertain.difference_update(ids)
        except errors.Unavailable as error:
            log.warning("services.interrupted", error=error.message)
            self._uncertain.update(ids)
            await asyncio.sleep(self._backoff.delay(0))
        except errors.SkerryError as error:
            self._give_up(unfinished, error)
            unfinished.clear()
        finally:
            self._slots.release()
            for id in ids:
                self._queue.done(id)
                if id in unfinished:
                    self._queue.add(id)
            self._changed.set()

    def _service_changed(self, before: ServiceRecord | None, after: ServiceRecord | None) -> None:
        if after is not None:
            self._queue.add(after.value.id)
        elif before is not None:
            self._queue.discard(before.value.id)
        self._changed.set()

    def _instance_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        if after is not None and not self._matters(before and before.value, after.value):
            return
        for known in (before, after):
            owner = None if known is None else known.value.owner
            if owner is not None and owner.kind is OwnerKind.SERVICE:
                self._queue.add(ServiceId(owner.id))
                self._changed.set()

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
        is_heard = condition is not None and condition.liveness is Liveness.LIVE
        is_draining = condition is not None and condition.drain_by is not None
        if _put(self._unreachable, node, not is_heard) | _put(self._draining, node, is_draining):
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

"""The controller of operations on volumes: on the leader, it does what `decisions` decides, step by step.

An operation is reconciled when it changes, when an instance that uses its volume does, and again with pauses
while a node is away. A step is written in one transaction with the volume and the snapshot, under the
leader's fence, after what it stands for was done: a leader that is killed is followed by one that does the
step again, which every task allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from msgspec.structs import replace

from skerry.control.controller_loop import ControllerLoop, settled_at_once
from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.instances import transitions
from skerry.control.instances.writer import TransitionWriter
from skerry.control.leadership.election import LeaderElection
from skerry.control.named_table import key_of, key_of_name
from skerry.control.nodes.conditions import NodeConditions
from skerry.control.snapshots import decisions
from skerry.control.snapshots.decisions import (
    Cancel,
    Decision,
    EvictUsers,
    OperationChange,
    Proceed,
    RunTasks,
    TransferImage,
    Wait,
)
from skerry.control.snapshots.node_tasks import NodeTaskRunner
from skerry.control.snapshots.object_stores import StoreSource
from skerry.control.snapshots.tables import OperationRecord, OperationTables
from skerry.kit import metrics
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.kit.tasks import race
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.snapshots import Snapshot, SnapshotLocation
from skerry.model.volume_operations import OperationStatus, OperationStep, VolumeOperation
from skerry.model.volume_tasks import TaskProgress, TaskResult
from skerry.model.volumes import Volume
from skerry.model.workloads import Instance
from skerry.store.protocol import Expect, Op
from skerry.store.tables.table import Record, Write

log = structlog.get_logger(__name__)

OPERATIONS = metrics.counter(
    "skerry_volume_operations_total", "Operations on volumes that ended", ["kind", "status"]
)
_AGAIN = Backoff(first_s=0.5, cap_s=10.0)


class OperationController:
    """Executes the operations on volumes."""

    def __init__(
        self,
        events: EventLog,
        clock: Clock,
        runner: NodeTaskRunner,
        *,
        tables: OperationTables,
        conditions: NodeConditions,
        stores: StoreSource,
        settled: Callable[[], Awaitable[None]] = settled_at_once,
        backoff: Backoff = _AGAIN,
    ) -> None:
        """Nothing is decided before `settled` returns, which is called before every decision. A step that
        failed is tried again after a pause of `backoff`."""
        self._events = events
        self._clock = clock
        self._runner = runner
        self._operations, self._snapshots, self._volumes, self._instances = tables
        self._conditions = conditions
        self._stores = stores
        self._settled = settled
        self._backoff = backoff
        self._writer = TransitionWriter(events, tables.instances)
        self._failures: dict[str, int] = {}  # in a row, by key
        self._cancels: dict[str, asyncio.Event] = {}  # of those whose tasks run, by key
        self._loop = ControllerLoop("volume operations", clock, *tables, settled=settled)
        tables.operations.listen(self._operation_changed)
        tables.instances.listen(self._instance_changed)

    async def run(self, leader: LeaderElection) -> None:
        """For ever: execute operations while `leader` leads. The tables must be running."""
        await self._loop.ready()
        await leader.run_while_leading("volume operations", self.lead)

    async def lead(self, fence: Expect) -> None:
        """Execute operations for ever, as the leader."""
        await self._loop.refresh()
        await self._settled()
        await self._loop.run_each(partial(self._reconcile, fence))

    async def _reconcile(self, fence: Expect, key: str) -> float | None:
        """Do what is to be done about one operation now; returns when to do so again if nothing changes
        before."""
        record = self._operations.get(key)
        if record is None:
            return None
        operation = record.value
        if operation.ended_at is not None:
            return await self._expire(record, operation.ended_at + decisions.KEPT_S, fence)
        try:
            decision = await self._decide(operation)
            return await self._carry_out(key, operation, decision, fence)
        except errors.Conflict:
            raise
        except errors.SkerryError as error:
            return await self._failed(key, operation, error, fence)

    async def _decide(self, operation: VolumeOperation) -> Decision:
        match operation.step:
            case OperationStep.STOPPING:
                await self._instances.sync()  # every user that was placed before the volume was held
            case OperationStep.CLEANING:
                await self._volumes.sync()
            case _:
                pass
        users = [
            record.value
            for record in self._instances.index.on_node(operation.node)
            if decisions.uses(record.value, operation.volume_id)
        ]
        store = self._stores.get() if operation.location is SnapshotLocation.S3 else None
        volume = self._volumes.by_id(operation.volume_id)
        node = None if volume is None else volume.value.node
        return decisions.decide(operation, users, self._is_registered, store, node)

    def _is_registered(self, node: NodeId) -> bool:
        return self._conditions.condition(node) is not None

    async def _carry_out(
        self, key: str, operation: VolumeOperation, decision: Decision, fence: Expect
    ) -> float | None:
        match decision:
            case Cancel():
                reason = f"cancelled by {operation.actor}" if operation.actor else "cancelled"
                await self._end(key, operation, OperationStatus.CANCELLED, reason, fence)
            case EvictUsers(instances, reason):
                for id in instances:
                    await self._evict(id, reason, fence)
            case Wait(reason):
                await self._note(key, fence, waiting=reason)
            case RunTasks(tasks):
                result = TaskResult()
                for task in tasks:
                    run = self._runner.run(task, partial(self._progressed, key, fence))
                    result = await self._unless_cancelled(key, operation, run)
                await self._advance(key, operation, result, fence)
            case TransferImage(send, receive):
                transfer = self._runner.transfer(send, receive, partial(self._progressed, key, fence))
                result = await self._unless_cancelled(key, operation, transfer)
                await self._advance(key, operation, result, fence)
            case Proceed():
                await self._advance(key, operation, TaskResult(), fence)
        self._failures.pop(key, None)
        return None

    async def _unless_cancelled(
        self, key: str, operation: VolumeOperation, work: Awaitable[TaskResult]
    ) -> TaskResult:
        """The result of `work`, which ends early if the operation is cancelled."""
        event = self._cancels.setdefault(key, asyncio.Event())
        try:
            return await race(work, _raise_after(event))
        finally:
            del self._cancels[key]

    async def _advance(self, key: str, operation: VolumeOperation, result: TaskResult, fence: Expect) -> None:
        now = self._clock.now()
        await self._commit(
            key,
            operation,
            lambda present, volume, snapshot: decisions.advance(present, volume, snapshot, result, now),
            fence,
        )

    async def _end(
        self, key: str, operation: VolumeOperation, status: OperationStatus, reason: str, fence: Expect
    ) -> bool:
        """Give it up; False if that is not possible in its step."""
        return await self._commit(
            key,
            operation,
            lambda present, volume, snapshot: decisions.fail(present, volume, snapshot, status, reason),
            fence,
        )

    async def _failed(
        self, key: str, operation: VolumeOperation, error: errors.SkerryError, fence: Expect
    ) -> float | None:
        """Try it again, or give it up."""
        log.info(
            "volume_operation.failed",
            operation=operation.id,
            kind=operation.kind,
            step=operation.step,
            error=error.message,
            detail=error.detail,
        )
        if (change := decisions.retreat(operation, error)) is not None:
            await self._commit(key, operation, lambda *_: change, fence)
            return None
        if not decisions.is_temporary(error) and await self._end(
            key, operation, OperationStatus.FAILED, error.message, fence
        ):
            return None
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        await self._note(key, fence, waiting=f"{operation.step.lower()} is tried again: {error.message}")
        return self._clock.now() + self._backoff.delay(failures)

    async def _evict(self, id: InstanceId, reason: str, fence: Expect) -> None:
        def decide(record: InstanceRecord) -> transitions.InstanceTransition | None:
            return None if record.value.node is None else transitions.evict(record.value, reason=reason)

        try:
            await self._writer.change(id, decide, fence=fence)
        except errors.NotFound:
            pass

    # Records

    async def _commit(
        self,
        key: str,
        operation: VolumeOperation,
        change: Callable[[VolumeOperation, Volume | None, Snapshot | None], OperationChange | None],
        fence: Expect,
    ) -> bool:
        """Write what `change` makes of the present records, whatever else changed in them meanwhile; False if
        it makes nothing. Raises `Conflict` if the operation is in another step."""
        while True:
            record = await self._operations.read(key)
            if record is None or record.value.step is not operation.step:
                raise errors.Conflict("the operation is in another step")
            volume = await self._read_volume(record.value)
            snapshot = await self._read_snapshot(record.value)
            changed = change(
                record.value,
                None if volume is None else volume.value,
                None if snapshot is None else snapshot.value,
            )
            if changed is None:
                return False
            try:
                await self._write(record, volume, snapshot, changed, fence)
            except errors.Conflict:
                continue
            return True

    async def _write(
        self,
        record: OperationRecord,
        volume: Record[Volume] | None,
        snapshot: Record[Snapshot] | None,
        change: OperationChange,
        fence: Expect,
    ) -> None:
        after = change.operation
        ops: list[Op] = [self._operations.put(key_of(after), after)]
        expect = [self._operations.expect(key_of(after), record)]
        if (after.step, after.status) != (record.value.step, record.value.status):
            ops.append(self._operations.event(self._events, after))
        if change.volume is not None and volume is not None:
            key = key_of(volume.value)
            write = Write(change.volume, is_delete=change.is_volume_removed)
            ops += self._volumes.ops(key, write)
            expect.append(self._volumes.expect(key, volume))
        if change.snapshot is not None and snapshot is not None:
            key = key_of(snapshot.value)
            ops += self._snapshots.ops(key, Write(change.snapshot, is_delete=change.is_snapshot_removed))
            expect.append(self._snapshots.expect(key, snapshot))
        revision = await self._operations.commit(ops, expect, fence)
        await self._volumes.wait_for_revision(revision)
        await self._snapshots.wait_for_revision(revision)
        if after.is_over and not record.value.is_over:
            OPERATIONS.labels(after.kind, after.status).inc()

    async def _read_volume(self, operation: VolumeOperation) -> Record[Volume] | None:
        found = await self._volumes.read(key_of_name(operation.volume, operation.namespace))
        return None if found is None or found.value.id != operation.volume_id else found

    async def _read_snapshot(self, operation: VolumeOperation) -> Record[Snapshot] | None:
        if not operation.snapshot:
            return None
        found = await self._snapshots.read(key_of_name(operation.snapshot, operation.namespace))
        return None if found is None or found.value.id != operation.snapshot_id else found

    async def _expire(self, record: OperationRecord, at: float, fence: Expect) -> float | None:
        if self._clock.now() < at:
            return at
        key = key_of(record.value)
        await self._operations.commit(
            [self._operations.delete(key)], [self._operations.expect(key, record)], fence
        )
        return None

    async def _note(self, key: str, fence: Expect, **fields: str | int) -> None:
        """Change fields of an operation that nothing is decided by."""

        def decide(record: OperationRecord) -> Write[VolumeOperation] | None:
            after = replace(record.value, **fields)
            return None if record.value.is_over or after == record.value else Write(after)

        try:
            await self._operations.update(key, decide, missing=errors.NotFound("it is over"), fence=fence)
        except errors.NotFound:
            pass

    async def _progressed(self, key: str, fence: Expect, progress: TaskProgress) -> None:
        await self._note(key, fence, done_bytes=progress.done, total_bytes=progress.total, waiting="")

    # Changes

    def _operation_changed(self, before: OperationRecord | None, after: OperationRecord | None) -> None:
        if after is None and before is not None:
            self._failures.pop(key_of(before.value), None)
        if after is None or not (after.value.is_cancelled and after.value.may_cancel):
            return
        if (event := self._cancels.get(key_of(after.value))) is not None:
            event.set()

    def _instance_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        for record in (before, after):
            for volume in () if record is None else record.value.volumes:
                if (key := self._operations.key_of_volume(volume)) is not None:
                    self._loop.add(key)


def users_of(instances: InstanceTable, volume: Volume) -> list[Instance]:
    """Instances that have the volume on its node."""
    if volume.node is None:
        return []
    return [
        record.value
        for record in instances.index.on_node(volume.node)
        if decisions.uses(record.value, volume.id)
    ]


async def _raise_after(event: asyncio.Event) -> TaskResult:
    await event.wait()
    raise errors.Conflict("the operation was cancelled")

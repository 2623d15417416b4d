"""The registry of snapshots and of operations on volumes: it takes requests durably, and answers reads.

A request is acknowledged when the store has the operation, together with the volume, which knows it: so a
volume has one operation at a time. Nothing is copied here: the leader does
(`skerry.control.snapshots.controller`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.named_table import key_of, key_of_name
from skerry.control.nodes.conditions import NodeCondition
from skerry.control.paging import ListPage
from skerry.control.snapshots import controller
from skerry.control.snapshots.object_stores import StoreSource
from skerry.control.snapshots.requests import MoveRequest, RestoreRequest, SnapshotRequest
from skerry.control.snapshots.tables import OperationRecord, OperationTables, SnapshotRecord
from skerry.control.volumes.table import VolumeRecord
from skerry.control.workloads.registry import check_may_create, check_space
from skerry.kit import logs, ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.container_options import NodeFeature
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace, NodeId, VolumeId
from skerry.model.namespace_scope import ListedNamespaces
from skerry.model.nodes import Liveness, Node
from skerry.model.resources import Gigabytes, Resources
from skerry.model.snapshots import Snapshot, SnapshotLocation, SnapshotStatus
from skerry.model.volume_operations import OperationKind, OperationStep, VolumeOperation
from skerry.model.volumes import Volume, VolumeStatus
from skerry.store.protocol import Expect, Op
from skerry.store.tables.table import Write

MAX_SNAPSHOTS = 100_000
_FINAL = (VolumeStatus.DELETING, VolumeStatus.UNBOUND)


class NodeDirectory(Protocol):
    """The part of `skerry.control.nodes.registry.NodeRegistry` that is needed here."""

    def get(self, id_or_name: str) -> Node: ...

    def condition(self, node: NodeId) -> NodeCondition | None: ...


class SnapshotRegistry:
    """The snapshots of one cloud, and operations on its volumes."""

    def __init__(
        self,
        events: EventLog,
        clock: Clock,
        *,
        tables: OperationTables,
        nodes: NodeDirectory,
        free: Callable[[NodeId], Resources],
        stores: StoreSource,
        new_id: Callable[[float], str] = ulid.new_id,
    ) -> None:
        self._events = events
        self._clock = clock
        self.operations, self.snapshots, self._volumes, self._instances = tables
        self._nodes = nodes
        self._free = free
        self._stores = stores
        self._new_id = new_id

    # Requests

    async def take(
        self, volume: str, request: SnapshotRequest, *, actor: str, namespace: Namespace | None = None
    ) -> VolumeOperation:
        """Begin to take a snapshot of a volume."""
        record = await self._volume(volume, namespace)
        found = record.value
        check_may_create(found.namespace, actor)
        check_space()
        if request.location is SnapshotLocation.S3:
            self._stores.get()
        self.snapshots.check_limit(found.namespace, MAX_SNAPSHOTS)
        _require_ready(found)
        node = self._ready_node(_node_of(found))
        now = self._clock.now()
        operation = self._operation(OperationKind.SNAPSHOT, found, actor, now)
        snapshot = Snapshot(
            self._new_id(now),
            request.name or f"{found.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}",
            found.name,
            found.id,
            found.size,
            now,
            namespace=found.namespace,
            node=node,
            location=request.location,
            request_id=operation.request_id,
        )
        operation = replace(
            operation,
            snapshot_id=snapshot.id,
            snapshot=snapshot.name,
            snapshot_node=node,
            location=request.location,
        )
        key = key_of(snapshot)
        if await self.snapshots.read(key) is not None:
            raise errors.AlreadyExists(
                f"there is a snapshot {snapshot.name!r} already; choose another name, or delete it first"
            )
        await self._begin(
            operation, record, [self.snapshots.put(key, snapshot)], [self.snapshots.expect(key, None)]
        )
        return operation

    async def restore(
        self, volume: str, request: RestoreRequest, *, actor: str, namespace: Namespace | None = None
    ) -> VolumeOperation:
        """Begin to restore a snapshot, into this volume or into a new one."""
        snapshot = (await self.read_snapshot(request.snapshot, namespace or DEFAULT_NAMESPACE)).value
        check_may_create(snapshot.namespace, actor)
        check_space()
        if snapshot.status is not SnapshotStatus.READY:
            raise errors.FailedPrecondition(
                f"snapshot {snapshot.name} is {snapshot.status}; restore one that is READY"
            )
        if snapshot.location is SnapshotLocation.S3:
            self._stores.get()
        if request.new_name:
            return await self._restore_new(snapshot, request, actor)
        record = await self._volume(volume, namespace)
        found = record.value
        if found.size != snapshot.size:
            raise errors.FailedPrecondition(
                f"snapshot {snapshot.name} is of a volume of {snapshot.size} GB, and {found.name} has "
                f"{found.size} GB; restore it as a new volume (--as NAME)"
            )
        if request.node:
            raise errors.Invalid("a node can be chosen only for a new volume (--as NAME)", field="node")
        if found.status in _FINAL:
            raise errors.FailedPrecondition(
                f"volume {found.name} is {found.status}; restore the snapshot as a new volume (--as NAME)"
            )
        users = controller.users_of(self._instances, found)
        if users and not request.may_stop:
            names = ", ".join(sorted({one.spec.name for one in users})[:5])
            raise errors.FailedPrecondition(
                f"volume {found.name} is in use by {names}; stop them first, or let the restore stop and "
                "start them (--stop)"
            )
        node = self._ready_node(_node_of(found))
        operation = self._of_snapshot(
            self._operation(OperationKind.RESTORE, found, actor, self._clock.now()), snapshot, node
        )
        await self._begin(operation, record)
        return operation

    async def move(
        self, volume: str, request: MoveRequest, *, actor: str, namespace: Namespace | None = None
    ) -> VolumeOperation:
        """Begin to move a volume to another node; what uses it is stopped, and started there."""
        record = await self._volume(volume, namespace)
        found = record.value
        check_may_create(found.namespace, actor)
        check_space()
        _require_ready(found)
        source, target = _node_of(found), self._nodes.get(request.node).id
        if target == source:
            raise errors.FailedPrecondition(f"volume {found.name} is on that node already")
        operation = replace(
            self._operation(OperationKind.MOVE, found, actor, self._clock.now()),
            step=OperationStep.STOPPING,
            node=self._ready_node(source),
            target=self._node_with_disk(target, found.size),
        )
        await self._begin(operation, record, is_held=True)
        return operation

    async def delete(self, name: str, *, actor: str, namespace: Namespace | None = None) -> VolumeOperation:
        """Begin to delete a snapshot with its data."""
        record = await self.read_snapshot(name, namespace or DEFAULT_NAMESPACE)
        snapshot = record.value
        check_may_create(snapshot.namespace, actor)
        for operation in self.operations.values():
            if not operation.is_over and operation.snapshot_id == snapshot.id:
                if operation.kind is OperationKind.DELETE_SNAPSHOT:
                    return operation
                raise errors.FailedPrecondition(
                    f"snapshot {snapshot.name} is in use by the operation {operation.id}; wait for it, or "
                    "cancel it"
                )
        if snapshot.location is SnapshotLocation.S3:
            self._stores.get()
        now = self._clock.now()
        operation = VolumeOperation(
            self._new_id(now),
            OperationKind.DELETE_SNAPSHOT,
            VolumeId(""),
            snapshot.volume,
            now,
            namespace=snapshot.namespace,
            size=snapshot.size,
            step=OperationStep.REMOVING,
            node=snapshot.node,
            snapshot_id=snapshot.id,
            snapshot=snapshot.name,
            snapshot_node=snapshot.node,
            location=snapshot.location,
            actor=actor,
            request_id=logs.request_id(),
        )
        deleting = replace(snapshot, status=SnapshotStatus.DELETING, request_id=operation.request_id)
        key = key_of(snapshot)
        ops: list[Op] = [
            self.operations.put(key_of(operation), operation),
            self.operations.event(self._events, operation, actor=actor),
            self.snapshots.put(key, deleting),
        ]
        await self.operations.commit(ops, [self.snapshots.expect(key, record)])
        return operation

    async def cancel(self, id: str, *, actor: str, namespace: Namespace | None = None) -> VolumeOperation:
        """Cancel an operation: what it has copied is removed, and the volume is as it was."""
        found = (await self.read_operation(id, namespace)).value

        def decide(record: OperationRecord) -> Write[VolumeOperation] | None:
            operation = record.value
            if operation.is_cancelled:
                return None
            if not operation.may_cancel:
                raise errors.FailedPrecondition(
                    f"the {operation.kind} is {operation.status}, in the step {operation.step}, and cannot "
                    "be cancelled any more"
                )
            return Write(replace(operation, is_cancelled=True, actor=actor))

        return await self.operations.update(
            key_of(found), decide, missing=self.operations.unknown(id, namespace)
        )

    # Reads

    async def read_snapshot(self, name: str, namespace: Namespace | None = None) -> SnapshotRecord:
        """The snapshot of that name, or else of that id."""
        for is_synced in (False, True):
            if is_synced:
                await self.snapshots.sync()
            record = self.snapshots.by_name(name, namespace) or self.snapshots.by_id(name)
            if record is not None and namespace in (None, record.value.namespace):
                return record
        raise errors.NotFound(
            f"there is no snapshot {name[:128]!r}; `skerry volume snapshots` lists those there are"
        )

    async def read_operation(self, id: str, namespace: Namespace | None = None) -> OperationRecord:
        for is_synced in (False, True):
            if is_synced:
                await self.operations.sync()
            record = self.operations.by_id(id)
            if record is not None and namespace in (None, record.value.namespace):
                return record
        raise errors.NotFound(
            f"there is no operation {id[:128]!r}; `skerry volume operations` lists those of the last day"
        )

    def list_snapshots(
        self,
        *,
        namespace: ListedNamespaces = None,
        volume: str | None = None,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
    ) -> ListPage[Snapshot]:
        """Snapshots by age; of all namespaces if none is given."""
        page = self.snapshots.list_page(
            namespace,
            limit=limit,
            offset=offset,
            cursor=cursor,
            matches=lambda one: volume is None or volume in (one.volume, one.volume_id),
        )
        return page.map(lambda record: record.value)

    def list_operations(
        self,
        *,
        namespace: ListedNamespaces = None,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
    ) -> ListPage[VolumeOperation]:
        page = self.operations.list_page(namespace, limit=limit, offset=offset, cursor=cursor)
        return page.map(lambda record: record.value)

    def node_name(self, node: NodeId) -> str:
        condition = self._nodes.condition(node)
        return node if condition is None or not condition.view.name else condition.view.name

    # Parts

    async def _restore_new(self, snapshot: Snapshot, request: RestoreRequest, actor: str) -> VolumeOperation:
        node = self._nodes.get(request.node).id if request.node else snapshot.node
        self._node_with_disk(node, snapshot.size)
        now = self._clock.now()
        volume = Volume(
            VolumeId(self._new_id(now)),
            request.new_name,
            snapshot.size,
            now,
            namespace=snapshot.namespace,
            since=now,
            reason=f"it is being restored from the snapshot {snapshot.name}",
            pin=node,
            is_held=True,
            request_id=logs.request_id(),
        )
        operation = replace(
            self._operation(OperationKind.RESTORE, volume, actor, now), is_new=True, node=node
        )
        operation = self._of_snapshot(operation, snapshot, node)
        key = key_of(volume)
        if await self._volumes.read(key) is not None:
            raise errors.AlreadyExists(
                f"there is a volume {volume.name!r} already; choose another name (--as NAME)"
            )
        ops: list[Op] = [
            self._volumes.put(key, replace(volume, operation=operation.id)),
            self._volumes.event(self._events, "created", volume, actor=actor),
            *self._operation_ops(operation, actor),
        ]
        await self._commit(ops, [self._volumes.expect(key, None)])
        return operation

    async def _volume(self, name: str, namespace: Namespace | None) -> VolumeRecord:
        for is_synced in (False, True):
            if is_synced:
                await self._volumes.sync()
            record = self._volumes.by_name(name, namespace) or self._volumes.by_id(name)
            if record is not None and namespace in (None, record.value.namespace):
                return record
        raise self._volumes.unknown(name, namespace)

    def _operation(self, kind: OperationKind, volume: Volume, actor: str, now: float) -> VolumeOperation:
        return VolumeOperation(
            self._new_id(now),
            kind,
            volume.id,
            volume.name,
            now,
            namespace=volume.namespace,
            size=volume.size,
            node=volume.node or NodeId(""),
            target=volume.node or NodeId(""),
            generation=volume.generation,
            actor=actor,
            request_id=logs.request_id(),
        )

    def _of_snapshot(self, operation: VolumeOperation, snapshot: Snapshot, target: NodeId) -> VolumeOperation:
        if snapshot.location is SnapshotLocation.NODE:
            self._ready_node(snapshot.node)
        return replace(
            operation,
            target=target,
            snapshot_id=snapshot.id,
            snapshot=snapshot.name,
            snapshot_node=snapshot.node,
            location=snapshot.location,
            digest=snapshot.digest,
        )

    def _ready_node(self, node: NodeId) -> NodeId:
        """The node, if it is there and knows these tasks."""
        condition = self._nodes.condition(node)
        if condition is None:
            raise errors.FailedPrecondition(f"node {node} is not registered any more")
        name = condition.view.name or node
        if condition.liveness is Liveness.LOST:
            raise errors.FailedPrecondition(f"node {name} is lost; try again when it is back")
        if NodeFeature.SNAPSHOTS not in condition.view.features:
            raise errors.FailedPrecondition(
                f"node {name} cannot copy volumes: it has none, or runs an older version of Skerry"
            )
        return node

    def _node_with_disk(self, node: NodeId, size: Gigabytes) -> NodeId:
        """The node, if it is ready and has free disk for another volume. Its own disk is checked again when
        it copies: what is placed there meanwhile is not prevented."""
        self._ready_node(node)
        free = self._free(node).disk
        if free < size:
            raise errors.ResourcesExhausted(
                f"node {self.node_name(node)} has {free} GB of disk free, and the volume needs {size}; "
                "choose another node, or free some there"
            )
        return node

    async def _begin(
        self,
        operation: VolumeOperation,
        volume: VolumeRecord,
        ops: Sequence[Op] = (),
        expect: Sequence[Expect] = (),
        *,
        is_held: bool = False,
    ) -> None:
        """Write an operation together with the volume, which must not have another."""
        key = key_of_name(operation.volume, operation.namespace)
        record: VolumeRecord | None = volume
        while record is not None and record.value.id == operation.volume_id:
            found = record.value
            if found.operation:
                raise errors.FailedPrecondition(
                    f"volume {found.name} has an operation under way ({found.operation}); wait for it, or "
                    f"cancel it: skerry volume cancel {found.operation}"
                )
            if found.generation != operation.generation or found.is_deleting:
                raise errors.Conflict(f"volume {found.name} has just changed; try again")
            after = replace(found, operation=operation.id, is_held=is_held)
            try:
                await self._commit(
                    [self._volumes.put(key, after), *ops, *self._operation_ops(operation, operation.actor)],
                    [self._volumes.expect(key, record), *expect],
                )
            except errors.Conflict:
                record = await self._volumes.read(key)
                continue
            return
        raise self._volumes.unknown(operation.volume, operation.namespace)

    def _operation_ops(self, operation: VolumeOperation, actor: str) -> list[Op]:
        return [
            self.operations.put(key_of(operation), operation),
            self.operations.event(self._events, operation, actor=actor),
        ]

    async def _commit(self, ops: Sequence[Op], expect: Sequence[Expect]) -> None:
        revision = await self.operations.commit(ops, expect)
        await self._volumes.wait_for_revision(revision)
        await self.snapshots.wait_for_revision(revision)


def _node_of(volume: Volume) -> NodeId:
    if volume.node is None:
        raise errors.FailedPrecondition(f"volume {volume.name} is on no node yet: nothing has used it")
    return volume.node


def _require_ready(volume: Volume) -> None:
    _node_of(volume)
    if volume.status is not VolumeStatus.READY:
        why = f": {volume.reason}" if volume.reason else ""
        raise errors.FailedPrecondition(f"volume {volume.name} is {volume.status}{why}")

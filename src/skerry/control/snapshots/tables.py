"""The records of snapshots, and of operations on volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceTable
from skerry.control.named_table import NamedTable
from skerry.control.volumes.table import VolumeTable
from skerry.model.snapshots import Snapshot
from skerry.model.volume_operations import VolumeOperation
from skerry.store.protocol import Put, Store
from skerry.store.tables.table import Record, RecordChange

SnapshotRecord = Record[Snapshot]
OperationRecord = Record[VolumeOperation]


class SnapshotTable(NamedTable[Snapshot]):
    """The snapshots of one cloud."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "snapshot", Snapshot)


class OperationTable(NamedTable[VolumeOperation]):
    """The operations of one cloud: those that run, and for a day those that are over."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "volume-operation", VolumeOperation)
        self._of_volume: dict[str, str] = {}  # keys of those that run
        self.subscribe(self._index_volumes)

    def key_of_volume(self, volume: str) -> str | None:
        """The key of the operation that runs with the volume of this id."""
        return self._of_volume.get(volume)

    def event(self, events: EventLog, operation: VolumeOperation, *, actor: str = "skerry") -> Put:
        """The event of the status or step that it has now."""
        happened = operation.status if operation.is_over else operation.step
        return events.put(
            f"volume.{operation.kind.replace('-', '_')}_{happened.lower()}",
            f"volume/{operation.namespace}/{operation.volume}",
            actor=actor,
            reason=operation.reason,
            request_id=operation.request_id,
            operation=operation.id,
            name=operation.volume,
            namespace=operation.namespace,
            node=operation.node,
            target=operation.target,
            snapshot=operation.snapshot,
        )

    def _index_volumes(self, changes: Sequence[RecordChange[VolumeOperation]]) -> None:
        for key, before, after in changes:
            if after is not None and not after.value.is_over and after.value.volume_id:
                self._of_volume[after.value.volume_id] = key
            elif before is not None and self._of_volume.get(before.value.volume_id) == key:
                del self._of_volume[before.value.volume_id]


class OperationTables(NamedTuple):
    """The tables that operations read and write."""

    operations: OperationTable
    snapshots: SnapshotTable
    volumes: VolumeTable
    instances: InstanceTable

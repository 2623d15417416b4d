"""Snapshots and operations as JSON: documents that the endpoints return, and the input they take. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.control.snapshots.requests import MoveRequest, RestoreRequest, SnapshotRequest
from skerry.model.snapshots import Snapshot, SnapshotLocation, SnapshotStatus
from skerry.model.volume_operations import (
    OperationKind,
    OperationStatus,
    OperationStep,
    VolumeOperation,
)

Epoch = Annotated[float, Meta(description="Seconds since the epoch")]
_NAME = Meta(max_length=128)


class SnapshotDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a volume."""

    id: str
    name: str
    namespace: str
    volume: Annotated[str, Meta(description="The name of the volume, which may be deleted by now")]
    volume_id: str
    size: Annotated[int, Meta(description="Of the volume, GB")]
    data_bytes: Annotated[int, Meta(description="Without blocks that were never written")]
    status: SnapshotStatus
    location: SnapshotLocation
    node_id: Annotated[str, Meta(description="On which it was taken, and is, if `location` is `node`")]
    digest: Annotated[str, Meta(description="`sha256:...` of its manifest; empty while it is created")]
    created_at: Epoch
    taken_at: Annotated[float | None, Meta(description="When the volume was as the snapshot is")]


class OperationDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An operation on a volume."""

    id: str
    kind: OperationKind
    namespace: str
    volume: str
    volume_id: str
    status: OperationStatus
    step: OperationStep
    reason: Annotated[str, Meta(description="Why it waits, is tried again, or failed")]
    node_id: Annotated[str, Meta(description="On which the volume is, or the snapshot that is deleted")]
    target_id: Annotated[str, Meta(description="On which it is to be")]
    snapshot: str
    location: SnapshotLocation
    digest: Annotated[str, Meta(description="Of the data that are copied, when it is known")]
    done_bytes: int
    total_bytes: Annotated[int, Meta(description="Of the present step; 0: not known")]
    may_cancel: bool
    created_at: Epoch
    ended_at: Annotated[float | None, Meta(description="Seconds since the epoch; null: not ended")]


class SnapshotInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A snapshot to be taken."""

    name: Annotated[str, _NAME, Meta(description="Empty: made of the volume's name and the time")] = ""
    to: Annotated[SnapshotLocation, Meta(description="Where its data is kept")] = SnapshotLocation.NODE

    def request(self) -> SnapshotRequest:
        return SnapshotRequest(self.name, self.to)


class RestoreInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A snapshot to be restored."""

    snapshot: Annotated[str, Meta(min_length=1, max_length=128, description="Its name, or its id")]
    new_name: Annotated[str, _NAME, Meta(description="Of a new volume; empty: into the one of the path")] = ""
    node: Annotated[
        str, _NAME, Meta(description="Of the new volume, by name or id; empty: the snapshot's")
    ] = ""
    stop: Annotated[bool, Meta(description="Stop what uses the volume, and start it again")] = False

    def request(self) -> RestoreRequest:
        return RestoreRequest(self.snapshot, self.new_name, self.node, self.stop)


class MoveInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a volume is to be."""

    node: Annotated[str, Meta(min_length=1, max_length=128, description="By name or id")]

    def request(self) -> MoveRequest:
        return MoveRequest(self.node)


def snapshot_document(snapshot: Snapshot) -> SnapshotDocument:
    return SnapshotDocument(
        id=snapshot.id,
        name=snapshot.name,
        namespace=snapshot.namespace,
        volume=snapshot.volume,
        volume_id=snapshot.volume_id,
        size=snapshot.size,
        data_bytes=snapshot.data_bytes,
        status=snapshot.status,
        location=snapshot.location,
        node_id=snapshot.node,
        digest=snapshot.digest,
        created_at=snapshot.created_at,
        taken_at=snapshot.taken_at or None,
    )


def operation_document(operation: VolumeOperation) -> OperationDocument:
    return OperationDocument(
        id=operation.id,
        kind=operation.kind,
        namespace=operation.namespace,
        volume=operation.volume,
        volume_id=operation.volume_id,
        status=operation.status,
        step=operation.step,
        reason=operation.reason or operation.waiting,
        node_id=operation.node,
        target_id=operation.target,
        snapshot=operation.snapshot,
        location=operation.location,
        digest=operation.digest,
        done_bytes=operation.done_bytes,
        total_bytes=operation.total_bytes,
        may_cancel=operation.may_cancel,
        created_at=operation.created_at,
        ended_at=operation.ended_at,
    )

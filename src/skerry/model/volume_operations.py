"""Operations on volumes: snapshots, restores, moves and deletions of snapshots, as they are stored.

An operation is a sequence of steps, each of which can be repeated: whoever leads goes on with the step that
is stored (`skerry.control.snapshots.controller`). A volume has at most one operation at a time, which may
hold it: nothing uses it then.
"""

from __future__ import annotations

import enum

import msgspec

from skerry.model import ids
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace, NodeId, VolumeId
from skerry.model.resources import Gigabytes
from skerry.model.snapshots import SnapshotLocation


class OperationKind(enum.StrEnum):
    """What is done."""

    SNAPSHOT = "snapshot"
    RESTORE = "restore"
    MOVE = "move"
    DELETE_SNAPSHOT = "delete-snapshot"


class OperationStep(enum.StrEnum):
    """What is done now. Which steps follow each other is in `skerry.control.snapshots.decisions`."""

    STOPPING = "STOPPING"  # users of the volume are stopped
    COPYING = "COPYING"  # data are copied and verified
    INSTALLING = "INSTALLING"  # the copy takes the place of the volume
    REMOVING = "REMOVING"  # the volume is in use again; what is not needed any more is removed
    CLEANING = "CLEANING"  # it failed or was cancelled; what it has left is removed
    DONE = "DONE"


class OperationStatus(enum.StrEnum):
    """How an operation is going, or went."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class VolumeOperation(msgspec.Struct, frozen=True):
    """An operation as it is stored. Its name is its id."""

    id: str
    kind: OperationKind
    volume_id: VolumeId
    volume: str  # its name
    created_at: float
    namespace: Namespace = DEFAULT_NAMESPACE
    size: Gigabytes = Gigabytes(0)
    step: OperationStep = OperationStep.COPYING
    status: OperationStatus = OperationStatus.RUNNING
    node: NodeId = NodeId("")  # on which the volume is, or the snapshot that is deleted
    target: NodeId = NodeId("")  # on which it is to be; of a restore: on which it is restored
    generation: int = 0  # of the volume when it began; the next belongs to the copy
    snapshot_id: str = ""
    snapshot: str = ""  # its name
    snapshot_node: NodeId = NodeId("")  # on which it was taken
    location: SnapshotLocation = SnapshotLocation.NODE
    digest: str = ""  # of the snapshot, or of the copy
    is_new: bool = False  # a restore into a new volume
    is_cancelled: bool = False  # on request
    reason: str = ""  # why it failed, or was cancelled
    done_bytes: int = 0
    total_bytes: int = 0
    ended_at: float | None = None
    actor: str = ""
    request_id: str = ""
    waiting: str = ""  # why its step does not go on, or is tried again

    def __post_init__(self) -> None:
        ids.check_id(self.id)
        ids.check_namespace(self.namespace)

    @property
    def name(self) -> str:
        return self.id

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    @property
    def may_cancel(self) -> bool:
        """False once the copy may have replaced the data of the volume, or nothing is left to undo."""
        if self.kind is OperationKind.DELETE_SNAPSHOT or self.is_over:
            return False
        if self.step is OperationStep.INSTALLING:
            return self.kind is OperationKind.MOVE or self.is_new
        return self.step in (OperationStep.STOPPING, OperationStep.COPYING)

"""Decides what follows in an operation on a volume. Pure: no I/O, clock or randomness.

`decide` says what is to be done in the step that an operation is in; `advance` and `fail` are its records
after that was done, or failed for good. Steps:

    snapshot         COPYING
    restore          COPYING, STOPPING, INSTALLING; of a new volume COPYING, INSTALLING
    move             STOPPING, COPYING, INSTALLING, REMOVING
    delete-snapshot  REMOVING

and CLEANING after a failure or a cancel. Two rules hold in every step: data are removed only when a verified
copy has taken their place in the store, and a volume is never left held: the record that ends the need for
that releases it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.snapshots import ObjectStore, Snapshot, SnapshotLocation, SnapshotStatus
from skerry.model.statuses import TERMINAL
from skerry.model.volume_operations import (
    OperationKind,
    OperationStatus,
    OperationStep,
    VolumeOperation,
)
from skerry.model.volume_tasks import TaskResult, VolumeAction, VolumeTask
from skerry.model.volumes import Volume, VolumeStatus
from skerry.model.workloads import Instance

KEPT_S = 86_400.0  # after its end
# Errors after which the same may work later.
_TEMPORARY = (errors.Unavailable, errors.TimedOut, errors.Overloaded, errors.Conflict)


class NodeTask(msgspec.Struct, frozen=True):
    """A task for one node."""

    node: NodeId
    task: VolumeTask


class EvictUsers(msgspec.Struct, frozen=True):
    """These instances must leave their node; then wait."""

    instances: tuple[InstanceId, ...]
    reason: str


class Wait(msgspec.Struct, frozen=True):
    """Something else has to happen first."""

    reason: str


class RunTasks(msgspec.Struct, frozen=True):
    """These tasks, one after the other."""

    tasks: tuple[NodeTask, ...]


class TransferImage(msgspec.Struct, frozen=True):
    """Two tasks at once, of which the first sends what the second receives."""

    send: NodeTask
    receive: NodeTask


class Proceed(msgspec.Struct, frozen=True):
    """Nothing is left to be done in this step."""


class Cancel(msgspec.Struct, frozen=True):
    """It was cancelled, and can be."""


Decision = EvictUsers | Wait | RunTasks | TransferImage | Proceed | Cancel


class OperationChange(msgspec.Struct, frozen=True):
    """Records after a step, all in one transaction. None: it does not change, or there is none."""

    operation: VolumeOperation
    volume: Volume | None = None
    is_volume_removed: bool = False
    snapshot: Snapshot | None = None
    is_snapshot_removed: bool = False


def decide(
    operation: VolumeOperation,
    users: Sequence[Instance],
    is_registered: Callable[[NodeId], bool],
    store: ObjectStore | None = None,
    volume_node: NodeId | None = None,
) -> Decision:
    """What is to be done now. `users` are the instances that use the volume on its node, `volume_node` is
    that node, and `store` is that of the settings."""
    if operation.is_cancelled and operation.may_cancel:
        return Cancel()
    match operation.step:
        case OperationStep.STOPPING:
            return _stop(operation, users)
        case OperationStep.COPYING:
            return _copy(operation, store)
        case OperationStep.INSTALLING:
            return RunTasks((NodeTask(operation.target, _task(operation, VolumeAction.INSTALL)),))
        case OperationStep.REMOVING | OperationStep.CLEANING:
            removals = _removals(operation, store, volume_node)
            tasks = tuple(task for task in removals if is_registered(task.node))
            return RunTasks(tasks) if tasks else Proceed()
        case OperationStep.DONE:
            return Proceed()


def is_temporary(error: errors.SkerryError) -> bool:
    """True if the step is to be tried again."""
    return isinstance(error, _TEMPORARY)


def advance(
    operation: VolumeOperation,
    volume: Volume | None,
    snapshot: Snapshot | None,
    result: TaskResult,
    now: float,
) -> OperationChange:
    """The records after the step was done."""
    match operation.kind, operation.step:
        case OperationKind.SNAPSHOT, OperationStep.COPYING:
            return OperationChange(
                _end(replace(operation, digest=result.digest), OperationStatus.SUCCEEDED, now),
                volume=_released(operation, volume),
                snapshot=None
                if snapshot is None
                else replace(
                    snapshot,
                    status=SnapshotStatus.READY,
                    digest=result.digest,
                    data_bytes=result.data_bytes,
                    taken_at=result.taken_at,
                ),
            )
        case OperationKind.RESTORE, OperationStep.COPYING if not operation.is_new:
            after = _step(replace(operation, digest=result.digest), OperationStep.STOPPING)
            return OperationChange(after, volume=_held(operation, volume))
        case _, OperationStep.COPYING:
            return OperationChange(_step(replace(operation, digest=result.digest), OperationStep.INSTALLING))
        case OperationKind.MOVE, OperationStep.STOPPING:
            return OperationChange(_step(operation, OperationStep.COPYING))
        case _, OperationStep.STOPPING:
            return OperationChange(_step(operation, OperationStep.INSTALLING))
        case OperationKind.MOVE, OperationStep.INSTALLING:
            return OperationChange(
                _step(operation, OperationStep.REMOVING), volume=_installed(operation, volume, now)
            )
        case _, OperationStep.INSTALLING:
            return OperationChange(
                _end(operation, OperationStatus.SUCCEEDED, now), volume=_installed(operation, volume, now)
            )
        case OperationKind.DELETE_SNAPSHOT, OperationStep.REMOVING:
            return OperationChange(
                _end(operation, OperationStatus.SUCCEEDED, now), snapshot=snapshot, is_snapshot_removed=True
            )
        case _, OperationStep.REMOVING:
            return OperationChange(_end(operation, OperationStatus.SUCCEEDED, now))
        case _, OperationStep.CLEANING:
            return OperationChange(
                _end(operation, operation.status, now),
                snapshot=snapshot if operation.kind is OperationKind.SNAPSHOT else None,
                is_snapshot_removed=operation.kind is OperationKind.SNAPSHOT,
            )
        case _:
            return OperationChange(operation)


def fail(
    operation: VolumeOperation,
    volume: Volume | None,
    snapshot: Snapshot | None,
    status: OperationStatus,
    reason: str,
) -> OperationChange | None:
    """The records after the step failed for good, or was cancelled: the volume is as it was, and what was
    copied is to be removed. None if the step has to be tried again all the same."""
    match operation.step:
        case OperationStep.REMOVING | OperationStep.CLEANING | OperationStep.DONE:
            return None
        case OperationStep.INSTALLING if not operation.may_cancel:
            return None
        case _:
            pass
    after = replace(_step(operation, OperationStep.CLEANING), status=status, reason=reason)
    released = _released(operation, volume)
    if released is not None and operation.kind is OperationKind.MOVE:
        # The copy may be installed at the target. It has the next generation, and the volume one above: so
        # cleaning, which may come late, never removes what a later operation installed there.
        released = replace(released, generation=operation.generation + 2)
    if snapshot is not None and operation.kind is OperationKind.SNAPSHOT:
        snapshot = replace(snapshot, status=SnapshotStatus.DELETING)
    else:
        snapshot = None
    return OperationChange(
        after, volume=released, is_volume_removed=operation.is_new and released is not None, snapshot=snapshot
    )


def retreat(operation: VolumeOperation, error: errors.SkerryError) -> OperationChange | None:
    """The copy is gone from the node that was to install it: it is made again. None: it is another error."""
    if operation.step is OperationStep.INSTALLING and isinstance(error, errors.NotFound):
        # Of a move the next copy may differ; of a restore it may not.
        digest = "" if operation.kind is OperationKind.MOVE else operation.digest
        return OperationChange(_step(replace(operation, digest=digest), OperationStep.COPYING))
    return None


def uses(instance: Instance, volume: str) -> bool:
    """True if an instance has the volume of this id on its node, or may have again."""
    return (
        instance.node is not None and volume in instance.volumes and instance.observed.status not in TERMINAL
    )


def _stop(operation: VolumeOperation, users: Sequence[Instance]) -> Decision:
    if not users:
        return Proceed()
    to_evict = tuple(one.id for one in users if one.leaving is None)
    names = ", ".join(sorted({one.spec.name for one in users})[:5])
    reason = f"volume {operation.volume} is being {_PAST[operation.kind]}"
    return EvictUsers(to_evict, reason) if to_evict else Wait(f"waits for {names} to stop")


_PAST = {
    OperationKind.MOVE: "moved",
    OperationKind.RESTORE: "restored",
    OperationKind.SNAPSHOT: "copied",
    OperationKind.DELETE_SNAPSHOT: "deleted",
}


def _copy(operation: VolumeOperation, store: ObjectStore | None) -> Decision:
    match operation.kind:
        case OperationKind.SNAPSHOT:
            return RunTasks((NodeTask(operation.node, _task(operation, VolumeAction.SNAPSHOT, store=store)),))
        case OperationKind.MOVE:
            return TransferImage(
                NodeTask(operation.node, _task(operation, VolumeAction.SEND_VOLUME)),
                NodeTask(operation.target, _task(operation, VolumeAction.RECEIVE)),
            )
        case _ if operation.location is SnapshotLocation.NODE and (
            operation.snapshot_node != operation.target
        ):
            return TransferImage(
                NodeTask(operation.snapshot_node, _task(operation, VolumeAction.SEND_SNAPSHOT)),
                NodeTask(operation.target, _task(operation, VolumeAction.RECEIVE)),
            )
        case _:
            return RunTasks((NodeTask(operation.target, _task(operation, VolumeAction.FETCH, store=store)),))


def _removals(
    operation: VolumeOperation, store: ObjectStore | None, volume_node: NodeId | None
) -> Sequence[NodeTask]:
    """What removes everything that is not needed any more."""
    at_source = operation.generation  # what the volume has there at most
    if operation.kind is OperationKind.DELETE_SNAPSHOT:
        return (NodeTask(operation.node, _task(operation, VolumeAction.DELETE_SNAPSHOT, store=store)),)
    if operation.kind is OperationKind.SNAPSHOT:
        return (NodeTask(operation.node, _task(operation, VolumeAction.DISCARD_SNAPSHOT, store=store)),)
    if operation.step is OperationStep.REMOVING:
        return (NodeTask(operation.node, _task(operation, VolumeAction.REMOVE, generation=at_source)),)
    # A volume that is at the target after all is not removed there: the operation was done before the store
    # was restored from a backup of its time.
    is_undone = volume_node != operation.target
    if operation.kind is OperationKind.MOVE:
        action = VolumeAction.REMOVE if is_undone else VolumeAction.DISCARD
        return (
            NodeTask(operation.target, _task(operation, action)),
            NodeTask(operation.node, _task(operation, VolumeAction.DISCARD)),
        )
    action = VolumeAction.REMOVE if operation.is_new and is_undone else VolumeAction.DISCARD
    return (NodeTask(operation.target, _task(operation, action)),)


def _task(
    operation: VolumeOperation,
    action: VolumeAction,
    *,
    generation: int | None = None,
    store: ObjectStore | None = None,
) -> VolumeTask:
    return VolumeTask(
        action,
        operation.id,
        operation.volume_id,
        operation.volume,
        operation.namespace,
        operation.size,
        operation.generation + 1 if generation is None else generation,
        operation.snapshot_id,
        operation.location,
        operation.digest,
        store if operation.location is SnapshotLocation.S3 else None,
    )


def _step(operation: VolumeOperation, step: OperationStep) -> VolumeOperation:
    return replace(operation, step=step, waiting="", done_bytes=0, total_bytes=0)


def _end(operation: VolumeOperation, status: OperationStatus, now: float) -> VolumeOperation:
    return replace(_step(operation, OperationStep.DONE), status=status, ended_at=now)


def _held(operation: VolumeOperation, volume: Volume | None) -> Volume | None:
    return None if volume is None else replace(volume, is_held=True, operation=operation.id)


def _released(operation: VolumeOperation, volume: Volume | None) -> Volume | None:
    """The volume without this operation; None if it is not of this operation."""
    if volume is None or volume.operation != operation.id:
        return None
    return replace(volume, is_held=False, operation="")


def _installed(operation: VolumeOperation, volume: Volume | None, now: float) -> Volume | None:
    """The volume with the data that were installed."""
    released = _released(operation, volume)
    if released is None:
        return None
    return replace(
        released,
        node=operation.target,
        status=VolumeStatus.READY,
        reason="",
        since=now if released.status is not VolumeStatus.READY else released.since,
        has_been_ready=True,
        generation=operation.generation + 1,
        # Where it was pinned to is where it no longer is.
        pin=operation.target if released.pin and operation.kind is OperationKind.MOVE else released.pin,
    )

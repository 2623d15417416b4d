"""Tasks about volumes as messages of a tunnel's request: see `skerry.model.volume_tasks`."""

from __future__ import annotations

from skerry.kit.field_copy import copy_fields
from skerry.model import ids
from skerry.model.ids import Namespace, VolumeId
from skerry.model.resources import Gigabytes
from skerry.model.snapshots import ObjectStore, SnapshotLocation
from skerry.model.volume_tasks import VolumeAction, VolumeTask
from skerry.transport.enum_values import decode_enum
from skerry.transport.proto import nodes_pb2 as pb


def encode_task(task: VolumeTask) -> pb.VolumeAsk:
    message = pb.VolumeAsk(
        action=task.action,
        operation=task.operation,
        volume=task.volume,
        name=task.name,
        namespace=task.namespace,
        size_gb=task.size,
        generation=task.generation,
        snapshot=task.snapshot,
        location=task.location,
        digest=task.digest,
    )
    if task.store is not None:
        message.store.CopyFrom(copy_fields(pb.ObjectStore, task.store))
    return message


def decode_task(message: pb.VolumeAsk) -> VolumeTask:
    """Raises Invalid; ids become names of files."""
    return VolumeTask(
        decode_enum(VolumeAction, message.action, "action"),
        ids.check_id(message.operation, "operation"),
        VolumeId(ids.check_id(message.volume, "volume") if message.volume else ""),
        message.name,
        Namespace(message.namespace),
        Gigabytes(message.size_gb),
        message.generation,
        ids.check_id(message.snapshot, "snapshot") if message.snapshot else "",
        decode_enum(SnapshotLocation, message.location or SnapshotLocation.NODE, "location"),
        message.digest,
        copy_fields(ObjectStore, message.store) if message.HasField("store") else None,
    )

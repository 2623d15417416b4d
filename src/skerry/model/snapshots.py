"""Snapshots of volumes: what is stored about one, and where its data is.

A snapshot is a copy of a volume at one moment. It outlives its volume. `skerry.control.snapshots` has them;
the data is on the node on which it was taken, in a folder that an admin configured on the nodes, or in a
store with the API of S3.
"""

from __future__ import annotations

import enum

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace, NodeId
from skerry.model.resources import Gigabytes

MAX_NAME = 128


class SnapshotLocation(enum.StrEnum):
    """Where the data of a snapshot is."""

    NODE = "node"  # on the node on which it was taken
    FOLDER = "folder"  # in the folder `node.snapshot_folder` of the nodes, which may be a network file system
    S3 = "s3"  # in the bucket of the settings `snapshots`


class SnapshotStatus(enum.StrEnum):
    """The status of a snapshot."""

    CREATING = "CREATING"
    READY = "READY"
    DELETING = "DELETING"


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot as it is stored; its name is its own in its namespace."""

    id: str
    name: str
    volume: str  # its name, also after the volume is deleted
    volume_id: str
    size: Gigabytes  # of the volume
    created_at: float
    namespace: Namespace = DEFAULT_NAMESPACE
    node: NodeId = NodeId("")  # on which it was taken
    location: SnapshotLocation = SnapshotLocation.NODE
    status: SnapshotStatus = SnapshotStatus.CREATING
    digest: str = ""  # `sha256:...`, of its manifest
    data_bytes: int = 0  # without blocks that were never written
    taken_at: float = 0.0  # when the volume was as the snapshot is
    request_id: str = ""

    def __post_init__(self) -> None:
        check_snapshot_name(self.name)
        ids.check_namespace(self.namespace)


def check_snapshot_name(name: str) -> str:
    """Names begin with a letter or digit, and hold letters, digits, `.`, `_` and `-`."""
    if not name or len(name) > MAX_NAME:
        raise errors.Invalid(f"the name of a snapshot has 1 to {MAX_NAME} characters", field="name")
    return ids.check_id(name, "name")


class ObjectStore(msgspec.Struct, frozen=True):
    """A bucket with the API of S3. It is sent to a node for one task, and is not stored there."""

    endpoint: str  # such as `https://s3.example.org`
    bucket: str
    region: str
    access_key: str
    secret_key: str
    prefix: str = ""  # of all keys

    def __repr__(self) -> str:
        # Keys must not reach a log by way of a message or a traceback.
        return f"ObjectStore({self.endpoint!r}, {self.bucket!r})"

    __str__ = __repr__

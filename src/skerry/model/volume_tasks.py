"""Tasks of nodes about volumes: what a server asks for over a tunnel, and the frames of the answer.

A task belongs to an operation (`skerry.model.volume_operations`), and is the same however often it is asked
for: a node that was interrupted goes on where it was. The first byte of a frame is its channel. Nodes with
`NodeFeature.SNAPSHOTS` know these.
"""

from __future__ import annotations

import enum

import msgspec

from skerry.model import errors
from skerry.model.ids import Namespace, VolumeId
from skerry.model.resources import Gigabytes
from skerry.model.snapshots import ObjectStore, SnapshotLocation


class VolumeAction(enum.StrEnum):
    """What a node is to do."""

    SNAPSHOT = "snapshot"  # copy the volume as it is at one moment, and store the copy
    DELETE_SNAPSHOT = "delete-snapshot"
    DISCARD_SNAPSHOT = "discard-snapshot"  # remove what was stored of one that is not to be
    SEND_VOLUME = "send-volume"  # send the data of the volume, which nothing uses, into the tunnel
    SEND_SNAPSHOT = "send-snapshot"
    RECEIVE = "receive"  # make a draft of what comes out of the tunnel
    FETCH = "fetch"  # make a draft of a snapshot that this node can read
    INSTALL = "install"  # the draft becomes the data of the volume
    DISCARD = "discard"  # remove what the operation has left on the node
    REMOVE = "remove"  # remove the volume, and what the operation has left


class VolumeTask(msgspec.Struct, frozen=True):
    """One task. Fields that an action does not need are empty."""

    action: VolumeAction
    operation: str
    volume: VolumeId = VolumeId("")
    name: str = ""  # of the volume
    namespace: Namespace = Namespace("")
    size: Gigabytes = Gigabytes(0)
    generation: int = 0  # that the volume has after it; of REMOVE: that it has at most
    snapshot: str = ""  # its id
    location: SnapshotLocation = SnapshotLocation.NODE
    digest: str = ""  # that the data must have; empty: any
    store: ObjectStore | None = None  # of the location S3


class TaskChannel(enum.IntEnum):
    """What a frame holds."""

    PROGRESS = 1  # to the server: bytes that are done, and all, in decimal digits, divided by a space
    RESULT = 2  # to the server, the last: a `TaskResult` as JSON
    MANIFEST = 3  # to the receiver: a part of the manifest; without data: that was all of it
    WANTED = 4  # to the sender: the first chunk that the receiver does not have, in decimal digits
    DATA = 5  # to the receiver: the next bytes of chunks that are no holes


class TaskResult(msgspec.Struct, frozen=True):
    """What a task came to."""

    digest: str = ""
    data_bytes: int = 0
    image_bytes: int = 0
    taken_at: float = 0.0


class TaskFrame(msgspec.Struct, frozen=True):
    """Some bytes of one channel."""

    channel: TaskChannel
    data: bytes = b""

    def pack(self) -> bytes:
        return bytes([self.channel]) + self.data

    @classmethod
    def unpack(cls, packed: bytes) -> TaskFrame:
        """The frame in `packed`; `Invalid` if there is none."""
        try:
            return cls(TaskChannel(packed[0]), packed[1:])
        except (IndexError, ValueError):
            raise errors.Invalid("a frame of a task must begin with the number of a channel") from None


class TaskProgress(msgspec.Struct, frozen=True):
    """Bytes that are done, and all there are to do."""

    done: int
    total: int

    def frame(self) -> TaskFrame:
        return TaskFrame(TaskChannel.PROGRESS, b"%d %d" % (self.done, self.total))

    @classmethod
    def of(cls, frame: TaskFrame) -> TaskProgress:
        try:
            done, total = map(int, frame.data[:40].split(b" "))
        except ValueError:
            raise errors.Invalid("progress is two numbers") from None
        return cls(max(0, done), max(0, total))

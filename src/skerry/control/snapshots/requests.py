"""Requests about snapshots and moves, as the registry takes them. Validation only."""

from __future__ import annotations

import msgspec

from skerry.model import errors, ids
from skerry.model.mounts import check_volume_name
from skerry.model.snapshots import SnapshotLocation, check_snapshot_name


class SnapshotRequest(msgspec.Struct, frozen=True):
    """A snapshot to be taken."""

    name: str = ""  # empty: made of the volume's and the time
    location: SnapshotLocation = SnapshotLocation.NODE

    def __post_init__(self) -> None:
        if self.name:
            check_snapshot_name(self.name)


class RestoreRequest(msgspec.Struct, frozen=True):
    """A snapshot to be restored."""

    snapshot: str
    new_name: str = ""  # of a new volume; empty: into the one that is named
    node: str = ""  # of the new volume, by name or id; empty: that of the snapshot
    may_stop: bool = False  # what uses the volume is stopped for it, and started again

    def __post_init__(self) -> None:
        if not self.snapshot:
            raise errors.Invalid("name the snapshot to restore", field="snapshot")
        if self.new_name:
            check_volume_name(self.new_name)
        ids.check_display_text(self.node, "node")


class MoveRequest(msgspec.Struct, frozen=True):
    """A volume to be moved."""

    node: str  # by name or id

    def __post_init__(self) -> None:
        if not self.node:
            raise errors.Invalid("name the node to move the volume to", field="node")
        ids.check_display_text(self.node, "node")

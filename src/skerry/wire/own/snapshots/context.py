"""The context of the endpoints of snapshots, which they get when the application is built."""

from __future__ import annotations

import msgspec

from skerry.control.snapshots.registry import SnapshotRegistry


class SnapshotContext(msgspec.Struct, frozen=True):
    """The first argument of these endpoints."""

    snapshots: SnapshotRegistry

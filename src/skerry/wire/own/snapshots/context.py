"""The context of the endpoints of snapshots, which they get when the application is built."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.control.snapshots.registry import SnapshotRegistry


@dataclass(frozen=True, slots=True)
class SnapshotContext:
    """The first argument of these endpoints."""

    snapshots: SnapshotRegistry

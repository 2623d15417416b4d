"""Records of volumes on disk, for the next agent.

    volumes/
      01hx.../
        record.json       what the volume is, and the last order for it
        image             its file system

A volume exists when its record does: the image is finished and synced before. A folder whose name begins with
a dot is being created or removed, and the next agent removes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import structlog

from skerry.kit import disk_reserve, files
from skerry.model.ids import Namespace, VolumeId
from skerry.model.resources import Gigabytes
from skerry.node import record_files
from skerry.node.containers import tree_size
from skerry.node.record_files import DRAFT, RecordFolders, UnreadableRecord

log = structlog.get_logger(__name__)

_RECORD: Final = "record.json"
_IMAGE: Final = "image"


class VolumeRecord(msgspec.Struct, frozen=True):
    """A volume that is on this node."""

    id: VolumeId
    name: str
    namespace: Namespace
    size: Gigabytes
    generation: int
    created_at: float
    receipt: bytes = b""  # of the last order


class VolumePaths(msgspec.Struct, frozen=True):
    """The files of one volume."""

    folder: Path

    @property
    def image(self) -> Path:
        return self.folder / _IMAGE

    @property
    def record(self) -> Path:
        return self.folder / _RECORD


class VolumeRecords:
    """The folder of all volumes."""

    def __init__(self, folder: Path) -> None:
        self._folders = RecordFolders(folder)

    @property
    def folder(self) -> Path:
        return self._folders.folder

    def paths(self, id: VolumeId) -> VolumePaths:
        return VolumePaths(self._folders.folder / id)

    def load(self) -> Iterator[VolumeRecord]:
        """Every volume. A folder without a readable record is left as it is: it may hold data."""
        for path in self._folders.leftovers():
            tree_size.remove(path)
        for path in sorted(self._folders.folder.iterdir()):
            try:
                record = record_files.load(path / _RECORD, VolumeRecord)
            except UnreadableRecord as error:
                log.error("volume.unreadable", folder=str(path), error=str(error), hint="it is not removed")
                continue
            if record.id == path.name:
                yield record

    def draft(self, id: VolumeId) -> VolumePaths:
        """An empty folder in which a volume is prepared, for `publish`."""
        folder = self._folders.folder / f"{DRAFT}{id}"
        tree_size.remove(folder)
        folder.mkdir(mode=0o700)
        return VolumePaths(folder)

    def publish(self, draft: VolumePaths, record: VolumeRecord) -> None:
        """Make the volume of a draft exist, with its synced image; durable on return."""
        record_files.write(draft.record, record)
        record_files.sync(draft.record)
        files.sync_folder(draft.folder)
        os.rename(draft.folder, self.paths(record.id).folder)
        files.sync_folder(self._folders.folder)

    def save(self, record: VolumeRecord) -> None:
        """Replace the record of a volume; durable on return."""
        paths = self.paths(record.id)
        disk_reserve.spend(lambda: record_files.write(paths.record, record))
        record_files.sync(paths.record)
        files.sync_folder(paths.folder)

    def remove(self, id: VolumeId) -> None:
        """Remove the folder of a volume with everything in it; it is gone for readers at once, and
        durably."""
        trash = self._folders.discard(self.paths(id).folder)
        if trash is not None:
            files.sync_folder(self._folders.folder)
            tree_size.remove(trash)

    def discard(self, draft: VolumePaths) -> None:
        tree_size.remove(draft.folder)

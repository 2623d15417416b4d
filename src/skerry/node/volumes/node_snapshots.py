"""Snapshots that are kept on this node: each is its image, with the holes, and its manifest.

The image is renamed out of the folder of its operation, on the same file system, so that it costs no second
copy, and none at all where copies share their blocks. A `skerry.node.volumes.snapshot_store.SnapshotStore`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final

from skerry.kit import files
from skerry.model import ids
from skerry.node.volumes import image_files, manifests, snapshot_store
from skerry.node.volumes.manifests import ImageManifest
from skerry.node.volumes.operation_folders import OperationFolder
from skerry.node.volumes.work_progress import WorkProgress

_IMAGE: Final = "image"
_MANIFEST: Final = "manifest"


class NodeSnapshots:
    """Snapshots in `folder`, by id."""

    def __init__(self, folder: Path) -> None:
        self._folder = files.private_folder(folder)

    def ids(self) -> list[str]:
        return sorted(path.name for path in self._folder.iterdir() if (path / _MANIFEST).exists())

    async def write(
        self, snapshot: str, operation: OperationFolder, manifest: ImageManifest, progress: WorkProgress
    ) -> None:
        await progress.run(self._write, snapshot, operation, manifest)

    async def manifest(self, snapshot: str) -> ImageManifest:
        try:
            data = await asyncio.to_thread((self._path(snapshot) / _MANIFEST).read_bytes)
        except FileNotFoundError:
            raise snapshot_store.missing(snapshot, "on this node") from None
        return manifests.decode(data)

    async def open(self, snapshot: str, manifest: ImageManifest) -> snapshot_store.SnapshotReader:
        try:
            return ImageChunks(self._path(snapshot) / _IMAGE, manifest)
        except FileNotFoundError:
            raise snapshot_store.missing(snapshot, "on this node") from None

    async def remove(self, snapshot: str) -> None:
        await asyncio.to_thread(self._remove, snapshot)

    def image(self, snapshot: str) -> Path:
        return self._path(snapshot) / _IMAGE

    def _path(self, snapshot: str) -> Path:
        return self._folder / ids.check_id(snapshot, "snapshot")

    def _write(self, snapshot: str, operation: OperationFolder, manifest: ImageManifest) -> None:
        path = self._path(snapshot)
        if (path / _MANIFEST).exists():
            return
        files.private_folder(path)
        files.sync_folder(self._folder)
        # Renamed before the manifest is written: a killed agent finds it at one of the two places.
        if operation.image.exists():
            os.rename(operation.image, path / _IMAGE)
            files.sync_folder(path)
        files.write_atomically(path / _MANIFEST, manifest.encode(), files.PRIVATE)

    def has_image(self, snapshot: str) -> bool:
        """True if its image has been renamed here, though the manifest may be missing."""
        return (self._path(snapshot) / _IMAGE).exists()

    def _remove(self, snapshot: str) -> None:
        path = self._path(snapshot)
        if path.exists():
            (path / _MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(path)


class ImageChunks:
    """The chunks of a file: a `SnapshotReader`."""

    def __init__(self, image: Path, manifest: ImageManifest) -> None:
        self._reader = image_files.ImageReader(image, manifest)

    async def read(self, chunk: int) -> bytes:
        return await asyncio.to_thread(self._reader.read, chunk)

    async def close(self) -> None:
        self._reader.close()

"""Where the data of snapshots is kept: the interface, and the folder that implements it.

A snapshot is two objects, `data` with the chunks of its image that are not holes, one after the other, and
`manifest`, which is written last: a snapshot without a manifest does not exist. The other implementations are
`skerry.node.volumes.s3_store` and `skerry.node.volumes.node_snapshots`. Reading is by chunk, so that a
restore can go on where it was interrupted.
"""

from __future__ import annotations

import asyncio
import bisect
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from skerry.kit import files
from skerry.model import errors, ids
from skerry.node.volumes import image_files, manifests
from skerry.node.volumes.manifests import CHUNK_BYTES, ImageManifest
from skerry.node.volumes.operation_folders import OperationFolder
from skerry.node.volumes.work_progress import WorkProgress

_DATA: Final = "data"
_MANIFEST: Final = "manifest"
_PART: Final = ".part"


class SnapshotReader(Protocol):
    """The chunks of one snapshot."""

    async def read(self, chunk: int) -> bytes:
        """A chunk that is no hole, as it was stored; the caller checks it."""
        ...

    async def close(self) -> None: ...


class SnapshotStore(Protocol):
    """Snapshots by their id. What is missing raises `NotFound`, what is out of reach `Unavailable`."""

    async def write(
        self, snapshot: str, operation: OperationFolder, manifest: ImageManifest, progress: WorkProgress
    ) -> None:
        """Store the image of `operation`, verified by reading it back. If it was interrupted, it goes on."""
        ...

    async def manifest(self, snapshot: str) -> ImageManifest: ...

    async def open(self, snapshot: str, manifest: ImageManifest) -> SnapshotReader: ...

    async def remove(self, snapshot: str) -> None:
        """Remove it, or what an interrupted `write` left of it."""
        ...


def missing(snapshot: str, place: str) -> errors.NotFound:
    return errors.NotFound(f"the data of the snapshot {snapshot} is not {place}; it may have been removed")


class ChunkOffsets:
    """Where each chunk is in `data`."""

    def __init__(self, manifest: ImageManifest) -> None:
        self.chunks: Sequence[int] = tuple(manifest.data_chunks())
        self._manifest = manifest

    @property
    def total(self) -> int:
        return self._manifest.data_bytes

    def position(self, chunk: int) -> int:
        """All chunks but the last of an image have the full length."""
        return bisect.bisect_left(self.chunks, chunk) * CHUNK_BYTES


class FolderStore:
    """Snapshots in a folder of this machine, which may be a network file system."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def write(
        self, snapshot: str, operation: OperationFolder, manifest: ImageManifest, progress: WorkProgress
    ) -> None:
        await progress.run(self._write, snapshot, operation, manifest, progress)

    async def manifest(self, snapshot: str) -> ImageManifest:
        try:
            data = await asyncio.to_thread((self._path(snapshot) / _MANIFEST).read_bytes)
        except FileNotFoundError:
            raise missing(snapshot, f"in {self._folder}") from None
        return manifests.decode(data)

    async def open(self, snapshot: str, manifest: ImageManifest) -> SnapshotReader:
        try:
            return _FolderReader(self._path(snapshot) / _DATA, manifest)
        except FileNotFoundError:
            raise missing(snapshot, f"in {self._folder}") from None

    async def remove(self, snapshot: str) -> None:
        await asyncio.to_thread(self._remove, snapshot)

    def _path(self, snapshot: str) -> Path:
        return self._folder / ids.check_id(snapshot, "snapshot")

    def _remove(self, snapshot: str) -> None:
        path = self._path(snapshot)
        if path.exists():
            # Without its manifest it is no snapshot any more, though the removal may be interrupted.
            (path / _MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(path)
        part = path.with_name(path.name + _PART)
        if part.exists():
            shutil.rmtree(part)

    def _write(
        self, snapshot: str, operation: OperationFolder, manifest: ImageManifest, progress: WorkProgress
    ) -> None:
        path = self._path(snapshot)
        if (path / _MANIFEST).exists():
            return
        if not self._folder.is_dir():
            raise errors.FailedPrecondition(
                f"the folder for snapshots, {self._folder}, does not exist on this node; mount or make it"
            )
        part = files.private_folder(path.with_name(path.name + _PART))
        self._write_data(part / _DATA, operation.image, manifest, progress)
        self._verify(part / _DATA, manifest, progress)
        files.write_atomically(part / _MANIFEST, manifest.encode(), files.PRIVATE)
        os.rename(part, path)
        files.sync_folder(self._folder)

    def _write_data(self, data: Path, image: Path, manifest: ImageManifest, progress: WorkProgress) -> None:
        offsets = ChunkOffsets(manifest)
        reader = image_files.ImageReader(image, manifest)
        try:
            file = os.open(data, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, files.PRIVATE)
            try:
                # What is there was written by this operation; verifying reads all of it.
                present = min(os.fstat(file).st_size, offsets.total) // CHUNK_BYTES
                os.ftruncate(file, present * CHUNK_BYTES)
                progress.begin(offsets.total, present * CHUNK_BYTES)
                os.lseek(file, 0, os.SEEK_END)
                for chunk in offsets.chunks[present:]:
                    view = memoryview(reader.read(chunk))
                    while view:
                        view = view[os.write(file, view) :]
                    progress.advance(manifest.length(chunk))
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)  # read back from the disk
            finally:
                os.close(file)
        finally:
            reader.close()

    def _verify(self, data: Path, manifest: ImageManifest, progress: WorkProgress) -> None:
        progress.begin(manifest.data_bytes)
        reader = _FolderReader(data, manifest)
        try:
            for chunk in manifest.data_chunks():
                manifest.check(chunk, reader.read_now(chunk))
                progress.advance(manifest.length(chunk))
        except errors.Unavailable:
            data.unlink()  # begin again
            raise
        finally:
            reader.close_now()


class _FolderReader:
    def __init__(self, data: Path, manifest: ImageManifest) -> None:
        self._manifest = manifest
        self._offsets = ChunkOffsets(manifest)
        self._file = os.open(data, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    async def read(self, chunk: int) -> bytes:
        return await asyncio.to_thread(self.read_now, chunk)

    def read_now(self, chunk: int) -> bytes:
        return os.pread(self._file, self._manifest.length(chunk), self._offsets.position(chunk))

    async def close(self) -> None:
        self.close_now()

    def close_now(self) -> None:
        os.close(self._file)

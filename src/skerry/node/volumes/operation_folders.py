"""Folders of operations on volumes: what is copied, received or fetched for one, until it is complete.

Each operation has one folder, by its id: `image.part` while it is written, `image` once it is complete and on
disk, `manifest` with its digests. A killed agent leaves it as it is, and the same operation continues from
it; `discard` removes it. So a name without `.part` is always whole. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from skerry.kit import files
from skerry.model import errors, ids
from skerry.node.volumes import manifests
from skerry.node.volumes.manifests import ImageManifest

_IMAGE: Final = "image"
_PART: Final = "image.part"
_MANIFEST: Final = "manifest"
_RECEIVED: Final = "received"
_FROZEN: Final = "frozen"
_UPLOAD: Final = "upload"
_ABANDONED_S: Final = 7 * 86_400.0


class ReceivedChunks(msgspec.Struct, frozen=True):
    """How much of `image.part` is on disk: all chunks before `following`, of the image with this digest."""

    digest: str
    following: int


class OperationFolder:
    """The files of one operation."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.image = path / _IMAGE
        self.part = path / _PART

    def make(self) -> None:
        files.private_folder(self.path)

    def complete(self) -> None:
        """`image.part` is the image: make it durable under its name."""
        file = os.open(self.part, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(self.part, self.image)
        files.sync_folder(self.path)

    def restart(self) -> None:
        """Remove an incomplete image."""
        self.part.unlink(missing_ok=True)
        (self.path / _RECEIVED).unlink(missing_ok=True)

    def manifest(self) -> ImageManifest | None:
        """The manifest that was saved; None if there is none that can be read."""
        try:
            return manifests.decode((self.path / _MANIFEST).read_bytes())
        except (FileNotFoundError, errors.Invalid):
            return None

    def save_manifest(self, manifest: ImageManifest) -> None:
        files.write_atomically(self.path / _MANIFEST, manifest.encode(), files.PRIVATE)

    def received(self) -> ReceivedChunks | None:
        try:
            return msgspec.json.decode((self.path / _RECEIVED).read_bytes(), type=ReceivedChunks)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def save_received(self, received: ReceivedChunks) -> None:
        """All chunks before it must be synced."""
        files.write_atomically(self.path / _RECEIVED, msgspec.json.encode(received), files.PRIVATE)

    def upload_id(self) -> str:
        """The id of an upload that has begun, empty if there is none."""
        try:
            return (self.path / _UPLOAD).read_text("ascii")
        except FileNotFoundError:
            return ""

    def save_upload_id(self, upload: str) -> None:
        files.write_atomically(self.path / _UPLOAD, upload.encode("ascii"), files.PRIVATE)

    @contextlib.contextmanager
    def freezing(self, volume: str) -> Iterator[None]:
        """Note for the block that `volume` may be frozen: the next agent thaws it."""
        marker = self.path / _FROZEN
        files.write_atomically(marker, volume.encode(), files.PRIVATE)
        yield
        marker.unlink()

    def frozen_volume(self) -> str:
        """The volume that an agent was killed with while it may have been frozen, or empty."""
        try:
            return (self.path / _FROZEN).read_text("ascii")
        except FileNotFoundError:
            return ""

    def thawed(self) -> None:
        (self.path / _FROZEN).unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove all of it; a folder that is not there is removed."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path)


class OperationFolders:
    """The operations of this node, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = files.private_folder(folder)

    def of(self, operation: str) -> OperationFolder:
        return OperationFolder(self._folder / ids.check_id(operation, "operation"))

    def all(self) -> list[OperationFolder]:
        return [OperationFolder(path) for path in sorted(self._folder.iterdir()) if path.is_dir()]

    def remove_abandoned(self, now: float | None = None) -> None:
        """Remove operations that nobody continued for a week: their control plane has forgotten them."""
        oldest = (time.time() if now is None else now) - _ABANDONED_S
        for each in self.all():
            if max(path.stat().st_mtime for path in (each.path, *each.path.iterdir())) < oldest:
                each.discard()

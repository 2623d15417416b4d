"""The layers of all images, each unpacked once in a folder of its own.

    layers/HEX/           HEX is the digest of the layer's tar
      root/               the folder for overlayfs
      layer.json          its size and origin
    drafts/N/             being unpacked: removed after a crash
    trash/N/              being removed: removed after a crash

A layer is unpacked as a draft, synced, and then renamed into place: an existing one is complete, also after a
power cut. Which layers are used is not known here.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files, json_codec
from skerry.kit.tasks import in_thread
from skerry.model import errors, ids
from skerry.model.ids import Digest
from skerry.node.kernel import tree_removal
from skerry.node.layers.unpacker_client import UnpackedLayer

log = structlog.get_logger(__name__)

_RECORD = "layer.json"
_ROOT = "root"
_ROOT_MODE = 0o755  # of `/` unless the layer sets it


class _LayerRecord(msgspec.Struct, frozen=True):
    bytes: int  # of the tar
    files: int
    from_registry: bool = False  # a registry has returned it
    namespaces: tuple[str, ...] = ()  # only for the logins of these; empty: for all


class LayerDraft:
    """A layer that is being unpacked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / _ROOT


class LayerStore:
    """The folders of layers. Only one process uses them at a time."""

    def __init__(self, folder: Path, failpoint: Callable[[str], None]) -> None:
        self._layers = files.private_folder(folder / "layers")
        self._drafts = files.private_folder(folder / "drafts")
        self._trash = files.private_folder(folder / "trash")
        self._failpoint = failpoint
        self._numbers = itertools.count()
        self._records: dict[Digest, _LayerRecord] = {}

    def load(self) -> None:
        """Load the records, and remove what a crash left. Call it before anything else; waits for the
        disk."""
        for folder in (self._drafts, self._trash):
            _remove(folder / name for name in os.listdir(folder))
        strange = []
        for path in self._layers.iterdir():
            record = _read(path)
            if record is None:
                strange.append(path)
            else:
                self._records[Digest(f"sha256:{path.name}")] = record
        _remove(strange)

    def disk(self) -> tuple[int, int]:
        """Free and total bytes of their file system."""
        status = os.statvfs(self._layers)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize

    def __contains__(self, layer: Digest) -> bool:
        return layer in self._records

    def has(self, layer: Digest, *, from_registry: bool, namespace: str = "") -> bool:
        """True if it is here; with `from_registry`, only if a registry has returned it, to all or to this
        `namespace`: knowing the digest of a layer gives no right to it."""
        record = self._records.get(layer)
        if record is None or not from_registry:
            return record is not None
        return record.from_registry and (not record.namespaces or namespace in record.namespaces)

    def digests(self) -> set[Digest]:
        return set(self._records)

    def root(self, layer: Digest) -> Path:
        return self._layers / layer.removeprefix("sha256:") / _ROOT

    async def draft(self) -> LayerDraft:
        """A new draft: `root` is an empty folder."""
        draft = LayerDraft(self._drafts / str(next(self._numbers)))
        await in_thread(_make, draft)
        return draft

    async def commit(
        self, draft: LayerDraft, unpacked: UnpackedLayer, *, from_registry: bool, namespace: str = ""
    ) -> None:
        """Move the finished `draft` into place; an existing layer stays. A registry has returned it to this
        `namespace`, or without one to all."""
        namespaces = (namespace,) if namespace else ()
        record = _LayerRecord(unpacked.bytes, unpacked.files, from_registry, namespaces)
        await in_thread(_finish, draft, record)
        self._failpoint("layer.synced")
        if unpacked.diff_id not in self._records:
            os.rename(draft.folder, self.root(unpacked.diff_id).parent)
            self._records[unpacked.diff_id] = record
        elif from_registry:
            await in_thread(self.mark, [unpacked.diff_id], namespace)
        self._failpoint("layer.kept")

    def mark(self, layers: Iterable[Digest], namespace: str = "") -> None:
        """Mark those of `layers` that are here as returned by a registry to this `namespace`, or without one
        to all; waits for the disk."""
        for layer in layers:
            record = self._records.get(layer)
            if record is None:
                continue
            known = record.namespaces if record.from_registry else (namespace,)
            marked = msgspec.structs.replace(
                record, from_registry=True, namespaces=with_namespace(known, namespace)
            )
            if marked != record:
                path = self.root(layer).parent / _RECORD
                files.write_atomically(path, json_codec.encode(marked), files.PRIVATE)
                self._records[layer] = marked

    def grant(self, layers: Iterable[Digest], namespace: str) -> None:
        """A registry has an image with these `layers` for this `namespace`, or without one for all: private
        ones are so for fewer, or no more. Waits for the disk."""
        self.mark(
            [layer for layer in layers if layer in self._records and self._records[layer].namespaces],
            namespace,
        )

    async def sync(self) -> None:
        """Make the names of all layers durable, before a record that refers to them is written."""
        await in_thread(files.sync_folder, self._layers)

    async def discard(self, draft: LayerDraft) -> None:
        """Remove the rest of a draft."""
        await in_thread(_remove, [draft.folder])

    def move_to_trash(self, layers: Iterable[Digest]) -> tuple[int, list[Path]]:
        """Move layers to the trash, at once; returns their size, and the folders for `empty`."""
        freed, trash = 0, []
        for layer in layers:
            path = self._trash / str(next(self._numbers))
            os.rename(self.root(layer).parent, path)
            freed += self._records.pop(layer).bytes
            trash.append(path)
            self._failpoint("layers.away")
        return freed, trash

    async def empty(self, trash: Iterable[Path]) -> None:
        """Remove the folders of the trash."""
        await in_thread(_remove, list(trash))


def with_namespace(known: tuple[str, ...], namespace: str) -> tuple[str, ...]:
    """Those that something is private to, after a registry has returned it to `namespace`; empty: to all."""
    if not namespace or not known:
        return ()
    return tuple(sorted({*known, namespace}))


def _make(draft: LayerDraft) -> None:
    draft.folder.mkdir(mode=0o700)
    draft.root.mkdir()
    draft.root.chmod(_ROOT_MODE)


def _finish(draft: LayerDraft, record: _LayerRecord) -> None:
    (draft.folder / _RECORD).write_bytes(json_codec.encode(record))
    try:
        files.sync_file_system(draft.folder)
    except OSError as error:
        raise errors.Internal("the layer could not be synced to the disk", detail=str(error)) from error


def _read(path: Path) -> _LayerRecord | None:
    """The record in a layer's folder; None if there is none."""
    try:
        ids.check_digest(f"sha256:{path.name}")
        return json_codec.decode((path / _RECORD).read_bytes(), _LayerRecord)
    except (errors.Invalid, FileNotFoundError, NotADirectoryError, json_codec.InvalidJson):
        return None


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                tree_removal.remove(os.fsencode(path.name), parent)
            finally:
                os.close(parent)
        except OSError as error:
            log.warning("layer.stays", path=str(path), error=repr(error))

"""The layers of all images, each unpacked once in a folder of its own.

    layers/HEX/           HEX is the digest of the layer's tar
      root/               what overlayfs stacks
      layer.json          what it took
    drafts/N/             being unpacked: nobody's after a crash
    trash/N/              being removed: nobody's after a crash

A layer is unpacked as a draft, brought to the disk, and only then renamed in place: one that is there is
whole, also after a power cut. Which layers are needed is not known here.
"""

from __future__ import annotations

import ctypes
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
_ROOT_MODE = 0o755  # what `/` has unless the layer says otherwise
_libc = ctypes.CDLL(None, use_errno=True)


class _LayerRecord(msgspec.Struct, frozen=True):
    bytes: int  # of the tar
    files: int
    from_registry: bool = False  # a registry has handed it out


class LayerDraft:
    """A layer that is being unpacked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / _ROOT


class LayerStore:
    """The folders of layers. Only one process uses them at a time."""

    def __init__(self, folder: Path, reached: Callable[[str], None]) -> None:
        self._layers = files.private_folder(folder / "layers")
        self._drafts = files.private_folder(folder / "drafts")
        self._trash = files.private_folder(folder / "trash")
        self._reached = reached
        self._numbers = itertools.count()
        self._known: dict[Digest, _LayerRecord] = {}

    def load(self) -> None:
        """Find out what is there, and remove what a crash left. Before anything else; waits for the disk."""
        for left_over in (self._drafts, self._trash):
            _remove(left_over / name for name in os.listdir(left_over))
        strange = []
        for path in self._layers.iterdir():
            record = _read(path)
            if record is None:
                strange.append(path)
            else:
                self._known[Digest(f"sha256:{path.name}")] = record
        _remove(strange)

    def disk(self) -> tuple[int, int]:
        """Bytes of the file system that they are on: free for anybody, and all."""
        status = os.statvfs(self._layers)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize

    def __contains__(self, layer: Digest) -> bool:
        return layer in self._known

    def has(self, layer: Digest, *, from_registry: bool) -> bool:
        """True if it is here; with `from_registry`, only if some registry has handed it out: to know the
        digest of what came from the disk is not to have it."""
        record = self._known.get(layer)
        return record is not None and (record.from_registry or not from_registry)

    def known(self) -> set[Digest]:
        return set(self._known)

    def root(self, layer: Digest) -> Path:
        return self._layers / layer.removeprefix("sha256:") / _ROOT

    async def draft(self) -> LayerDraft:
        """A place to unpack a layer in: `root` is an empty folder."""
        draft = LayerDraft(self._drafts / str(next(self._numbers)))
        await in_thread(_make, draft)
        return draft

    async def keep(self, draft: LayerDraft, unpacked: UnpackedLayer, *, from_registry: bool) -> None:
        """Put the finished `draft` in its place; one that is there already stays."""
        record = _LayerRecord(unpacked.bytes, unpacked.files, from_registry)
        await in_thread(_finish, draft, record)
        self._reached("layer.synced")
        if unpacked.diff_id not in self._known:
            os.rename(draft.folder, self.root(unpacked.diff_id).parent)
            self._known[unpacked.diff_id] = record
        elif from_registry:
            await in_thread(self.mark, [unpacked.diff_id])
        self._reached("layer.kept")

    def mark(self, layers: Iterable[Digest]) -> None:
        """Those of `layers` that are here were handed out by a registry; waits for the disk."""
        for layer in layers:
            record = self._known.get(layer)
            if record is not None and not record.from_registry:
                marked = msgspec.structs.replace(record, from_registry=True)
                place = self.root(layer).parent / _RECORD
                files.write_atomically(place, json_codec.encode(marked), files.PRIVATE)
                self._known[layer] = marked

    async def settle(self) -> None:
        """Make the names of all layers durable: before a record that needs them is written."""
        await in_thread(files.sync_folder, self._layers)

    async def discard(self, draft: LayerDraft) -> None:
        """Remove what is left of a draft."""
        await in_thread(_remove, [draft.folder])

    def take_away(self, layers: Iterable[Digest]) -> tuple[int, list[Path]]:
        """Take layers out of their place, at once; their bytes, and what `empty` is to remove."""
        freed, trash = 0, []
        for layer in layers:
            place = self._trash / str(next(self._numbers))
            os.rename(self.root(layer).parent, place)
            freed += self._known.pop(layer).bytes
            trash.append(place)
            self._reached("layers.away")
        return freed, trash

    async def empty(self, trash: Iterable[Path]) -> None:
        """Remove what was taken away."""
        await in_thread(_remove, list(trash))


def _make(draft: LayerDraft) -> None:
    draft.folder.mkdir(mode=0o700)
    draft.root.mkdir()
    draft.root.chmod(_ROOT_MODE)


def _finish(draft: LayerDraft, record: _LayerRecord) -> None:
    (draft.folder / _RECORD).write_bytes(json_codec.encode(record))
    descriptor = os.open(draft.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # One call for thousands of files; syncing each of them would take many times as long.
        if _libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise errors.Internal("the layer could not be brought to the disk", detail=os.strerror(number))
    finally:
        os.close(descriptor)


def _read(path: Path) -> _LayerRecord | None:
    """What a layer's folder says of itself; None if it is none."""
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

"""Unpacks layers in confined child processes, one per layer, with limits and a watchdog.

`skerry.node.images` calls it with the bytes of a layer and a new folder; `skerry.node.layers.unpacker` is the
child. Nothing of a layer is decompressed or parsed in this process.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec
import structlog

from skerry.kit.tasks import in_thread, run_to_completion
from skerry.model import errors
from skerry.model.ids import Digest, check_digest
from skerry.node.kernel import tree_removal
from skerry.node.layers.unpacker import errors as unpacker_errors
from skerry.node.layers.unpacker.layer_writer import MappedIds
from skerry.node.layers.unpacker_process import LayerInput, UnpackerMessage, UnpackerProcess, open_existing

log = structlog.get_logger(__name__)

IDLE_S: Final = 60.0
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS: Final[dict[str, type[errors.SkerryError]]] = {
    unpacker_errors.MALFORMED: errors.Invalid,
    unpacker_errors.REFUSED: errors.Unprocessable,
    unpacker_errors.TOO_LARGE: errors.TooLarge,
    unpacker_errors.DISK_FULL: errors.ResourcesExhausted,
    unpacker_errors.BROKEN: errors.Internal,
}


class UnpackLimits(msgspec.Struct, frozen=True):
    """Limits of one layer: `ImageSettings.max_layer_bytes` and `ImageSettings.max_layer_files`."""

    bytes: int  # of the uncompressed tar
    files: int  # entries, and folders that entries imply


class UnpackedLayer(msgspec.Struct, frozen=True):
    """A complete layer in its folder."""

    diff_id: Digest  # of the uncompressed tar
    bytes: int  # of the uncompressed tar
    files: int
    changed_owners: int = 0  # files that belong to root, since their owner is not mapped here
    devices: int = 0  # device nodes that were left out, since only root of the machine creates them


class LayerUnpacker:
    """Unpacks layers, each in a child process of its own."""

    def __init__(self, *, idle_s: float = IDLE_S, ids: MappedIds | None = None) -> None:
        """A child that has input and reports no progress for `idle_s` is killed. `ids`: those that exist in
        the user namespace of an ordinary user; None: as root of the machine."""
        self._idle_s = idle_s
        self._ids = ids

    async def unpack(
        self,
        source: Path | AsyncIterator[bytes],
        target: Path,
        *,
        diff_id: Digest | None,
        limits: UnpackLimits,
    ) -> UnpackedLayer:
        """Unpack the layer `source` (gzip, zstd or plain tar) into the empty folder `target`.

        The result is in overlayfs format: a whiteout is a character device 0:0, an opaque folder has
        `trusted.overlay.opaque=y`, or `user.overlay.opaque=y` with mapped ids. It is not synced to disk.
        Raises Invalid (malformed, truncated, or with another `diff_id`), Unprocessable (content that no layer
        may have), TooLarge, ResourcesExhausted, TimedOut, Unavailable, Internal, and the errors of `source`.
        After an error or a cancellation the child has ended, and `target` is removed.
        """
        try:
            return await self._unpack(source, target, diff_id, limits)
        except BaseException:
            await in_thread(_remove, target)
            raise

    async def _unpack(
        self,
        source: Path | AsyncIterator[bytes],
        target: Path,
        diff_id: Digest | None,
        limits: UnpackLimits,
    ) -> UnpackedLayer:
        root = open_existing(target, _OPEN_FOLDER)
        try:
            with LayerInput(source) as layer_input:
                child = await UnpackerProcess.start(
                    layer_input,
                    root,
                    diff_id or "",
                    limits.bytes,
                    limits.files,
                    self._idle_s,
                    self._ids or (0, 0),
                )
                try:
                    reply = await child.exchange(layer_input)
                finally:
                    await run_to_completion(child.end())
        finally:
            os.close(root)
        unpacked = _result(reply, child, diff_id)
        if unpacked.changed_owners or unpacked.devices:
            log.warning(
                "layer.not_as_root",
                layer=unpacked.diff_id,
                files_of_unmapped_owners=unpacked.changed_owners,
                device_nodes_left_out=unpacked.devices,
            )
        return unpacked


def _result(reply: UnpackerMessage | None, child: UnpackerProcess, diff_id: Digest | None) -> UnpackedLayer:
    """The result of a reply. A compromised child could send anything, so it is validated."""
    if child.stderr_tail:
        log.warning("unpacker.complained", complaint=child.stderr_tail)
    if reply is not None and reply.fault in _KINDS:
        raise _KINDS[reply.fault](reply.message)
    if reply is None or (diff_id is not None and reply.diff_id != diff_id):
        log.error("unpacker.died", status=child.status, answer=reply)
        raise errors.Internal(
            "the process that unpacks a layer died or sent an invalid reply; see the log",
            detail=f"status {child.status}: {child.stderr_tail}",
        )
    return UnpackedLayer(
        check_digest(reply.diff_id, "diff_id"), reply.bytes, reply.files, reply.changed_owners, reply.devices
    )


def _remove(target: Path) -> None:
    """Remove it, with any content."""
    parent = os.open(target.parent, _OPEN_FOLDER)
    try:
        tree_removal.remove(os.fsencode(target.name), parent)
    finally:
        os.close(parent)

"""The agent's side of unpacking: one confined child process per layer, watched, bounded and reaped.

`skerry.node.images` calls it with the bytes of a layer and a fresh folder; what happens at the other end is
`skerry.node.layers.unpacker`. Nothing of a layer is ever decompressed or parsed in this process.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from skerry.kit.tasks import in_thread, run_to_completion
from skerry.model import errors
from skerry.model.ids import Digest, check_digest
from skerry.node.kernel import tree_removal
from skerry.node.layers.unpacker import errors as unpacker_errors
from skerry.node.layers.unpacker_process import LayerInput, UnpackerMessage, UnpackerProcess, open_existing

log = structlog.get_logger(__name__)

IDLE_S: Final = 60.0
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS: Final[dict[str, type[errors.SkerryError]]] = {
    unpacker_errors.MALFORMED: errors.Invalid,
    unpacker_errors.REFUSED: errors.Unprocessable,
    unpacker_errors.TOO_LARGE: errors.TooLarge,
    unpacker_errors.NO_ROOM: errors.ResourcesExhausted,
    unpacker_errors.BROKEN: errors.Internal,
}


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """What one layer may take: `ImageSettings.max_layer_bytes` and `ImageSettings.max_layer_files`."""

    bytes: int  # of the uncompressed tar
    files: int  # entries, and folders that entries imply


@dataclass(frozen=True, slots=True)
class UnpackedLayer:
    """A layer that is whole in its folder."""

    diff_id: Digest  # of the uncompressed tar
    bytes: int  # of the uncompressed tar
    files: int


class LayerUnpacker:
    """Unpacks layers, each in a child process of its own."""

    def __init__(self, *, idle_s: float = IDLE_S) -> None:
        """A child that has input and tells of no progress for `idle_s` is given up."""
        self._idle_s = idle_s

    async def unpack(
        self,
        source: Path | AsyncIterator[bytes],
        target: Path,
        *,
        diff_id: Digest | None,
        limits: UnpackLimits,
    ) -> UnpackedLayer:
        """Unpack the layer `source` (gzip, zstd or plain tar) into the empty folder `target`.

        The tree is as overlayfs wants it: a removal is a character device 0:0, an opaque folder has
        `trusted.overlay.opaque=y`. It is not synced to disk. Raises Invalid (malformed, cut off, or not what
        `diff_id` says), Unprocessable (what no layer may hold), TooLarge, ResourcesExhausted, TimedOut,
        Unavailable, Internal, and what `source` raises. After an error or a cancel the child is gone, and so
        is `target`.
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
            with LayerInput(source) as given:
                child = await UnpackerProcess.start(
                    given, root, diff_id or "", limits.bytes, limits.files, self._idle_s
                )
                try:
                    answer = await child.converse(given)
                finally:
                    await run_to_completion(child.end())
        finally:
            os.close(root)
        return _judge(answer, child, diff_id)


def _judge(answer: UnpackerMessage | None, child: UnpackerProcess, diff_id: Digest | None) -> UnpackedLayer:
    """What the answer means. A child that was taken over could say anything, so it is not taken on trust."""
    if child.complaint:
        log.warning("unpacker.complained", complaint=child.complaint)
    if answer is not None and answer.fault in _KINDS:
        raise _KINDS[answer.fault](answer.message)
    if answer is None or (diff_id is not None and answer.diff_id != diff_id):
        log.error("unpacker.died", status=child.status, answer=answer)
        raise errors.Internal(
            "the process that unpacks a layer died or made no sense; the log says what it left",
            detail=f"status {child.status}: {child.complaint}",
        )
    return UnpackedLayer(check_digest(answer.diff_id, "diff_id"), answer.bytes, answer.files)


def _remove(target: Path) -> None:
    """Whatever is in it, however deep."""
    parent = os.open(target.parent, _OPEN_FOLDER)
    try:
        tree_removal.remove(os.fsencode(target.name), parent)
    finally:
        os.close(parent)

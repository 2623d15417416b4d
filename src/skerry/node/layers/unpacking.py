"""The agent's side of unpacking: one confined child process per layer, watched, bounded and reaped.

`skerry.node.images` calls it with the bytes of a layer and a fresh folder; what happens at the other end is
`skerry.node.layers.unpacker`. Nothing of a layer is ever parsed or decompressed in this process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from skerry.model.ids import Digest


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """What one layer may take: `ImageSettings.max_layer_bytes` and `ImageSettings.max_layer_files`."""

    bytes: int  # of the uncompressed tar
    files: int  # entries, and folders that entries imply


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A layer that is whole in its folder."""

    diff_id: Digest  # of the uncompressed tar
    bytes: int  # of the uncompressed tar
    files: int


class Unpacker:
    """Unpacks layers, each in a child process of its own."""

    async def unpack(
        self,
        source: Path | AsyncIterator[bytes],
        target: Path,
        *,
        diff_id: Digest | None,
        limits: UnpackLimits,
    ) -> Unpacked:
        """Unpack the layer `source` (gzip, zstd or plain tar) into the empty folder `target`.

        The tree is as overlayfs wants it: a removal is a character device 0:0, an opaque folder has
        `trusted.overlay.opaque=y`. Raises Invalid (malformed, truncated, or not what `diff_id` says),
        Unprocessable (what no layer may hold), TooLarge, NoRoom, TimedOut, Unavailable, Internal. After an
        error or a cancel the child is gone and so is `target`.
        """
        raise NotImplementedError

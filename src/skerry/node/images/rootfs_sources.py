"""Bare root file systems (`rootfs:`): a tarball, which becomes the one layer, or a folder, used in place."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.images import ImageId, Platform
from skerry.node.images import oci_documents
from skerry.node.images.source_files import open_file
from skerry.node.images.sources import LayerBlob, ResolvedImage


class TarballSource:
    """A tarball, compressed or not."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def version(self) -> str:
        """By file times: a file that was changed without a trace in them must be pulled under another
        name."""
        with open_file(self._path) as opened:
            status = opened.status
        return f"{status.st_dev}.{status.st_ino}.{status.st_size}.{status.st_mtime_ns}.{status.st_ctime_ns}"

    async def find(self, machine: Platform) -> ResolvedImage:
        with open_file(self._path) as opened:
            return ResolvedImage(blobs=(LayerBlob(opened.size),))

    async def stream(self, blob: LayerBlob) -> AsyncGenerator[bytes, None]:
        with open_file(self._path) as opened:
            async with aclosing(opened.stream(opened.whole)) as pieces:
                async for piece in pieces:
                    yield piece

    async def close(self) -> None:
        """Nothing stays open."""


def id_of_layer(layer: Digest) -> ImageId:
    """The id of an image of one layer: the digest of the smallest configuration with it."""
    return ImageId(oci_documents.digest_of(json_codec.encode_canonical({"rootfs": {"diff_ids": [layer]}})))


def id_of_folder(path: str) -> ImageId:
    """The id of an image that is the folder `path`, whatever its content."""
    return ImageId(oci_documents.digest_of(json_codec.encode_canonical({"rootfs": {"folder": path}})))


def is_folder(path: str) -> bool:
    """True for a folder, False for a file; raises `NotFound` if there is neither."""
    if not os.path.exists(path):
        raise errors.NotFound(f"this node has no {path}")
    return os.path.isdir(path)


async def measure(path: str) -> int:
    """The size of all readable files below a folder."""
    enough = threading.Event()
    try:
        return await asyncio.to_thread(_measure, path, enough)
    finally:
        enough.set()


def _measure(path: str, cancelled: threading.Event) -> int:
    total = 0
    waiting = [path]
    while waiting and not cancelled.is_set():
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue  # removed meanwhile
    return total

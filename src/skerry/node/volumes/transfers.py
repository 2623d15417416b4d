"""Images over tunnels: the sender's and the receiver's end, with the server between them, which relays.

The sender sends the manifest; the receiver answers with the first chunk that it does not have on disk, and
gets that and all after it. Each chunk is checked before it is written, and the whole image is read back in
the end. Nothing is in memory but one chunk: whoever is slow holds up the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from skerry.model import errors
from skerry.model.streams import MAX_FRAME, TunnelStream
from skerry.model.volume_tasks import TaskChannel, TaskFrame
from skerry.node.volumes import image_files, manifests
from skerry.node.volumes.manifests import CHUNK_BYTES, ImageManifest
from skerry.node.volumes.operation_folders import OperationFolder, ReceivedChunks
from skerry.node.volumes.snapshot_store import SnapshotReader
from skerry.node.volumes.work_progress import WorkProgress

_MOST: Final = MAX_FRAME - 1
_MAX_MANIFEST: Final = 2 * manifests.MAX_IMAGE_BYTES // CHUNK_BYTES * manifests.DIGEST_BYTES
_SYNC_CHUNKS: Final = 16  # after so many the receiver notes what is on disk


async def send(tunnel: TunnelStream, manifest: ImageManifest, reader: SnapshotReader) -> None:
    """Send an image. Raises if the tunnel breaks."""
    encoded = manifest.encode()
    for at in range(0, len(encoded), _MOST):
        await tunnel.send(TaskFrame(TaskChannel.MANIFEST, encoded[at : at + _MOST]).pack())
    await tunnel.send(TaskFrame(TaskChannel.MANIFEST).pack())
    frame = await _receive(tunnel, TaskChannel.WANTED)
    if frame is None or not frame.data.isdigit():
        raise errors.Unavailable("the receiver did not say what it wants")
    for chunk in manifest.data_chunks(int(frame.data[:18])):
        data = await reader.read(chunk)
        for at in range(0, len(data), _MOST):
            await tunnel.send(TaskFrame(TaskChannel.DATA, data[at : at + _MOST]).pack())


async def receive(
    tunnel: TunnelStream,
    operation: OperationFolder,
    digest: str,
    progress: WorkProgress,
    failpoint: Callable[[str], None] = lambda step: None,
) -> ImageManifest:
    """Receive an image into the folder of `operation`, complete and verified. With a `digest` it must be that
    image."""
    manifest = await _receive_manifest(tunnel)
    if digest and manifest.digest != digest:
        raise errors.Unavailable("the sender has other data than expected; they are not taken")
    chunks = _Chunks(tunnel, manifest)
    await build(operation, manifest, chunks, progress, failpoint)
    return manifest


async def build(
    operation: OperationFolder,
    manifest: ImageManifest,
    chunks: SnapshotReader,
    progress: WorkProgress,
    failpoint: Callable[[str], None] = lambda step: None,
) -> None:
    """Make the image of `operation` from `chunks`, which are read in order. It goes on where an earlier one
    was interrupted; an image that is complete is verified again."""
    await asyncio.to_thread(operation.make)
    if not (operation.image.exists() and operation.manifest() == manifest):
        operation.image.unlink(missing_ok=True)
        await asyncio.to_thread(operation.save_manifest, manifest)
        await _write(operation, manifest, chunks, progress, failpoint)
        failpoint("copy.written")
    elif isinstance(chunks, _Chunks):
        await chunks.want(manifest.count)
    try:
        await progress.run(image_files.verify, operation.image, manifest, progress)
    except errors.Unavailable:
        operation.image.unlink(missing_ok=True)
        raise


async def _write(
    operation: OperationFolder,
    manifest: ImageManifest,
    chunks: SnapshotReader,
    progress: WorkProgress,
    failpoint: Callable[[str], None],
) -> None:
    received = operation.received()
    is_same = received is not None and received.digest == manifest.digest and operation.part.exists()
    if not is_same:
        await asyncio.to_thread(operation.restart)
    following = received.following if received is not None and is_same else 0
    before = sum(manifest.length(chunk) for chunk in manifest.data_chunks() if chunk < following)
    progress.begin(manifest.data_bytes, before)
    writer = await progress.run(image_files.ImageWriter, operation.part, manifest, is_reserved=True)
    try:
        if isinstance(chunks, _Chunks):
            await chunks.want(following)
        unsaved = 0
        for chunk in manifest.data_chunks(following):
            data = await chunks.read(chunk)
            await asyncio.to_thread(writer.write, chunk, data)
            progress.advance(len(data))
            failpoint("copy.chunk")
            unsaved += 1
            if unsaved == _SYNC_CHUNKS:
                unsaved = 0
                await asyncio.to_thread(writer.sync)
                saved = ReceivedChunks(manifest.digest, chunk + 1)
                await asyncio.to_thread(operation.save_received, saved)
    finally:
        await asyncio.to_thread(writer.close)
    await asyncio.to_thread(operation.complete)


async def _receive_manifest(tunnel: TunnelStream) -> ImageManifest:
    encoded = bytearray()
    while (frame := await _receive(tunnel, TaskChannel.MANIFEST)) is not None:
        if not frame.data:
            return manifests.decode(bytes(encoded))
        encoded += frame.data
        if len(encoded) > _MAX_MANIFEST:
            raise errors.TooLarge("the sender's manifest is larger than that of any volume")
    raise errors.Unavailable("the sender ended before it had sent its manifest")


async def _receive(tunnel: TunnelStream, channel: TaskChannel) -> TaskFrame | None:
    packed = await tunnel.receive()
    if packed is None:
        return None
    frame = TaskFrame.unpack(packed)
    if frame.channel is not channel:
        raise errors.Invalid(f"{channel.name} was expected, not {frame.channel.name}")
    return frame


class _Chunks:
    """The chunks that come out of a tunnel, which are read in order: a `SnapshotReader`."""

    def __init__(self, tunnel: TunnelStream, manifest: ImageManifest) -> None:
        self._tunnel = tunnel
        self._manifest = manifest
        self._left = bytearray()

    async def want(self, chunk: int) -> None:
        """Ask for this chunk and all after it."""
        await self._tunnel.send(TaskFrame(TaskChannel.WANTED, b"%d" % chunk).pack())

    async def read(self, chunk: int) -> bytes:
        length = self._manifest.length(chunk)
        while len(self._left) < length:
            frame = await _receive(self._tunnel, TaskChannel.DATA)
            if frame is None:
                raise errors.Unavailable("the sender ended before it had sent everything")
            self._left += frame.data
        data = bytes(self._left[:length])
        del self._left[:length]
        return data

    async def close(self) -> None:
        """The tunnel is the caller's."""

"""Snapshots in a bucket with the API of S3: `ID/data` by a multipart upload, and `ID/manifest`, written last.

An interrupted upload goes on with the parts that are missing. The data is read back and verified before the
manifest is written. A `skerry.node.volumes.snapshot_store.SnapshotStore`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from skerry.model import errors, ids
from skerry.node.volumes import image_files, manifests, s3_uploads, snapshot_store
from skerry.node.volumes.manifests import ImageManifest
from skerry.node.volumes.operation_folders import OperationFolder
from skerry.node.volumes.s3_client import S3Client
from skerry.node.volumes.s3_uploads import MAX_PARTS, UploadedPart
from skerry.node.volumes.snapshot_store import ChunkOffsets
from skerry.node.volumes.work_progress import WorkProgress

_PART_CHUNKS: Final = 4  # 16 MiB
_PART: Final = re.compile(r"<Part>(.*?)</Part>", re.DOTALL)
_UPLOAD: Final = re.compile(r"<Upload>(.*?)</Upload>", re.DOTALL)


class S3Store:
    """Snapshots in a bucket; `connect` returns a client of it. Parts of uploads have `part_chunks` chunks, or
    more if there would be too many of them."""

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[S3Client]],
        *,
        part_chunks: int = _PART_CHUNKS,
    ) -> None:
        self._connect = connect
        self._part_chunks = part_chunks

    async def write(
        self, snapshot: str, operation: OperationFolder, manifest: ImageManifest, progress: WorkProgress
    ) -> None:
        async with self._client() as client:
            data, last = _keys(snapshot)
            if await client.size(last) is not None:
                return
            if await client.size(data) != manifest.data_bytes:
                await self._upload(client, data, operation, manifest, progress)
            await self._verify(client, data, manifest, progress)
            await client.put(last, manifest.encode())
            if manifests.decode(await client.get(last)) != manifest:
                raise errors.Unavailable("the manifest of the snapshot was not stored as it is; try again")

    async def manifest(self, snapshot: str) -> ImageManifest:
        async with self._client() as client:
            try:
                return manifests.decode(await client.get(_keys(snapshot)[1]))
            except errors.NotFound:
                raise snapshot_store.missing(snapshot, "in the bucket") from None

    async def open(self, snapshot: str, manifest: ImageManifest) -> snapshot_store.SnapshotReader:
        client = self._connect()
        return _S3Reader(client, await client.__aenter__(), _keys(snapshot)[0], manifest)

    async def remove(self, snapshot: str) -> None:
        async with self._client() as client:
            data, last = _keys(snapshot)
            await client.delete(last)
            await client.delete(data)
            for upload in await _uploads(client, data):
                await s3_uploads.abort(client, data, upload)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[S3Client]:
        async with self._connect() as client:
            yield client

    async def _upload(
        self,
        client: S3Client,
        key: str,
        operation: OperationFolder,
        manifest: ImageManifest,
        progress: WorkProgress,
    ) -> None:
        offsets = ChunkOffsets(manifest)
        progress.begin(offsets.total)
        if not offsets.chunks:
            await client.put(key, b"")
            return
        present = await self._continued(client, key, operation)
        upload = operation.upload_id()
        if not upload:
            upload = await s3_uploads.begin(client, key)
            await asyncio.to_thread(operation.save_upload_id, upload)
        per_part = max(self._part_chunks, -(-len(offsets.chunks) // MAX_PARTS))
        parts: list[UploadedPart] = []
        reader = image_files.ImageReader(operation.image, manifest)
        try:
            for number, at in enumerate(range(0, len(offsets.chunks), per_part), 1):
                chunks = offsets.chunks[at : at + per_part]
                tag = present.get(number)
                if tag is None:
                    body = b"".join([await asyncio.to_thread(reader.read, chunk) for chunk in chunks])
                    tag = await s3_uploads.put_part(client, key, upload, number, body)
                parts.append(UploadedPart(number, tag))
                progress.advance(sum(map(manifest.length, chunks)))
        finally:
            reader.close()
        await s3_uploads.complete(client, key, upload, parts)

    async def _continued(self, client: S3Client, key: str, operation: OperationFolder) -> dict[int, str]:
        """The parts of an upload that was interrupted, by number; that it is gone is forgotten."""
        upload = operation.upload_id()
        if not upload:
            return {}
        found: dict[int, str] = {}
        marker = ""
        try:
            while True:
                query = {"uploadId": upload} | ({"part-number-marker": marker} if marker else {})
                text = (await client.do("GET", key, query)).body.decode("utf-8", "replace")
                found |= {
                    int(s3_uploads.field(each, "PartNumber")): s3_uploads.field(each, "ETag")
                    for each in _PART.findall(text)
                }
                marker = s3_uploads.field(text, "NextPartNumberMarker")
                if s3_uploads.field(text, "IsTruncated") != "true" or not marker:
                    return found
        except errors.NotFound:
            await asyncio.to_thread(operation.save_upload_id, "")
            return {}

    async def _verify(
        self, client: S3Client, key: str, manifest: ImageManifest, progress: WorkProgress
    ) -> None:
        progress.begin(manifest.data_bytes)
        offsets = ChunkOffsets(manifest)
        for chunk in offsets.chunks:
            length = manifest.length(chunk)
            data = await client.get(key, first=offsets.position(chunk), length=length)
            try:
                await asyncio.to_thread(manifest.check, chunk, data)
            except errors.Unavailable:
                await client.delete(key)  # begin again
                raise
            progress.advance(length)


class _S3Reader:
    def __init__(
        self,
        entered: AbstractAsyncContextManager[S3Client],
        client: S3Client,
        key: str,
        manifest: ImageManifest,
    ) -> None:
        self._entered = entered
        self._client = client
        self._key = key
        self._manifest = manifest
        self._offsets = ChunkOffsets(manifest)

    async def read(self, chunk: int) -> bytes:
        return await self._client.get(
            self._key, first=self._offsets.position(chunk), length=self._manifest.length(chunk)
        )

    async def close(self) -> None:
        await self._entered.__aexit__(None, None, None)


def _keys(snapshot: str) -> tuple[str, str]:
    """Of the data, and of the manifest."""
    name = ids.check_id(snapshot, "snapshot")
    return f"{name}/data", f"{name}/manifest"


async def _uploads(client: S3Client, key: str) -> list[str]:
    """Uploads of this object that were neither completed nor aborted."""
    try:
        text = (await client.do("GET", "", {"uploads": ""})).body.decode("utf-8", "replace")
    except errors.NotFound:  # how some stores say that there are none
        return []
    # The key that the store has begins with the prefix of the client.
    return [
        s3_uploads.field(each, "UploadId")
        for each in _UPLOAD.findall(text)
        if s3_uploads.field(each, "Key") == key or s3_uploads.field(each, "Key").endswith(f"/{key}")
    ]

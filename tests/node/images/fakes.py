"""What tests of images put in the place of the real thing: an unpacker in this process, and a liar."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import shutil
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import zstandard
from aiohttp import web

from skerry.model import errors
from skerry.model.ids import Digest
from skerry.node.layers.unpacker_client import LayerUnpacker, UnpackedLayer, UnpackLimits
from tests.support import imagery
from tests.support.imagery import Made


class FakeUnpacker(LayerUnpacker):
    """Unpacks in this process, plain files and links only, and does no more than tests of images need.

    `gate` holds every unpacking until it is set. `begun` counts them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = 0
        self.at_once = 0
        self.most_at_once = 0

    async def unpack(
        self,
        source: Path | AsyncIterator[bytes],
        target: Path,
        *,
        diff_id: Digest | None,
        limits: UnpackLimits,
    ) -> UnpackedLayer:
        assert not isinstance(source, Path)
        assert list(target.iterdir()) == []
        self.begun += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            data = b"".join([piece async for piece in source])
            await self.gate.wait()
            tar = _decompressed(data)
            if len(tar) > limits.bytes:
                raise errors.TooLarge(f"the layer is larger than {limits.bytes} bytes when unpacked")
            return self._unpack(tar, target, diff_id)
        except BaseException:
            shutil.rmtree(target)
            raise
        finally:
            self.at_once -= 1

    def _unpack(self, data: bytes, target: Path, diff_id: Digest | None) -> UnpackedLayer:
        found = Digest("sha256:" + hashlib.sha256(data).hexdigest())
        if diff_id is not None and diff_id != found:
            raise errors.Invalid(f"the layer is {found} and not {diff_id}")
        try:
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                members = archive.getmembers()
                # Python before 3.11.4 has no filters.
                archive.extraction_filter = getattr(tarfile, "tar_filter", None)
                archive.extractall(target)
        except tarfile.TarError as error:
            raise errors.Invalid(f"the layer is no tar: {error}") from None
        return UnpackedLayer(found, len(data), len(members))


def _decompressed(data: bytes) -> bytes:
    try:
        if data.startswith(b"\x1f\x8b"):
            return gzip.decompress(data)
        if data.startswith(b"\x28\xb5\x2f\xfd"):
            return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    except (OSError, EOFError, zstandard.ZstdError) as error:
        raise errors.Invalid(f"the layer cannot be decompressed: {error}") from None
    return data


_LARGE = 10_000


class FakeRegistry:
    """A registry that holds what it is given and misbehaves as it is told.

    `before` sees each request first; what it returns is the answer, unless that is None. `requests` has every
    request as `METHOD PATH`, with what it showed as `Authorization` in `visible`.
    """

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[bytes, str]] = {}
        self.before: Callable[[web.Request], web.StreamResponse | None] = lambda request: None
        self.knows_ranges = True
        self.held: set[str] = set()  # blobs that wait for the gate
        self.gate = asyncio.Event()
        self.cuts: list[int] = []  # after how many bytes the next answers with large blobs break
        self.requests: list[str] = []
        self.ranges: list[str] = []
        self.visible: list[str] = []
        self.address = ""

    def hold(self, created: Made, tag: str = "1") -> Made:
        self.blobs |= created.blobs()
        for name in (tag, created.digest):
            self.manifests[name] = (created.manifest, created.media_type)
        return created

    @asynccontextmanager
    async def serving(self, host: str = "127.0.0.1") -> AsyncIterator[FakeRegistry]:
        app = web.Application(client_max_size=1024**2)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, host, 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.address = f"{host}:{port}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def requested(self, part: str) -> list[str]:
        return [request for request in self.requests if part in request]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        self.visible.append(request.headers.get("Authorization", ""))
        answer = self.before(request)
        if answer is not None:
            return answer
        path = request.path
        if path == "/v2/":
            return web.json_response({})
        kind, name = path.rsplit("/", 2)[-2:]
        if kind == "manifests" and name in self.manifests:
            data, media_type = self.manifests[name]
            headers = {"Docker-Content-Digest": imagery.digest_of(data), "Content-Type": media_type}
            return web.Response(body=data, headers=headers)
        if kind == "blobs" and name in self.blobs:
            if name in self.held:
                await self.gate.wait()
            return await self._blob(request, self.blobs[name])
        return web.json_response({"errors": [{"code": "UNKNOWN", "message": "not known here"}]}, status=404)

    async def _blob(self, request: web.Request, data: bytes) -> web.StreamResponse:
        wanted = request.headers.get("Range", "")
        self.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.knows_ranges else 0
        rest = data[start:]
        headers = {"Content-Length": str(len(rest))}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        answer = web.StreamResponse(status=206 if start else 200, headers=headers)
        await answer.prepare(request)
        if self.cuts and len(data) > _LARGE:
            await answer.write(rest[: self.cuts.pop(0)])
            assert request.transport is not None
            request.transport.close()  # what was written is sent first
        else:
            await answer.write(rest)
        return answer

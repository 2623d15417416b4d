"""Images as `docker save` writes them (`docker-archive:`), in its old and new form, and as skopeo does.

`manifest.json` names the configuration and the layers by their paths in the tar. Layers have no digests
there; their content is checked against the configuration, which has one for each.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import AsyncGenerator

import msgspec

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.images import Platform
from skerry.node.images import oci_documents
from skerry.node.images.source_files import SourceFiles
from skerry.node.images.sources import LayerBlob, ResolvedImage

_DIGEST = re.compile(r"[0-9a-f]{64}")


class _Saved(msgspec.Struct, rename="pascal"):
    config: str
    layers: list[str] | None = None
    repo_tags: list[str] | None = None


class DockerArchiveSource:
    """The only image of such an archive."""

    def __init__(self, members: SourceFiles, label: str) -> None:
        self._members = members
        self._label = label

    async def version(self) -> str:
        return oci_documents.digest_of(await self._configuration(await self._saved()))

    async def find(self, machine: Platform) -> ResolvedImage:
        saved = await self._saved()
        data = await self._configuration(saved)
        paths = saved.layers or []
        return ResolvedImage(
            blobs=tuple([LayerBlob(await self._members.size(path), path=path) for path in paths]),
            configuration=oci_documents.read_configuration(data, len(paths), machine, self._label),
            id=oci_documents.digest_of(data),
        )

    def stream(self, blob: LayerBlob) -> AsyncGenerator[bytes, None]:
        return self._members.stream(blob.path)

    async def close(self) -> None:
        await self._members.close()

    async def _saved(self) -> _Saved:
        try:
            data = await self._members.read("manifest.json", oci_documents.MAX_MANIFEST_BYTES)
            images = json_codec.decode(data, list[_Saved])
        except errors.NotFound:
            raise errors.Unprocessable(
                f"{self._label} was not written by `docker save`: it has no manifest.json. If it is a tar of "
                "an OCI layout, write `oci-archive:`"
            ) from None
        except json_codec.InvalidJson as error:
            raise errors.Unprocessable(f"{self._label}: its manifest.json cannot be read: {error}") from None
        if len(images) != 1:
            names = [name for image in images for name in image.repo_tags or ["one without a tag"]]
            raise errors.FailedPrecondition(
                f"{self._label} contains {len(images)} images ({', '.join(names[:20])}); save one alone"
            )
        return images[0]

    async def _configuration(self, saved: _Saved) -> bytes:
        data = await self._members.read(saved.config, oci_documents.MAX_CONFIG_BYTES)
        # All writers name the file after its digest.
        name = posixpath.basename(saved.config).removesuffix(".json")
        found = oci_documents.digest_of(data)
        if _DIGEST.fullmatch(name) and f"sha256:{name}" != found:
            raise oci_documents.wrong_digest(f"the configuration of {self._label}", f"sha256:{name}", found)
        return data

"""Images as `docker save` writes them (`docker-archive:`), in its old form, its new one, and as skopeo does.

`manifest.json` names the configuration and the layers by their places in the tar. No digest of a layer is
given; what is in it is held to the configuration, which pins every byte.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import AsyncGenerator

import msgspec

from skerry.kit import jsonio
from skerry.model import errors
from skerry.model.images import Platform
from skerry.node.images import formats
from skerry.node.images.members import Members
from skerry.node.images.sources import Blob, Found

_DIGEST = re.compile(r"[0-9a-f]{64}")


class _Saved(msgspec.Struct, rename="pascal"):
    config: str
    layers: list[str] | None = None
    repo_tags: list[str] | None = None


class DockerArchiveSource:
    """The one image of such an archive."""

    def __init__(self, members: Members, what: str) -> None:
        self._members = members
        self._what = what

    async def version(self) -> str:
        return formats.digest_of(await self._configuration(await self._saved()))

    async def find(self, machine: Platform) -> Found:
        saved = await self._saved()
        data = await self._configuration(saved)
        places = saved.layers or []
        return Found(
            blobs=tuple([Blob(await self._members.size(place), place=place) for place in places]),
            configuration=formats.read_configuration(data, len(places), machine, self._what),
            id=formats.digest_of(data),
        )

    def stream(self, blob: Blob) -> AsyncGenerator[bytes, None]:
        return self._members.stream(blob.place)

    async def close(self) -> None:
        await self._members.close()

    async def _saved(self) -> _Saved:
        try:
            data = await self._members.read("manifest.json", formats.MAX_MANIFEST_BYTES)
            images = jsonio.decode(data, list[_Saved])
        except errors.NotFound:
            raise errors.Unprocessable(
                f"{self._what} was not written by `docker save`: it has no manifest.json. If it is a tar of "
                "an OCI layout, write `oci-archive:`"
            ) from None
        except jsonio.Malformed as error:
            raise errors.Unprocessable(f"{self._what}: its manifest.json cannot be read: {error}") from None
        if len(images) != 1:
            names = [name for image in images for name in image.repo_tags or ["one without a name"]]
            raise errors.Refused(
                f"{self._what} holds {len(images)} images ({', '.join(names[:20])}); save one alone"
            )
        return images[0]

    async def _configuration(self, saved: _Saved) -> bytes:
        data = await self._members.read(saved.config, formats.MAX_CONFIG_BYTES)
        # All writers name the file for its digest.
        name = posixpath.basename(saved.config).removesuffix(".json")
        found = formats.digest_of(data)
        if _DIGEST.fullmatch(name) and f"sha256:{name}" != found:
            raise formats.wrong_digest(f"the configuration of {self._what}", f"sha256:{name}", found)
        return data

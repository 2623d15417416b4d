"""Images in the OCI layout, in a folder (`oci:`) or in a tar of one (`oci-archive:`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.images import Platform
from skerry.node.images import formats, sources
from skerry.node.images.formats import Descriptor, Index, Manifest
from skerry.node.images.members import Members
from skerry.node.images.sources import Blob, Found

_NAME = "org.opencontainers.image.ref.name"


class LayoutSource:
    """One image of a layout: that named `tag`, or the only one."""

    def __init__(self, members: Members, what: str, tag: str = "") -> None:
        self._members = members
        self._what = what
        self._tag = tag

    async def version(self) -> str:
        return " ".join(each.digest for each in await self._candidates())

    async def find(self, machine: Platform) -> Found:
        candidates = await self._candidates()
        if len(candidates) == 1:
            chosen = candidates[0]
        elif all(each.platform for each in candidates):
            chosen = formats.choose(Index(candidates), machine, self._what)
        else:
            raise errors.Refused(
                f"{self._what} holds {len(candidates)} images; say which, such as `oci:PATH:TAG`. It has: "
                + _names(candidates)
            )
        document = await self.document(chosen)
        return await sources.find_in(self, document, Digest(chosen.digest), machine, self._what)

    def stream(self, blob: Blob) -> AsyncGenerator[bytes, None]:
        assert blob.digest is not None, "a layout names everything by digest"
        return self._members.stream(_place(blob.digest))

    async def close(self) -> None:
        await self._members.close()

    async def document(self, descriptor: Descriptor) -> Manifest | Index:
        data = await self._blob(descriptor, formats.MAX_MANIFEST_BYTES)
        return formats.read_document(data, descriptor.media_type, self._what)

    async def configuration(self, descriptor: Descriptor) -> bytes:
        return await self._blob(descriptor, formats.MAX_CONFIG_BYTES)

    async def _blob(self, descriptor: Descriptor, most: int) -> bytes:
        place = _place(descriptor.digest)
        data = await self._members.read(place, most)
        formats.check_digest(data, Digest(descriptor.digest), f"{place} of {self._what}")
        return data

    async def _candidates(self) -> tuple[Descriptor, ...]:
        """What the tag leads to: one image, or one image for several kinds of machines."""
        data = await self._members.read("index.json", formats.MAX_MANIFEST_BYTES)
        index = formats.read_document(data, "", f"index.json of {self._what}")
        if not isinstance(index, Index):
            raise errors.Unprocessable(f"{self._what} is no OCI layout: its index.json is no index")
        found = tuple(each for each in index.manifests if not self._tag or _is_called(each, self._tag))
        if not found:
            raise errors.NotFound(f"{self._what} is not there; the layout has: {_names(index.manifests)}")
        return found


def _is_called(descriptor: Descriptor, tag: str) -> bool:
    """Some tools write the tag, others the whole reference that it ends."""
    name = (descriptor.annotations or {}).get(_NAME, "")
    return name == tag or name.endswith(f":{tag}")


def _names(descriptors: Iterable[Descriptor]) -> str:
    names = {(each.annotations or {}).get(_NAME, "") for each in descriptors} - {""}
    return ", ".join(sorted(names)[:20]) or "none with a name"


def _place(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"

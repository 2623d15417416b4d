"""Images in the OCI layout, in a folder (`oci:`) or in a tar of one (`oci-archive:`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.images import Platform
from skerry.node.images import oci_documents, sources
from skerry.node.images.oci_documents import OciDescriptor, OciIndex, OciManifest
from skerry.node.images.source_files import SourceFiles
from skerry.node.images.sources import LayerBlob, ResolvedImage

_NAME = "org.opencontainers.image.ref.name"


class LayoutSource:
    """One image of a layout: the one with `tag`, or the only one."""

    def __init__(self, members: SourceFiles, label: str, tag: str = "") -> None:
        self._members = members
        self._label = label
        self._tag = tag

    async def version(self) -> str:
        return " ".join(each.digest for each in await self._candidates())

    async def find(self, machine: Platform) -> ResolvedImage:
        candidates = await self._candidates()
        if len(candidates) == 1:
            chosen = candidates[0]
        elif all(each.platform for each in candidates):
            chosen = oci_documents.choose(OciIndex(candidates), machine, self._label)
        else:
            raise errors.FailedPrecondition(
                f"{self._label} contains {len(candidates)} images; choose one, as in `oci:PATH:TAG`. It has: "
                + _names(candidates)
            )
        document = await self.document(chosen)
        return await sources.find_in(self, document, Digest(chosen.digest), machine, self._label)

    def stream(self, blob: LayerBlob) -> AsyncGenerator[bytes, None]:
        assert blob.digest is not None, "a layout refers to blobs by digest"
        return self._members.stream(_blob_path(blob.digest))

    async def close(self) -> None:
        await self._members.close()

    async def document(self, descriptor: OciDescriptor) -> OciManifest | OciIndex:
        data = await self._blob(descriptor, oci_documents.MAX_MANIFEST_BYTES)
        return oci_documents.read_document(data, descriptor.media_type, self._label)

    async def configuration(self, descriptor: OciDescriptor) -> bytes:
        return await self._blob(descriptor, oci_documents.MAX_CONFIG_BYTES)

    async def _blob(self, descriptor: OciDescriptor, most: int) -> bytes:
        path = _blob_path(descriptor.digest)
        data = await self._members.read(path, most)
        oci_documents.check_digest(data, Digest(descriptor.digest), f"{path} of {self._label}")
        return data

    async def _candidates(self) -> tuple[OciDescriptor, ...]:
        """The images of the tag: one, or one per platform."""
        data = await self._members.read("index.json", oci_documents.MAX_MANIFEST_BYTES)
        index = oci_documents.read_document(data, "", f"index.json of {self._label}")
        if not isinstance(index, OciIndex):
            raise errors.Unprocessable(f"{self._label} is not an OCI layout: its index.json is not an index")
        found = tuple(each for each in index.manifests if not self._tag or _is_called(each, self._tag))
        if not found:
            raise errors.NotFound(f"{self._label} does not exist; the layout has: {_names(index.manifests)}")
        return found


def _is_called(descriptor: OciDescriptor, tag: str) -> bool:
    """Some tools write the tag, others the whole reference that ends with it."""
    name = (descriptor.annotations or {}).get(_NAME, "")
    return name == tag or name.endswith(f":{tag}")


def _names(descriptors: Iterable[OciDescriptor]) -> str:
    names = {(each.annotations or {}).get(_NAME, "") for each in descriptors} - {""}
    return ", ".join(sorted(names)[:20]) or "none with a name"


def _blob_path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"

"""The interface of image sources, and the resolution of a document to an image.

Registries, layouts and archives are `ImageSource`s; `skerry.node.images.puller` uses only this. A source
returns documents with verified digests, and streams of layers, whose digest the reader verifies.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Protocol

import msgspec

from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.images import Platform
from skerry.node.images import oci_documents
from skerry.node.images.oci_documents import OciConfig, OciDescriptor, OciIndex, OciManifest


class LayerBlob(msgspec.Struct, frozen=True):
    """A layer at its source. Without a digest it is checked by its content only."""

    size: int
    digest: Digest | None = None
    path: str = ""  # in an archive


class ResolvedImage(msgspec.Struct, frozen=True):
    """The parts of one image. A bare file system is one blob, without a configuration."""

    blobs: tuple[LayerBlob, ...]
    configuration: OciConfig | None = None
    id: Digest | None = None  # of the configuration
    manifest: Digest | None = None


class ImageSource(Protocol):
    """The source of one image; closed after use. Raises `skerry.model.errors`."""

    async def version(self) -> str:
        """A cheap identifier of the current content: the same version is the same image.

        Empty if it cannot be determined without reading everything.
        """
        ...

    async def find(self, machine: Platform) -> ResolvedImage:
        """The parts of the image for `machine`."""
        ...

    def stream(self, blob: LayerBlob) -> AsyncGenerator[bytes, None]:
        """The bytes of `blob`, in order, as far as they are available."""
        ...

    async def close(self) -> None: ...


class SharedSource:
    """A source with several users, each inside `async with`: it is closed when the last one leaves."""

    def __init__(self, source: ImageSource) -> None:
        self._source = source
        self._users = 0

    async def __aenter__(self) -> ImageSource:
        self._users += 1
        return self._source

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users -= 1
        if not self._users:
            await self._source.close()


class DocumentSource(Protocol):
    """Documents by digest, as in registries and layouts."""

    async def document(self, descriptor: OciDescriptor) -> OciManifest | OciIndex:
        """The index or manifest with this digest."""
        ...

    async def configuration(self, descriptor: OciDescriptor) -> bytes:
        """The configuration with this digest."""
        ...


async def find_in(
    content: DocumentSource, document: OciManifest | OciIndex, digest: Digest, machine: Platform, label: str
) -> ResolvedImage:
    """Follow indexes from `document`, which has `digest`, to the image for `machine`."""
    for _ in range(oci_documents.MAX_DEPTH):
        if isinstance(document, OciManifest):
            break
        chosen = oci_documents.choose(document, machine, label)
        document, digest = await content.document(chosen), Digest(chosen.digest)
    if isinstance(document, OciIndex):
        raise errors.Unprocessable(f"{label}: indexes are nested more than {oci_documents.MAX_DEPTH} times")
    data = await content.configuration(document.config)
    return ResolvedImage(
        blobs=tuple(LayerBlob(layer.size, Digest(layer.digest)) for layer in document.layers),
        configuration=oci_documents.read_configuration(data, len(document.layers), machine, label),
        id=Digest(document.config.digest),
        manifest=digest,
    )

"""What every place that images come from can do, and the one way from a name to the parts of an image.

Registries, layouts and archives are `ImageSource`s; `skerry.node.images.puller` knows only this. A source
hands out documents that have the digest they were asked by, and layers as they come: their digest is checked
by whoever reads them to the end.
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
    """A layer at its source. Without a digest it is held only to what is in it."""

    size: int
    digest: Digest | None = None
    place: str = ""  # where in an archive


class ResolvedImage(msgspec.Struct, frozen=True):
    """The parts of one image. A bare file system is one blob, and has no configuration."""

    blobs: tuple[LayerBlob, ...]
    configuration: OciConfig | None = None
    id: Digest | None = None  # of the configuration
    manifest: Digest | None = None


class ImageSource(Protocol):
    """Where one image comes from; closed after use. What goes wrong is told in `skerry.model.errors`."""

    async def version(self) -> str:
        """A word for what is there now, found with little effort: where it is the same, so is the image.

        Empty if it cannot be told without reading everything.
        """
        ...

    async def find(self, machine: Platform) -> ResolvedImage:
        """The parts of the image that `machine` can run."""
        ...

    def stream(self, blob: LayerBlob) -> AsyncGenerator[bytes, None]:
        """The bytes of `blob` from the first to the last, as far as they can be had."""
        ...

    async def close(self) -> None: ...


class SharedSource:
    """A source that several use, each inside `async with`: it is closed when the last one leaves."""

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
    """Documents by digest, as registries and layouts hold them."""

    async def document(self, descriptor: OciDescriptor) -> OciManifest | OciIndex:
        """The index or manifest that has this digest."""
        ...

    async def configuration(self, descriptor: OciDescriptor) -> bytes:
        """The configuration that has this digest."""
        ...


async def find_in(
    content: DocumentSource, document: OciManifest | OciIndex, digest: Digest, machine: Platform, what: str
) -> ResolvedImage:
    """Follow indexes from `document`, which has `digest`, to the image for `machine`."""
    for _ in range(oci_documents.MAX_DEPTH):
        if isinstance(document, OciManifest):
            break
        chosen = oci_documents.choose(document, machine, what)
        document, digest = await content.document(chosen), Digest(chosen.digest)
    if isinstance(document, OciIndex):
        raise errors.Unprocessable(
            f"{what}: indexes lead to indexes more than {oci_documents.MAX_DEPTH} times"
        )
    data = await content.configuration(document.config)
    return ResolvedImage(
        blobs=tuple(LayerBlob(layer.size, Digest(layer.digest)) for layer in document.layers),
        configuration=oci_documents.read_configuration(data, len(document.layers), machine, what),
        id=Digest(document.config.digest),
        manifest=digest,
    )

"""What every place that images come from can do, and the one way from a name to the parts of an image.

Registries, layouts and archives are `Source`s; `skerry.node.images.pulling` knows only this. A source hands
out documents that have the digest they were asked by, and layers as they come: their digest is checked by
whoever reads them to the end.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Protocol

import msgspec

from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.images import Platform
from skerry.node.images import formats
from skerry.node.images.formats import Configuration, Descriptor, Index, Manifest


class Blob(msgspec.Struct, frozen=True):
    """A layer at its source. Without a digest it is held only to what is in it."""

    size: int
    digest: Digest | None = None
    place: str = ""  # where in an archive


class Found(msgspec.Struct, frozen=True):
    """The parts of one image. A bare file system is one blob, and has no configuration."""

    blobs: tuple[Blob, ...]
    configuration: Configuration | None = None
    id: Digest | None = None  # of the configuration
    manifest: Digest | None = None


class Source(Protocol):
    """Where one image comes from; closed after use. What goes wrong is told in `skerry.model.errors`."""

    async def version(self) -> str:
        """A word for what is there now, found with little effort: where it is the same, so is the image.

        Empty if it cannot be told without reading everything.
        """
        ...

    async def find(self, machine: Platform) -> Found:
        """The parts of the image that `machine` can run."""
        ...

    def stream(self, blob: Blob) -> AsyncGenerator[bytes, None]:
        """The bytes of `blob` from the first to the last, as far as they can be had."""
        ...

    async def close(self) -> None: ...


class Shared:
    """A source that several use, each inside `async with`: it is closed when the last one leaves."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._users = 0

    async def __aenter__(self) -> Source:
        self._users += 1
        return self._source

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users -= 1
        if not self._users:
            await self._source.close()


class Content(Protocol):
    """Documents by digest, as registries and layouts hold them."""

    async def document(self, descriptor: Descriptor) -> Manifest | Index:
        """The index or manifest that has this digest."""
        ...

    async def configuration(self, descriptor: Descriptor) -> bytes:
        """The configuration that has this digest."""
        ...


async def find_in(
    content: Content, document: Manifest | Index, digest: Digest, machine: Platform, what: str
) -> Found:
    """Follow indexes from `document`, which has `digest`, to the image for `machine`."""
    for _ in range(formats.MAX_DEPTH):
        if isinstance(document, Manifest):
            break
        chosen = formats.choose(document, machine, what)
        document, digest = await content.document(chosen), Digest(chosen.digest)
    if isinstance(document, Index):
        raise errors.Unprocessable(f"{what}: indexes lead to indexes more than {formats.MAX_DEPTH} times")
    data = await content.configuration(document.config)
    return Found(
        blobs=tuple(Blob(layer.size, Digest(layer.digest)) for layer in document.layers),
        configuration=formats.read_configuration(data, len(document.layers), machine, what),
        id=Digest(document.config.digest),
        manifest=digest,
    )

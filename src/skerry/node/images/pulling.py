"""A pull from its first question to the record on disk.

    what is it now?  ->  do we have that?  ->  its parts  ->  each layer that is not here  ->  record, name

Layers stream from their source through the digest check into the unpacker; the compressed bytes are never
stored. A layer that two pulls want is fetched once. The record is written when everything it names is on the
disk, so a pull that dies leaves at most layers, each of them whole.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

import structlog

from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.images import Image, ImageConfig, ImageId, Platform
from skerry.model.settings import ImageSettings
from skerry.node.images import formats, registry, rootfs
from skerry.node.images.catalogue import Catalogue, NameRecord
from skerry.node.images.docker_archives import DockerArchiveSource
from skerry.node.images.flights import Flights
from skerry.node.images.layers import Draft, Layers
from skerry.node.images.layouts import LayoutSource
from skerry.node.images.members import FolderMembers, TarMembers
from skerry.node.images.progress import LayerCount, Pull
from skerry.node.images.references import (
    DockerArchiveReference,
    LayoutReference,
    OciArchiveReference,
    Reference,
    RegistryReference,
    RootfsReference,
)
from skerry.node.images.sources import Blob, Found, Shared, Source
from skerry.node.images.threads import in_thread, unbroken
from skerry.node.layers.unpacking import Unpacked, Unpacker, UnpackLimits

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Means:
    """What pulling takes."""

    settings: ImageSettings
    clock: Clock
    platform: Platform
    unpacker: Unpacker
    layers: Layers
    catalogue: Catalogue
    reached: Callable[[str], None]
    backoff: Backoff


class Puller:
    """Brings images here."""

    keeps_parts = True  # layers of a pull that did not come to its end, for the next one

    def __init__(self, means: Means) -> None:
        self._means = means
        settings = means.settings
        self._slots = asyncio.Semaphore(settings.parallel)
        self._fetches: Flights[Digest] = Flights(shares_failures=False)
        # Of layers that some pull tells of: pulls of one layer count together.
        self._counts: WeakValueDictionary[Digest, LayerCount] = WeakValueDictionary()

    async def pull(self, reference: Reference, pull: Pull) -> ImageId:
        """Have what `reference` means now; `pull` names what it counts on from the moment it does."""
        pull.say(f"asking for {reference}")
        if isinstance(reference, RootfsReference) and await in_thread(rootfs.is_folder, reference.path):
            return await self._take_folder(reference, pull)
        shared = Shared(await self._source(reference))
        async with shared as source:
            version = await source.version()
            self._means.reached("pull.version")
            known = self._known(reference, version)
            if known is not None:
                pull.images.add(known)
                await unbroken(self._name(reference, known, version))
                pull.say(f"{reference} is up to date")
                return known
            found = await source.find(self._means.platform)
            self._means.reached("pull.found")
            layers = await self._fetch_all(shared, found, str(reference), pull)
        image = self._describe(found, layers)
        pull.images.add(image.id)
        await unbroken(self._record(reference, image, version))
        pull.say(f"{reference} is here")
        return image.id

    async def close(self) -> None:
        await self._fetches.close()

    def _limits(self) -> UnpackLimits:
        """Of the next layer."""
        return UnpackLimits(self._means.settings.max_layer_bytes, self._means.settings.max_layer_files)

    def _known(self, reference: Reference, version: str) -> ImageId | None:
        """The image here that `reference` means, if its source calls it `version`."""
        return self._means.catalogue.of_version(version)

    async def _call(self, name: NameRecord) -> None:
        """Keep what a reference led to; the catalogue is ours to write in."""
        await self._means.catalogue.name(name)

    async def _source(self, reference: Reference) -> Source:
        what = str(reference)
        match reference:
            case RegistryReference():
                return registry.RegistrySource(
                    reference, self._means.settings, self._means.clock, backoff=self._means.backoff
                )
            case LayoutReference(path, tag):
                return LayoutSource(FolderMembers(path), what, tag)
            case OciArchiveReference(path):
                return LayoutSource(await TarMembers.open(path), what)
            case DockerArchiveReference(path):
                return DockerArchiveSource(await TarMembers.open(path), what)
            case RootfsReference(path):
                return rootfs.TarballSource(path)

    async def _take_folder(self, reference: RootfsReference, pull: Pull) -> ImageId:
        image = Image(
            id=rootfs.id_of_folder(reference.path),
            names=(),
            platform=self._means.platform,
            config=ImageConfig(),
            layers=(),
            bytes=await rootfs.measure(reference.path),
            pulled_at=self._means.clock.now(),
            folder=reference.path,
        )
        pull.images.add(image.id)
        await unbroken(self._record(reference, image, ""))
        pull.say(f"{reference} is here")
        return image.id

    async def _fetch_all(self, shared: Shared, found: Found, what: str, pull: Pull) -> tuple[Digest, ...]:
        """Every layer of `found`, the lowest first, from here or from its source."""
        if not 0 < len(found.blobs) <= self._means.settings.max_layers:
            raise errors.Unprocessable(
                f"{what} has {len(found.blobs)} layers; 1 to {self._means.settings.max_layers} are accepted"
            )
        if found.configuration is None:
            (blob,) = found.blobs
            count = LayerCount(Digest(""), blob.size)
            pull.count([count])
            return (await self._fetch(shared, blob, None, what, count, pull.layers),)
        layers = found.configuration.diff_ids
        pull.layers.update(layers)
        wanted = dict(zip(layers, found.blobs, strict=True))  # an image may have a layer twice
        counts = {layer: self._count(layer, blob) for layer, blob in wanted.items()}
        pull.count(counts.values())
        try:
            async with asyncio.TaskGroup() as group:
                for layer, blob in wanted.items():
                    if layer not in self._means.layers:
                        fetch = partial(self._fetch, shared, blob, layer, what, counts[layer], pull.layers)
                        group.create_task(self._fetches.join(layer, fetch))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return layers

    def _count(self, layer: Digest, blob: Blob) -> LayerCount:
        if layer in self._means.layers:
            return LayerCount(blob.digest or layer, blob.size, "present")
        return self._counts.setdefault(layer, LayerCount(blob.digest or layer, blob.size))

    async def _fetch(
        self,
        shared: Shared,
        blob: Blob,
        layer: Digest | None,
        what: str,
        count: LayerCount,
        counted_on: set[Digest],
    ) -> Digest:
        """Bring one layer here. The source stays open even if the pull that began this gives up."""
        async with shared as source, self._slots:
            if layer is not None and layer in self._means.layers:  # it came while we waited for our turn
                count.become("done")
                return layer
            draft = await self._means.layers.draft()
            self._means.reached("layer.draft")
            try:
                count.become("pulling")
                unpacked = await self._unpack(source, blob, layer, draft, what, count)
                self._means.reached("layer.unpacked")
                counted_on.add(unpacked.diff_id)  # before it can be seen by whoever collects
                await self._means.layers.keep(draft, unpacked)
            finally:
                await self._means.layers.discard(draft)
            count.become("done")
            log.info("layer.kept", layer=unpacked.diff_id, bytes=unpacked.bytes, files=unpacked.files)
            return unpacked.diff_id

    async def _unpack(
        self, source: Source, blob: Blob, layer: Digest | None, draft: Draft, what: str, count: LayerCount
    ) -> Unpacked:
        checked = _Checked(source.stream(blob), blob, what, count)
        async with aclosing(checked.pieces()) as pieces:
            try:
                unpacked = await self._means.unpacker.unpack(
                    pieces, draft.root, diff_id=layer, limits=self._limits()
                )
            except (errors.Invalid, errors.Unprocessable, errors.TooLarge) as error:
                if checked.failure is not None:
                    raise checked.failure from None
                if isinstance(error, errors.Invalid) and not checked.is_whole:
                    # What is damaged at its source is malformed, too: say what comes first.
                    await _Checked(source.stream(blob), blob, what, None).read_all()
                kind = errors.TooLarge if isinstance(error, errors.TooLarge) else errors.Unprocessable
                raise kind(f"{checked.what}: {error.message}", detail=error.detail) from None
            async for _ in pieces:
                pass  # what follows the layer in its blob counts for the digest
        return unpacked

    def _describe(self, found: Found, layers: tuple[Digest, ...]) -> Image:
        told = found.configuration
        return Image(
            id=ImageId(found.id) if found.id else rootfs.id_of_layer(layers[0]),
            names=(),
            platform=(told.platform if told else None) or self._means.platform,
            config=told.config if told else ImageConfig(),
            layers=layers,
            bytes=sum(blob.size for blob in found.blobs),
            pulled_at=self._means.clock.now(),
            manifest=found.manifest,
        )

    async def _record(self, reference: Reference, image: Image, version: str) -> None:
        async with self._means.catalogue.writing:
            await self._means.layers.settle()
            await self._means.catalogue.add(image)
            await self._call(NameRecord(str(reference), image.id, version))

    async def _name(self, reference: Reference, image: ImageId, version: str) -> None:
        async with self._means.catalogue.writing:
            await self._call(NameRecord(str(reference), image, version))


class _Checked:
    """A blob on its way, held to its size and digest."""

    def __init__(
        self, stream: AsyncGenerator[bytes, None], blob: Blob, of: str, count: LayerCount | None
    ) -> None:
        self.what = f"layer {blob.digest or blob.place} of {of}" if blob.digest or blob.place else of
        self.is_whole = False
        self.failure: errors.SkerryError | None = None  # of the source or the check, not of who reads
        self._stream = stream
        self._blob = blob
        self._count = count

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Its bytes. Raises at the end if they were not the right ones."""
        seen, got = hashlib.sha256(), 0
        try:
            async with aclosing(self._stream) as stream:
                async for piece in stream:
                    seen.update(piece)
                    got += len(piece)
                    if self._count is not None:
                        self._count.add(len(piece))
                    yield piece
            if got != self._blob.size:
                raise formats.truncated(self.what, got, self._blob.size)
            found = f"sha256:{seen.hexdigest()}"
            if self._blob.digest is not None and found != self._blob.digest:
                raise formats.wrong_digest(self.what, self._blob.digest, found)
        except errors.SkerryError as error:
            self.failure = error
            raise
        self.is_whole = True
        if self._count is not None:
            self._count.become("unpacking")

    async def read_all(self) -> None:
        async with aclosing(self.pieces()) as pieces:
            async for _ in pieces:
                pass

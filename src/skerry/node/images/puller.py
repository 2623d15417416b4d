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

from skerry.kit import files
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.kit.tasks import in_thread, run_to_completion
from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.images import Image, ImageConfig, ImageId, Platform
from skerry.model.settings import ImageSettings
from skerry.node.images import oci_documents, registry_source, rootfs_sources
from skerry.node.images.docker_archives import DockerArchiveSource
from skerry.node.images.image_catalog import ImageCatalog, NameRecord
from skerry.node.images.layer_store import LayerDraft, LayerStore
from skerry.node.images.layouts import LayoutSource
from skerry.node.images.progress import LayerCounter, PullTracker
from skerry.node.images.references import (
    DockerArchiveReference,
    ImageReference,
    LayoutReference,
    OciArchiveReference,
    RegistryReference,
    RootfsReference,
)
from skerry.node.images.single_flight import SingleFlight
from skerry.node.images.source_files import FolderFiles, TarFiles
from skerry.node.images.sources import ImageSource, LayerBlob, ResolvedImage, SharedSource
from skerry.node.layers.unpacker_client import LayerUnpacker, UnpackedLayer, UnpackLimits

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PullDeps:
    """What pulling takes."""

    settings: ImageSettings
    clock: Clock
    platform: Platform
    unpacker: LayerUnpacker
    layers: LayerStore
    catalogue: ImageCatalog
    reached: Callable[[str], None]
    backoff: Backoff


class Puller:
    """Brings images here."""

    keeps_parts = True  # layers of a pull that did not come to its end, for the next one

    def __init__(self, deps: PullDeps) -> None:
        self._deps = deps
        settings = deps.settings
        self._slots = asyncio.Semaphore(settings.parallel)
        self._fetches: SingleFlight[Digest] = SingleFlight(shares_failures=False)
        # Of layers that some pull tells of: pulls of one layer count together.
        self._counts: WeakValueDictionary[Digest, LayerCounter] = WeakValueDictionary()

    async def pull(self, reference: ImageReference, pull: PullTracker) -> ImageId:
        """Have what `reference` means now; `pull` names what it counts on from the moment it does."""
        pull.say(f"asking for {reference}")
        if isinstance(reference, RootfsReference) and await in_thread(
            rootfs_sources.is_folder, reference.path
        ):
            return await self._take_folder(reference, pull)
        shared = SharedSource(await self._source(reference))
        async with shared as source:
            version = await source.version()
            self._deps.reached("pull.version")
            known = self._known(reference, version)
            if known is not None:
                pull.images.add(known)
                await run_to_completion(self._name(reference, known, version))
                pull.say(f"{reference} is up to date")
                return known
            found = await source.find(self._deps.platform)
            self._deps.reached("pull.found")
            layers = await self._fetch_all(shared, found, reference, pull)
        image = self._describe(found, layers)
        pull.images.add(image.id)
        await run_to_completion(self._record(reference, image, version))
        pull.say(f"{reference} is here")
        return image.id

    async def close(self) -> None:
        await self._fetches.close()

    def _limits(self) -> UnpackLimits:
        """Of the next layer: pulls at once together leave the node a part of its disk."""
        settings = self._deps.settings
        free, all_ = self._deps.layers.disk()
        spare = (free - files.disk_reserve(all_)) // settings.parallel
        if spare <= 0:
            raise errors.ResourcesExhausted(
                "the node's disk is nearly full, and it pulls no images now; make room there, or run it on "
                "another node"
            )
        return UnpackLimits(min(settings.max_layer_bytes, spare), settings.max_layer_files)

    def _known(self, reference: ImageReference, version: str) -> ImageId | None:
        """The image here that `reference` means, if its source calls it `version`."""
        return self._deps.catalogue.of_version(version, from_registry=_is_registry(reference))

    async def _call(self, name: NameRecord) -> None:
        """Keep what a reference led to; the catalogue is ours to write in."""
        await self._deps.catalogue.name(name)

    async def _source(self, reference: ImageReference) -> ImageSource:
        what = str(reference)
        match reference:
            case RegistryReference():
                return registry_source.RegistrySource(
                    reference, self._deps.settings, self._deps.clock, backoff=self._deps.backoff
                )
            case LayoutReference(path, tag):
                return LayoutSource(FolderFiles(path), what, tag)
            case OciArchiveReference(path):
                return LayoutSource(await TarFiles.open(path), what)
            case DockerArchiveReference(path):
                return DockerArchiveSource(await TarFiles.open(path), what)
            case RootfsReference(path):
                return rootfs_sources.TarballSource(path)

    async def _take_folder(self, reference: RootfsReference, pull: PullTracker) -> ImageId:
        image = Image(
            id=rootfs_sources.id_of_folder(reference.path),
            names=(),
            platform=self._deps.platform,
            config=ImageConfig(),
            layers=(),
            bytes=await rootfs_sources.measure(reference.path),
            pulled_at=self._deps.clock.now(),
            folder=reference.path,
        )
        pull.images.add(image.id)
        await run_to_completion(self._record(reference, image, ""))
        pull.say(f"{reference} is here")
        return image.id

    async def _fetch_all(
        self, shared: SharedSource, found: ResolvedImage, reference: ImageReference, pull: PullTracker
    ) -> tuple[Digest, ...]:
        """Every layer of `found`, the lowest first, from here or from its source."""
        what, proven = str(reference), _is_registry(reference)
        if not 0 < len(found.blobs) <= self._deps.settings.max_layers:
            raise errors.Unprocessable(
                f"{what} has {len(found.blobs)} layers; 1 to {self._deps.settings.max_layers} are accepted"
            )
        if found.configuration is None:
            (blob,) = found.blobs
            count = LayerCounter(Digest(""), blob.size)
            pull.count([count])
            return (await self._fetch(shared, blob, None, what, count, pull.layers, proven=proven),)
        layers = found.configuration.diff_ids
        pull.layers.update(layers)
        wanted = dict(zip(layers, found.blobs, strict=True))  # an image may have a layer twice
        counts = {layer: self._count(layer, blob, proven=proven) for layer, blob in wanted.items()}
        pull.count(counts.values())
        try:
            async with asyncio.TaskGroup() as group:
                for layer, blob in wanted.items():
                    if not self._deps.layers.has(layer, from_registry=proven):
                        fetch = partial(
                            self._fetch,
                            shared,
                            blob,
                            layer,
                            what,
                            counts[layer],
                            pull.layers,
                            proven=proven,
                        )
                        group.create_task(self._fetches.join((layer, proven), fetch))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return layers

    def _count(self, layer: Digest, blob: LayerBlob, *, proven: bool) -> LayerCounter:
        if self._deps.layers.has(layer, from_registry=proven):
            return LayerCounter(blob.digest or layer, blob.size, "present")
        return self._counts.setdefault(layer, LayerCounter(blob.digest or layer, blob.size))

    async def _fetch(
        self,
        shared: SharedSource,
        blob: LayerBlob,
        layer: Digest | None,
        what: str,
        count: LayerCounter,
        counted_on: set[Digest],
        *,
        proven: bool,
    ) -> Digest:
        """Bring one layer here, `proven` by a registry that hands it out. The source stays open even if the
        pull that began this gives up."""
        async with shared as source, self._slots:
            # It may have come while we waited for our turn.
            if layer is not None and self._deps.layers.has(layer, from_registry=proven):
                count.become("done")
                return layer
            draft = await self._deps.layers.draft()
            self._deps.reached("layer.draft")
            try:
                count.become("pulling")
                unpacked = await self._unpack(source, blob, layer, draft, what, count)
                self._deps.reached("layer.unpacked")
                counted_on.add(unpacked.diff_id)  # before it can be seen by whoever collects
                await self._deps.layers.keep(draft, unpacked, from_registry=proven)
            finally:
                await self._deps.layers.discard(draft)
            count.become("done")
            log.info("layer.kept", layer=unpacked.diff_id, bytes=unpacked.bytes, files=unpacked.files)
            return unpacked.diff_id

    async def _unpack(
        self,
        source: ImageSource,
        blob: LayerBlob,
        layer: Digest | None,
        draft: LayerDraft,
        what: str,
        count: LayerCounter,
    ) -> UnpackedLayer:
        checked = _Checked(source.stream(blob), blob, what, count)
        async with aclosing(checked.pieces()) as pieces:
            try:
                unpacked = await self._deps.unpacker.unpack(
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

    def _describe(self, found: ResolvedImage, layers: tuple[Digest, ...]) -> Image:
        told = found.configuration
        return Image(
            id=ImageId(found.id) if found.id else rootfs_sources.id_of_layer(layers[0]),
            names=(),
            platform=(told.platform if told else None) or self._deps.platform,
            config=told.config if told else ImageConfig(),
            layers=layers,
            bytes=sum(blob.size for blob in found.blobs),
            pulled_at=self._deps.clock.now(),
            manifest=found.manifest,
        )

    async def _record(self, reference: ImageReference, image: Image, version: str) -> None:
        async with self._deps.catalogue.writing:
            await self._deps.layers.settle()
            await self._deps.catalogue.add(image)
            await self._call(NameRecord(str(reference), image.id, version))

    async def _name(self, reference: ImageReference, image: ImageId, version: str) -> None:
        async with self._deps.catalogue.writing:
            await self._call(NameRecord(str(reference), image, version))


def _is_registry(reference: ImageReference) -> bool:
    return isinstance(reference, RegistryReference)


class _Checked:
    """A blob on its way, held to its size and digest."""

    def __init__(
        self, stream: AsyncGenerator[bytes, None], blob: LayerBlob, of: str, count: LayerCounter | None
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
                raise oci_documents.truncated(self.what, got, self._blob.size)
            found = f"sha256:{seen.hexdigest()}"
            if self._blob.digest is not None and found != self._blob.digest:
                raise oci_documents.wrong_digest(self.what, self._blob.digest, found)
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

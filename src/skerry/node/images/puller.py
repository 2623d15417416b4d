"""A pull, from resolving the reference to the record on disk.

    resolve the version  ->  unchanged?  ->  documents  ->  each missing layer  ->  record, name

Layers stream from their source through the digest check into the unpacker; the compressed bytes are not
stored. A layer that two pulls need is fetched once. The record is written when everything that it refers to
is durable, so a pull that dies leaves at most complete layers.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from weakref import WeakValueDictionary

import msgspec
import structlog

from skerry.kit import files
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.kit.tasks import in_thread, run_to_completion
from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.image_settings import ImageSettings
from skerry.model.images import Image, ImageConfig, ImageId, Platform
from skerry.node.images import oci_documents, references, rootfs_sources
from skerry.node.images.docker_archives import DockerArchiveSource
from skerry.node.images.image_catalog import ImageCatalog, NameRecord, is_usable_by
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
from skerry.node.images.registry_source import RegistrySource
from skerry.node.images.single_flight import SingleFlight
from skerry.node.images.source_files import FolderFiles, TarFiles
from skerry.node.images.sources import ImageSource, LayerBlob, ResolvedImage, SharedSource
from skerry.node.layers.unpacker_client import LayerUnpacker, UnpackedLayer, UnpackLimits

log = structlog.get_logger(__name__)


class PullDeps(msgspec.Struct, frozen=True):
    """Dependencies of a pull."""

    settings: ImageSettings
    clock: Clock
    platform: Platform
    unpacker: LayerUnpacker
    layers: LayerStore
    catalogue: ImageCatalog
    failpoint: Callable[[str], None]
    backoff: Backoff


class Puller:
    """Pulls images."""

    keeps_layers = True  # layers of a failed pull stay for the next one
    namespace = ""  # whose login is used; empty: nobody's

    def __init__(self, deps: PullDeps) -> None:
        self._deps = deps
        settings = deps.settings
        self._slots = asyncio.Semaphore(settings.parallel)
        self._fetches: SingleFlight[Digest] = SingleFlight(shares_failures=False)
        # Counters of layers by digest: pulls of one layer share one.
        self._counts: WeakValueDictionary[Digest, LayerCounter] = WeakValueDictionary()

    async def pull(self, reference: ImageReference, pull: PullTracker) -> ImageId:
        """Pull the image that `reference` resolves to now; `pull` tracks what must not be collected."""
        pull.report(f"resolving {reference}")
        if isinstance(reference, RootfsReference) and await in_thread(
            rootfs_sources.is_folder, reference.path
        ):
            return await self._pull_folder(reference, pull)
        shared = SharedSource(await self._source(reference))
        async with shared as source:
            version = await source.version()
            self._deps.failpoint("pull.version")
            unchanged = self._find_unchanged(reference, version)
            if unchanged is not None:
                pull.images.add(unchanged)
                await run_to_completion(self._name(reference, unchanged, version, self._granted_to(source)))
                pull.report(f"{reference} is up to date")
                return unchanged
            found = await source.find(self._deps.platform)
            self._deps.failpoint("pull.found")
            layers = await self._fetch_all(shared, found, reference, pull)
            granted_to = self._granted_to(source)
        image = self._describe(found, layers)
        pull.images.add(image.id)
        await run_to_completion(self._record(reference, image, version, granted_to))
        pull.report(f"{reference} is here")
        return image.id

    async def close(self) -> None:
        await self._fetches.close()

    def _limits(self) -> UnpackLimits:
        """Limits of the next layer: concurrent pulls together leave the node a part of its disk."""
        settings = self._deps.settings
        free, all_ = self._deps.layers.disk()
        spare = (free - files.disk_reserve(all_)) // settings.parallel
        if spare <= 0:
            raise errors.ResourcesExhausted(
                "the node's disk is nearly full, so it pulls no images now; free some space there, or use "
                "another node"
            )
        return UnpackLimits(min(settings.max_layer_bytes, spare), settings.max_layer_files)

    def _find_unchanged(self, reference: ImageReference, version: str) -> ImageId | None:
        """The image of `reference` that is here, if its source version is unchanged. A private one only if
        this registry has it in the same repository: it may claim to have any digest."""

        def may_use(name: NameRecord, image: Image) -> bool:
            return is_usable_by(image, self.namespace) or _is_same_repository(name.reference, reference)

        return self._deps.catalogue.of_version(
            version, from_registry=_is_registry(reference), may_use=may_use
        )

    def _granted_to(self, source: ImageSource) -> str:
        """The namespace that the registry returned the image to; empty: to anybody."""
        return source.granted_to if isinstance(source, RegistrySource) else ""

    def _has(self, layer: Digest, *, proven: bool) -> bool:
        return self._deps.layers.has(layer, from_registry=proven, namespace=self.namespace)

    async def _save_name(self, name: NameRecord) -> None:
        """Store the image of a reference; the catalog is locked for writing."""
        await self._deps.catalogue.name(name)

    async def _source(self, reference: ImageReference) -> ImageSource:
        label = str(reference)
        match reference:
            case RegistryReference():
                return RegistrySource(
                    reference, self._deps.settings, self._deps.clock, backoff=self._deps.backoff
                )
            case LayoutReference(path, tag):
                return LayoutSource(FolderFiles(path), label, tag)
            case OciArchiveReference(path):
                return LayoutSource(await TarFiles.open(path), label)
            case DockerArchiveReference(path):
                return DockerArchiveSource(await TarFiles.open(path), label)
            case RootfsReference(path):
                return rootfs_sources.TarballSource(path)

    async def _pull_folder(self, reference: RootfsReference, pull: PullTracker) -> ImageId:
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
        pull.report(f"{reference} is here")
        return image.id

    async def _fetch_all(
        self, shared: SharedSource, found: ResolvedImage, reference: ImageReference, pull: PullTracker
    ) -> tuple[Digest, ...]:
        """Every layer of `found`, the lowest first, from here or from its source."""
        label, proven = str(reference), _is_registry(reference)
        if not 0 < len(found.blobs) <= self._deps.settings.max_layers:
            raise errors.Unprocessable(
                f"{label} has {len(found.blobs)} layers; 1 to {self._deps.settings.max_layers} are accepted"
            )
        if found.configuration is None:
            (blob,) = found.blobs
            count = LayerCounter(Digest(""), blob.size)
            pull.count([count])
            return (await self._fetch(shared, blob, None, label, count, pull.layers, proven=proven),)
        layers = found.configuration.diff_ids
        pull.layers.update(layers)
        blobs = dict(zip(layers, found.blobs, strict=True))  # an image may have a layer twice
        counts = {layer: self._count(layer, blob, proven=proven) for layer, blob in blobs.items()}
        pull.count(counts.values())
        try:
            async with asyncio.TaskGroup() as group:
                for layer, blob in blobs.items():
                    if not self._has(layer, proven=proven):
                        fetch = partial(
                            self._fetch,
                            shared,
                            blob,
                            layer,
                            label,
                            counts[layer],
                            pull.layers,
                            proven=proven,
                        )
                        group.create_task(self._fetches.join((layer, proven), fetch))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return layers

    def _count(self, layer: Digest, blob: LayerBlob, *, proven: bool) -> LayerCounter:
        if self._has(layer, proven=proven):
            return LayerCounter(blob.digest or layer, blob.size, "present")
        return self._counts.setdefault(layer, LayerCounter(blob.digest or layer, blob.size))

    async def _fetch(
        self,
        shared: SharedSource,
        blob: LayerBlob,
        layer: Digest | None,
        label: str,
        count: LayerCounter,
        counted_on: set[Digest],
        *,
        proven: bool,
    ) -> Digest:
        """Fetch one layer, `proven` if a registry returns it. The source stays open even if the pull that
        began this is cancelled."""
        async with shared as source, self._slots:
            # It may have arrived while we waited.
            if layer is not None and self._has(layer, proven=proven):
                count.become("done")
                return layer
            draft = await self._deps.layers.draft()
            self._deps.failpoint("layer.draft")
            try:
                count.become("pulling")
                unpacked = await self._unpack(source, blob, layer, draft, label, count)
                self._deps.failpoint("layer.unpacked")
                counted_on.add(unpacked.diff_id)  # before the garbage collector can see it
                await self._deps.layers.commit(
                    draft, unpacked, from_registry=proven, namespace=self._granted_to(source)
                )
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
        label: str,
        count: LayerCounter,
    ) -> UnpackedLayer:
        checked = _CheckedBlob(source.stream(blob), blob, label, count)
        async with aclosing(checked.pieces()) as pieces:
            try:
                unpacked = await self._deps.unpacker.unpack(
                    pieces, draft.root, diff_id=layer, limits=self._limits()
                )
            except (errors.Invalid, errors.Unprocessable, errors.TooLarge) as error:
                if checked.failure is not None:
                    raise checked.failure from None
                if isinstance(error, errors.Invalid) and not checked.is_whole:
                    # Corrupt data is malformed, too: report the wrong digest first.
                    await _CheckedBlob(source.stream(blob), blob, label, None).read_all()
                kind = errors.TooLarge if isinstance(error, errors.TooLarge) else errors.Unprocessable
                raise kind(f"{checked.label}: {error.message}", detail=error.detail) from None
            async for _ in pieces:
                pass  # bytes after the end of the tar count for the digest
        return unpacked

    def _describe(self, found: ResolvedImage, layers: tuple[Digest, ...]) -> Image:
        config = found.configuration
        return Image(
            id=ImageId(found.id) if found.id else rootfs_sources.id_of_layer(layers[0]),
            names=(),
            platform=(config.platform if config else None) or self._deps.platform,
            config=config.config if config else ImageConfig(),
            layers=layers,
            bytes=sum(blob.size for blob in found.blobs),
            pulled_at=self._deps.clock.now(),
            manifest=found.manifest,
        )

    async def _record(
        self, reference: ImageReference, image: Image, version: str, granted_to: str = ""
    ) -> None:
        async with self._deps.catalogue.writing:
            await self._deps.layers.sync()
            await self._deps.catalogue.add(image)
            if _is_registry(reference):
                await self._grant(image.id, image.layers, granted_to)
            await self._save_name(NameRecord(str(reference), image.id, version))

    async def _grant(self, image: ImageId, layers: tuple[Digest, ...], granted_to: str) -> None:
        """The registry has returned all of it, or would have."""
        await self._deps.catalogue.grant(image, granted_to)
        await in_thread(self._deps.layers.grant, layers, granted_to)

    async def _name(
        self, reference: ImageReference, image: ImageId, version: str, granted_to: str = ""
    ) -> None:
        async with self._deps.catalogue.writing:
            found = self._deps.catalogue.get(image)
            if found is not None and _is_registry(reference):
                await self._grant(image, found.layers, granted_to)
            await self._save_name(NameRecord(str(reference), image, version))


def _is_registry(reference: ImageReference) -> bool:
    return isinstance(reference, RegistryReference)


def _is_same_repository(name: str, reference: ImageReference) -> bool:
    other = references.parse(name)
    return (
        isinstance(other, RegistryReference)
        and isinstance(reference, RegistryReference)
        and (other.registry, other.repository) == (reference.registry, reference.repository)
    )


class _CheckedBlob:
    """A stream of a blob that checks size and digest."""

    def __init__(
        self, stream: AsyncGenerator[bytes, None], blob: LayerBlob, of: str, count: LayerCounter | None
    ) -> None:
        self.label = f"layer {blob.digest or blob.path} of {of}" if blob.digest or blob.path else of
        self.is_whole = False
        self.failure: errors.SkerryError | None = None  # of the source or the check, not of the reader
        self._stream = stream
        self._blob = blob
        self._count = count

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Its bytes. Raises at the end if size or digest are wrong."""
        hashed, got = hashlib.sha256(), 0
        try:
            async with aclosing(self._stream) as stream:
                async for piece in stream:
                    hashed.update(piece)
                    got += len(piece)
                    if self._count is not None:
                        self._count.add(len(piece))
                    yield piece
            if got != self._blob.size:
                raise oci_documents.truncated(self.label, got, self._blob.size)
            found = f"sha256:{hashed.hexdigest()}"
            if self._blob.digest is not None and found != self._blob.digest:
                raise oci_documents.wrong_digest(self.label, self._blob.digest, found)
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

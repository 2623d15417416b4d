"""Images and their names, on disk and in memory.

    images/HEX.json     an image, by its id
    names/HEX.json      a reference and its image; HEX is a hash of the reference

A file is whole or absent, and synced before it is acknowledged. A name moves from one image to another by one
rename. A name whose image is missing, and an image with missing layers, are dropped when the catalog is
loaded. An image that was ever pulled from a registry is marked (`from_registry`), also if the name moves on.
`skerry.node.images.images` decides who may use or remove what.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files, json_codec
from skerry.kit.tasks import in_thread
from skerry.model.ids import Digest
from skerry.model.images import Image, ImageAccess, ImageId, is_path
from skerry.node import record_files
from skerry.node.images.layer_store import with_namespace

log = structlog.get_logger(__name__)


class NameRecord(msgspec.Struct, frozen=True):
    """A reference in canonical form, and the image that it last resolved to."""

    reference: str
    image: ImageId
    version: str  # of its source; empty: unknown


class ImageCatalog:
    """All images of a node. Writers hold `writing`."""

    def __init__(self, folder: Path, failpoint: Callable[[str], None]) -> None:
        self._images_folder = files.private_folder(folder / "images")
        self._names_folder = files.private_folder(folder / "names")
        self._failpoint = failpoint
        self.writing = asyncio.Lock()
        self._images: dict[ImageId, Image] = {}  # without their names
        self._names: dict[str, NameRecord] = {}

    def load(self, has_layer: Callable[[Digest], bool]) -> None:
        """Load the records; waits for the disk."""
        for path in self._images_folder.iterdir():
            image = record_files.read(path, Image)
            if image is None or path != self._image_path(image.id) or not all(map(has_layer, image.layers)):
                log.warning("image.dropped", path=str(path), reason="it or one of its layers is not whole")
                path.unlink()
            else:
                self._images[image.id] = image
        for path in self._names_folder.iterdir():
            name = record_files.read(path, NameRecord)
            if name is None or path != self._name_path(name.reference) or name.image not in self._images:
                path.unlink()
            else:
                self._names[name.reference] = name
                if (marked := self._marked(name)) is not None:  # earlier versions did not mark them
                    _write(self._image_path(marked.id), marked)
                    self._images[marked.id] = marked

    def all(self) -> list[Image]:
        """Every image, by names and then by age."""
        led_to: dict[ImageId, list[str]] = {}
        for name in self._names.values():
            led_to.setdefault(name.image, []).append(name.reference)
        named = [
            msgspec.structs.replace(image, names=tuple(sorted(led_to.get(image.id, ()))))
            for image in self._images.values()
        ]
        return sorted(named, key=lambda image: (not image.names, image.names, image.pulled_at))

    def get(self, image: ImageId) -> Image | None:
        found = self._images.get(image)
        if found is None:
            return None
        names = sorted(name.reference for name in self._names.values() if name.image == image)
        return msgspec.structs.replace(found, names=tuple(names))

    def named(self, reference: str) -> Image | None:
        name = self._names.get(reference)
        return self.get(name.image) if name else None

    def record(self, reference: str) -> NameRecord | None:
        return self._names.get(reference)

    def of_version(
        self,
        version: str,
        *,
        from_registry: bool,
        may_use: Callable[[NameRecord, Image], bool] = lambda name, image: True,
    ) -> ImageId | None:
        """An image with this source version that `may_use` allows; with `from_registry`, only one that a
        registry returned: a registry's version must not lead to images from the disk."""
        for name in self._names.values():
            is_allowed = not from_registry or not is_path(name.reference)
            if version and name.version == version and is_allowed and may_use(name, self._images[name.image]):
                return name.image
        return None

    async def grant(self, id: ImageId, namespace: str) -> None:
        """A registry has returned it to this `namespace`, or without one to all. Called before it gets its
        name: that the image is here from the disk, too, shows it to nobody."""
        image = self._images[id]
        known = image.namespaces if image.from_registry else (namespace,)
        namespaces = with_namespace(known, namespace)
        if namespaces != image.namespaces:
            granted = msgspec.structs.replace(image, namespaces=namespaces)
            await in_thread(_write, self._image_path(id), granted)
            self._images[id] = granted

    def starting_with(self, digits: str, access: ImageAccess, namespace: str | None = None) -> list[ImageId]:
        """Ids with this prefix; without access to all, only of images from a registry; with a namespace, not
        of those that are private to others."""
        return sorted(
            id
            for id, image in self._images.items()
            if id.removeprefix("sha256:").startswith(digits)
            and (access is ImageAccess.ALL or image.from_registry)
            and is_usable_by(image, namespace)
        )

    def layers_in_use(self) -> set[Digest]:
        return {layer for image in self._images.values() for layer in image.layers}

    def registry_layers(self) -> set[Digest]:
        """Layers of images from a registry."""
        return {layer for image in self._images.values() if image.from_registry for layer in image.layers}

    async def add(self, image: Image) -> None:
        if image.id not in self._images:
            unnamed = msgspec.structs.replace(image, names=())
            await in_thread(_write, self._image_path(image.id), unnamed)
            self._images[image.id] = unnamed
        self._failpoint("pull.image")

    async def name(self, record: NameRecord) -> None:
        """Set the image of a reference; the image was added before."""
        if (marked := self._marked(record)) is not None:
            await in_thread(_write, self._image_path(marked.id), marked)
            self._images[marked.id] = marked
        if self._names.get(record.reference) != record:
            await in_thread(_write, self._name_path(record.reference), record)
            self._names[record.reference] = record
        self._failpoint("pull.name")

    async def forget(self, names: Iterable[str], image: ImageId | None = None) -> None:
        """Drop names, and an image that has no others. In memory they are gone before the first await."""
        paths = [self._name_path(self._names.pop(name).reference) for name in names]
        if image is not None:
            del self._images[image]
        for path in paths:
            await in_thread(_unlink, path)
            self._failpoint("remove.name")
        if image is not None:
            await in_thread(_unlink, self._image_path(image))
            self._failpoint("remove.image")

    def _marked(self, name: NameRecord) -> Image | None:
        """The image of `name` with the mark, if it is from a registry and not marked yet."""
        image = self._images[name.image]
        if image.from_registry or is_path(name.reference):
            return None
        return msgspec.structs.replace(image, from_registry=True)

    def _image_path(self, image: ImageId) -> Path:
        return self._images_folder / f"{image.removeprefix('sha256:')}.json"

    def _name_path(self, reference: str) -> Path:
        return self._names_folder / f"{hashlib.sha256(reference.encode()).hexdigest()}.json"


def is_usable_by(image: Image, namespace: str | None) -> bool:
    """True if a registry has returned it to this namespace, or to all; None: for the node itself."""
    return namespace is None or not image.namespaces or namespace in image.namespaces


def _write(path: Path, record: msgspec.Struct) -> None:
    files.write_atomically(path, json_codec.encode(record), files.PRIVATE)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
    files.sync_folder(path.parent)

"""Which images there are and what they are called, on disk and in memory.

    images/HEX.json     an image, known by its id
    names/HEX.json      a reference that leads to one; HEX is of the reference

Each file is whole or absent, and written to the disk before anybody is told. A name moves from one image to
another by one rename. A name whose image is gone, and an image whose layers are not all there, are dropped
when the catalogue is loaded. An image that some registry's name led to once is marked for good
(`from_registry`), also if the name moves on. Who may use or remove what is decided in
`skerry.node.images.images`.
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

log = structlog.get_logger(__name__)


class NameRecord(msgspec.Struct, frozen=True):
    """A reference in its canonical spelling, and what it led to when it was last asked for."""

    reference: str
    image: ImageId
    version: str  # what its source called that; empty: nothing


class ImageCatalog:
    """All images of a node. Whoever changes something holds `writing`."""

    def __init__(self, folder: Path, reached: Callable[[str], None]) -> None:
        self._images_folder = files.private_folder(folder / "images")
        self._names_folder = files.private_folder(folder / "names")
        self._reached = reached
        self.writing = asyncio.Lock()
        self._images: dict[ImageId, Image] = {}  # without their names
        self._names: dict[str, NameRecord] = {}

    def load(self, has_layer: Callable[[Digest], bool]) -> None:
        """Read what is there; waits for the disk."""
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
                if (marked := self._marked(name)) is not None:  # which earlier versions did not
                    _write(self._image_path(marked.id), marked)
                    self._images[marked.id] = marked

    def all(self) -> list[Image]:
        """Every image, by their names and then by their age."""
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

    def of_version(self, version: str, *, from_registry: bool) -> ImageId | None:
        """An image that its source called `version`; one that a registry did, if `from_registry`: the word of
        a registry is no way to what came from the disk."""
        for name in self._names.values():
            is_known_there = not from_registry or not is_path(name.reference)
            if version and name.version == version and is_known_there:
                return name.image
        return None

    def starting_with(self, digits: str, access: ImageAccess) -> list[ImageId]:
        """Those whose id begins so; without access to all, those that came from a registry."""
        return sorted(
            id
            for id, image in self._images.items()
            if id.removeprefix("sha256:").startswith(digits)
            and (access is ImageAccess.ALL or image.from_registry)
        )

    def layers_in_use(self) -> set[Digest]:
        return {layer for image in self._images.values() for layer in image.layers}

    def registry_layers(self) -> set[Digest]:
        """Those of images that came from a registry."""
        return {layer for image in self._images.values() if image.from_registry for layer in image.layers}

    async def add(self, image: Image) -> None:
        if image.id not in self._images:
            plain = msgspec.structs.replace(image, names=())
            await in_thread(_write, self._image_path(image.id), plain)
            self._images[image.id] = plain
        self._reached("pull.image")

    async def name(self, record: NameRecord) -> None:
        """Let a reference lead to an image that was added."""
        if (marked := self._marked(record)) is not None:
            await in_thread(_write, self._image_path(marked.id), marked)
            self._images[marked.id] = marked
        if self._names.get(record.reference) != record:
            await in_thread(_write, self._name_path(record.reference), record)
            self._names[record.reference] = record
        self._reached("pull.name")

    async def forget(self, names: Iterable[str], image: ImageId | None = None) -> None:
        """Drop names, and an image that has no others. For all here they are gone before this first waits."""
        gone = [self._name_path(self._names.pop(name).reference) for name in names]
        if image is not None:
            del self._images[image]
        for path in gone:
            await in_thread(_unlink, path)
            self._reached("remove.name")
        if image is not None:
            await in_thread(_unlink, self._image_path(image))
            self._reached("remove.image")

    def _marked(self, name: NameRecord) -> Image | None:
        """The image that `name` leads to, as one from a registry, if it is that and not marked so yet."""
        image = self._images[name.image]
        if image.from_registry or is_path(name.reference):
            return None
        return msgspec.structs.replace(image, from_registry=True)

    def _image_path(self, image: ImageId) -> Path:
        return self._images_folder / f"{image.removeprefix('sha256:')}.json"

    def _name_path(self, reference: str) -> Path:
        return self._names_folder / f"{hashlib.sha256(reference.encode()).hexdigest()}.json"


def _write(path: Path, record: msgspec.Struct) -> None:
    files.write_atomically(path, json_codec.encode(record), files.PRIVATE)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
    files.sync_folder(path.parent)

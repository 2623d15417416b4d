"""The images of a node: pulled once, shared by all, kept while somebody needs them.

What `skerry.node.containers` and the people at the command line use. Here it is decided what may be removed:
never what is claimed, and never what a pull that is under way counts on. `pulling` brings images here,
`layers` and `catalogue` keep them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from skerry.kit import files
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.images import Image, ImageId, Platform, PullProgress
from skerry.model.settings import ImageSettings
from skerry.node.images import references, registry
from skerry.node.images.catalogue import Catalogue
from skerry.node.images.flights import Flights
from skerry.node.images.layers import Layers
from skerry.node.images.progress import OnProgress, Pull
from skerry.node.images.pulling import Puller
from skerry.node.images.references import Reference
from skerry.node.images.threads import in_thread, unbroken
from skerry.node.layers import stacking
from skerry.node.layers.unpacking import Unpacker

log = structlog.get_logger(__name__)

# After these, pulling again may work, and what is here already need not come again.
_MAY_PASS = (errors.Unavailable, errors.TimedOut, errors.Overloaded)


def _ignore(progress: PullProgress) -> None:
    """For callers that do not care."""


class Images:
    """Every image that is here. One for a folder; all calls from one event loop."""

    def __init__(
        self, settings: ImageSettings, clock: Clock, layers: Layers, catalogue: Catalogue, puller: Puller
    ) -> None:
        """`open` makes one."""
        self._settings = settings
        self._clock = clock
        self._layers = layers
        self._catalogue = catalogue
        self._puller = puller
        self._claims: dict[str, ImageId] = {}
        self._under_way: dict[str, Pull] = {}
        self._pulls: Flights[ImageId] = Flights(shares_failures=True)

    @classmethod
    async def open(
        cls,
        folder: Path,
        settings: ImageSettings,
        clock: Clock,
        *,
        platform: Platform,
        unpacker: Unpacker,
        reached: Callable[[str], None] = lambda step: None,
        backoff: Backoff = registry.BACKOFF,
    ) -> Images:
        """Take over what is in `folder`; what a crash left half-done is removed.

        `reached` is told each step that is done, so that tests can end the process there.
        """
        files.private_folder(folder)
        layers, catalogue = Layers(folder, reached), Catalogue(folder, reached)
        await in_thread(layers.load)
        await in_thread(catalogue.load, layers.__contains__)
        puller = Puller(
            settings, clock, platform, unpacker, layers, catalogue, reached=reached, backoff=backoff
        )
        return cls(settings, clock, layers, catalogue, puller)

    async def pull(self, reference: str, *, owner: str = "", on_progress: OnProgress = _ignore) -> Image:
        """Ask the source what `reference` means now and have that here, whole and on disk.

        With `owner` the image is claimed in the same step. Pulls of the same thing at once share the work.
        Raises Invalid (no reference), NotFound, Unprocessable (broken, hostile, or not for this machine),
        TooLarge, Refused (no login, no trust), Unavailable, TimedOut, Overloaded (later it may work).
        """
        parsed = self._parse(reference)
        key = str(parsed)
        pull = self._under_way.setdefault(key, Pull(key, self._clock))
        try:
            with pull.heard_by(on_progress):
                image = await self._pulls.join(key, lambda: self._pull(parsed, pull))
                if owner:
                    self._claims[owner] = image
                return self._get(image)
        finally:
            # Until the last one who asked has got the image and claimed it, nothing takes it away.
            if not pull.is_wanted and self._under_way.get(key) is pull:
                del self._under_way[key]
                pull.end()

    async def ensure(self, reference: str, *, owner: str = "", on_progress: OnProgress = _ignore) -> Image:
        """What is here under `reference`, which may also be an id; pulled if nothing is."""
        try:
            found = self.find(reference)
        except errors.NotFound:
            if _is_id(reference):
                raise
            return await self.pull(reference, owner=owner, on_progress=on_progress)
        if owner:
            self._claims[owner] = found.id
        return found

    def list(self) -> list[Image]:
        """All of them, by name and then by age."""
        return self._catalogue.all()

    def find(self, reference_or_id: str) -> Image:
        """By a reference, an id, or the beginning of an id, at least 6 hex digits."""
        if not _is_id(reference_or_id):
            named = self._catalogue.named(str(self._parse(reference_or_id)))
            if named is not None:
                return named
        digits = references.parse_id_prefix(reference_or_id)
        matches = self._catalogue.starting_with(digits) if digits else []
        if len(matches) > 1:
            raise errors.Invalid(
                f"{len(matches)} images have an id that begins with {digits}; write more of it", field="image"
            )
        if not matches:
            how = "" if _is_id(reference_or_id) else f"; pull it with `skerry image pull {reference_or_id}`"
            raise errors.NotFound(f"there is no image {reference_or_id} here{how}")
        return self._get(matches[0])

    async def remove(self, reference_or_id: str) -> int:
        """Drop a name, and the image with its last one; by id: the image with all its names. Bytes freed."""
        return await unbroken(self._remove(reference_or_id))

    def claim(self, owner: str, image: ImageId) -> None:
        """Keep `image` from being removed or collected until `release(owner)`. Not remembered on disk."""
        self._get(image)
        self._claims[owner] = image

    def release(self, owner: str) -> None:
        """Give up what `owner` claimed, if anything."""
        self._claims.pop(owner, None)

    def layers(self, image: Image) -> tuple[Path, ...]:
        """The folders to stack with overlayfs, the lowest first: each once, none that is covered whole."""
        if image.folder:
            folder = Path(image.folder)
            if not folder.is_dir():
                raise errors.NotFound(f"the folder {folder} of image {image.id[:19]} is gone; put it back")
            return (folder,)
        # overlayfs takes no folder twice. Of a layer that is there twice the upper one decides everything.
        once = dict.fromkeys(reversed(image.layers))
        return tuple(stacking.visible([self._layers.root(layer) for layer in reversed(once)]))

    async def collect(self) -> int:
        """Remove images without a name and a claim, and layers that no image has. Bytes freed."""
        return await unbroken(self._collect())

    async def close(self) -> None:
        """End pulls that are under way; who waits for one is told."""
        await self._pulls.close()
        await self._puller.close()

    async def _pull(self, reference: Reference, pull: Pull) -> ImageId:
        try:
            image = await self._puller.pull(reference, pull)
        except (errors.SkerryError, OSError) as error:
            told = error if isinstance(error, errors.SkerryError) else _of_system(reference, error)
            log.info("image.not_pulled", reference=str(reference), error=told.message, detail=told.detail)
            if not isinstance(told, _MAY_PASS):
                brought, pull.layers = pull.layers, set()
                await unbroken(self._drop_layers(brought))
            raise told from None
        log.info("image.pulled", reference=str(reference), image=image)
        return image

    async def _remove(self, reference_or_id: str) -> int:
        async with self._catalogue.writing:
            image = self.find(reference_or_id)
            names: tuple[str, ...] = image.names
            if not _is_id(reference_or_id):
                asked = str(self._parse(reference_or_id))
                names = (asked,) if asked in image.names else image.names
            if len(names) == len(image.names):
                self._refuse_if_needed(image)
            if len(names) < len(image.names):
                await self._catalogue.forget(names)
                return 0
            await self._catalogue.forget(names, image.id)
            log.info("image.removed", image=image.id, names=names)
            return await self._drop_layers(image.layers)

    def _refuse_if_needed(self, image: Image) -> None:
        users = sorted(owner for owner, claimed in self._claims.items() if claimed == image.id)
        if users:
            raise errors.Refused(
                f"image {image.id[:19]} is used by {', '.join(users[:20])}; remove what uses it first"
            )
        pulls = [pull.reference for pull in self._under_way.values() if image.id in pull.images]
        if pulls:
            raise errors.Refused(
                f"image {image.id[:19]} is being pulled as {pulls[0]}; wait until that is done"
            )

    async def _collect(self) -> int:
        async with self._catalogue.writing:
            for image in self._catalogue.all():
                if not image.names and not self._is_needed(image.id):
                    await self._catalogue.forget((), image.id)
                    log.info("image.collected", image=image.id)
            return await self._drop_layers(self._layers.known())

    def _is_needed(self, image: ImageId) -> bool:
        return image in self._claims.values() or any(
            image in pull.images for pull in self._under_way.values()
        )

    async def _drop_layers(self, layers: Iterable[Digest]) -> int:
        """Remove those of `layers` that nobody needs. From looking to taking away nothing else can happen."""
        needed = self._catalogue.layers_in_use().union(*(pull.layers for pull in self._under_way.values()))
        idle = {layer for layer in layers if layer in self._layers and layer not in needed}
        freed, trash = self._layers.take_away(idle)
        await self._layers.empty(trash)
        return freed

    def _parse(self, reference: str) -> Reference:
        return references.parse(reference, self._settings.default_registry)

    def _get(self, image: ImageId) -> Image:
        found = self._catalogue.get(image)
        if found is None:
            raise errors.NotFound(f"there is no image {image[:19]} here; pull it first")
        return found


def _of_system(reference: Reference, error: OSError) -> errors.SkerryError:
    """What the system says to our own files, in words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return errors.NoRoom(f"the disk is too full for {reference}; make room and pull it again")
    reason = (error.strerror or "it failed").lower()
    return errors.Internal(f"{reference} cannot be kept: {reason}", detail=repr(error))


def _is_id(text: str) -> bool:
    """`sha256:` begins an id; as a reference it would be a repository of that name, which nobody has."""
    return text.startswith("sha256:")

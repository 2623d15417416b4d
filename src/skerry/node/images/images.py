"""The images of a node: pulled once, shared by all, kept while somebody needs them.

What `skerry.node.containers` and the people at the command line use. Here it is decided what may be removed:
never what is claimed, and never what a pull that is under way counts on. `pulling` brings images here,
`layers` and `catalogue` keep them.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import structlog

from skerry.kit import files
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.images import Image, ImageId, Platform
from skerry.model.settings import ImageSettings
from skerry.node.images import references, registry
from skerry.node.images.catalogue import Catalogue
from skerry.node.images.flights import Flights
from skerry.node.images.guests import GuestImages, GuestPuller
from skerry.node.images.layers import Layers
from skerry.node.images.progress import OnProgress, Pull, ignore
from skerry.node.images.pulling import Means, Puller
from skerry.node.images.reach import Reach
from skerry.node.images.references import Reference, is_id
from skerry.node.images.threads import in_thread, unbroken
from skerry.node.layers import stacking
from skerry.node.layers.unpacking import Unpacker

log = structlog.get_logger(__name__)

# After these, pulling again may work, and what is here already need not come again.
_MAY_PASS = (errors.Unavailable, errors.TimedOut, errors.Overloaded)


class Images:
    """Every image that is here. One for a folder; all calls from one event loop."""

    def __init__(self, means: Means, reach: Reach) -> None:
        """`open` makes one."""
        self._settings = means.settings
        self._clock = means.clock
        self._layers = means.layers
        self._catalogue = means.catalogue
        self._puller = Puller(means)
        self._guests = GuestImages(self, GuestPuller(means, reach))
        self._claims: dict[str, ImageId] = {}
        self._under_way: dict[tuple[Puller, str], Pull] = {}
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
        guest_registries: Sequence[str] = (),
        reached: Callable[[str], None] = lambda step: None,
        backoff: Backoff = registry.BACKOFF,
    ) -> Images:
        """Take over what is in `folder`; what a crash left half-done is removed.

        `guest_registries` are those that are not public and may yet be used for strangers. `reached` is told
        each step that is done, so that tests can end the process there.
        """
        files.private_folder(folder)
        layers, catalogue = Layers(folder, reached), Catalogue(folder, reached)
        await in_thread(layers.load)
        await in_thread(catalogue.load, layers.__contains__)
        means = Means(settings, clock, platform, unpacker, layers, catalogue, reached, backoff)
        return cls(means, Reach(guest_registries))

    def for_guests(self) -> GuestImages:
        """The images that a stranger may have."""
        return self._guests

    async def pull(self, reference: str, *, owner: str = "", on_progress: OnProgress = ignore) -> Image:
        """Ask the source what `reference` means now and have that here, whole and on disk.

        With `owner` the image is claimed in the same step. Pulls of the same thing at once share the work.
        Raises Invalid (no reference), NotFound, Unprocessable (broken, hostile, or not for this machine),
        TooLarge, Refused (no login, no trust), Unavailable, TimedOut, Overloaded (later it may work).
        """
        return await self.bring(self._parse(reference), self._puller, owner=owner, on_progress=on_progress)

    async def bring(
        self, reference: Reference, puller: Puller, *, owner: str, on_progress: OnProgress
    ) -> Image:
        """What `pull` does, by a certain puller: pulls of different ones share no work."""
        key = puller, str(reference)
        pull = self._under_way.setdefault(key, Pull(str(reference), self._clock))
        try:
            with pull.heard_by(on_progress):
                image = await self._pulls.join(key, lambda: self._pull(reference, pull, puller))
                if owner:
                    self._claims[owner] = image
                return self._get(image)
        finally:
            # Until the last one who asked has got the image and claimed it, nothing takes it away.
            if not pull.is_wanted and self._under_way.get(key) is pull:
                del self._under_way[key]
                pull.end()

    async def ensure(self, reference: str, *, owner: str = "", on_progress: OnProgress = ignore) -> Image:
        """What is here under `reference`, which may also be an id; pulled if nothing is."""
        try:
            found = self.find(reference)
        except errors.NotFound:
            if is_id(reference):
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
        if not is_id(reference_or_id):
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
            how = "" if is_id(reference_or_id) else f"; pull it with `skerry image pull {reference_or_id}`"
            raise errors.NotFound(f"there is no image {reference_or_id} here{how}")
        return self._get(matches[0])

    async def remove(self, reference_or_id: str) -> int:
        """Drop a name, and the image with its last one; by id: the image with all its names. Bytes freed."""
        return await unbroken(self._remove(reference_or_id))

    def claim(self, owner: str, image: ImageId) -> None:
        """Keep `image` from being removed or collected until `release(owner)`. Not remembered on disk."""
        self._get(image)
        self._claims[owner] = image

    def claimed_by(self, owner: str) -> ImageId | None:
        return self._claims.get(owner)

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

    async def collect_one(self, image: ImageId) -> None:
        """Remove `image` if it has neither a name nor a claim, with layers that no other has."""
        await unbroken(self._collect_one(image))

    async def collect(self) -> int:
        """Remove images without a name and a claim, and layers that no image has. Bytes freed."""
        return await unbroken(self._collect())

    async def close(self) -> None:
        """End pulls that are under way; who waits for one is told."""
        await self._pulls.close()
        await self._puller.close()
        await self._guests.close()

    async def _pull(self, reference: Reference, pull: Pull, puller: Puller) -> ImageId:
        try:
            image = await puller.pull(reference, pull)
        except (errors.SkerryError, OSError) as error:
            told = error if isinstance(error, errors.SkerryError) else _of_system(reference, error)
            log.info("image.not_pulled", reference=str(reference), error=told.message, detail=told.detail)
            if not (puller.keeps_parts and isinstance(told, _MAY_PASS)):
                await unbroken(self._drop_parts(pull))
            raise told from None
        except asyncio.CancelledError:
            if not puller.keeps_parts:
                await unbroken(self._drop_parts(pull))
            raise
        log.info("image.pulled", reference=str(reference), image=image)
        return image

    async def _remove(self, reference_or_id: str) -> int:
        async with self._catalogue.writing:
            image = self.find(reference_or_id)
            names: tuple[str, ...] = image.names
            if not is_id(reference_or_id):
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
                await self._forget_if_idle(image)
            return await self._drop_layers(self._layers.known())

    async def _collect_one(self, image: ImageId) -> None:
        async with self._catalogue.writing:
            found = self._catalogue.get(image)
            if found is not None and await self._forget_if_idle(found):
                await self._drop_layers(found.layers)

    async def _forget_if_idle(self, image: Image) -> bool:
        if image.names or self._is_needed(image.id):
            return False
        await self._catalogue.forget((), image.id)
        log.info("image.collected", image=image.id)
        return True

    def _is_needed(self, image: ImageId) -> bool:
        return image in self._claims.values() or any(
            image in pull.images for pull in self._under_way.values()
        )

    async def _drop_parts(self, pull: Pull) -> None:
        brought, pull.layers = pull.layers, set()
        await self._drop_layers(brought)

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

"""The images of a node: pulled once, shared by all, kept while somebody needs them.

What `skerry.node.containers` and the people at the command line use. Here it is decided which image a
reference may lead to: every caller brings the access that the reference was given with, and without `ALL` no
path of this machine is looked at. It is also decided what may be removed: never what is claimed, and never
what a pull that is under way counts on. `puller` brings images here, `layer_store` and `image_catalog` keep
them.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from skerry.kit import files
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.kit.tasks import in_thread, run_to_completion
from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.images import Image, ImageAccess, ImageId, Platform, check_path_access, is_path
from skerry.model.settings import ImageSettings
from skerry.node.images import references, registry_source
from skerry.node.images.guest_puller import GuestPuller, parse_for_guests
from skerry.node.images.image_catalog import ImageCatalog, NameRecord
from skerry.node.images.layer_store import LayerStore
from skerry.node.images.progress import OnProgress, PullTracker, ignore
from skerry.node.images.puller import PullDeps, Puller
from skerry.node.images.references import ImageReference, is_id
from skerry.node.images.registry_policy import RegistryPolicy
from skerry.node.images.single_flight import SingleFlight
from skerry.node.layers import stacking
from skerry.node.layers.unpacker_client import LayerUnpacker

log = structlog.get_logger(__name__)

# After these, pulling again may work, and what is here already need not come again.
_MAY_PASS = (errors.Unavailable, errors.TimedOut, errors.Overloaded)


@dataclass(slots=True)
class _Trial:
    """What a name led to before somebody tried what it leads to now."""

    before: NameRecord | None
    users: int = 0
    has_succeeded: bool = False


class Images:
    """Every image that is here. One for a folder; all calls from one event loop."""

    def __init__(self, deps: PullDeps, reach: RegistryPolicy) -> None:
        """`open` makes one."""
        self._settings = deps.settings
        self._clock = deps.clock
        self._layers = deps.layers
        self._catalogue = deps.catalogue
        self._puller = Puller(deps)
        self._guests = GuestImages(self, GuestPuller(deps, reach))
        self._claims: dict[str, ImageId] = {}
        self._under_way: dict[tuple[Puller, str], PullTracker] = {}
        self._trials: dict[str, _Trial] = {}
        self._pulls: SingleFlight[ImageId] = SingleFlight(shares_failures=True)

    @classmethod
    async def open(
        cls,
        folder: Path,
        settings: ImageSettings,
        clock: Clock,
        *,
        platform: Platform,
        unpacker: LayerUnpacker,
        guest_registries: Sequence[str] = (),
        reached: Callable[[str], None] = lambda step: None,
        backoff: Backoff = registry_source.BACKOFF,
    ) -> Images:
        """Take over what is in `folder`; what a crash left half-done is removed.

        `guest_registries` are those that are not public and may yet be used for strangers. `reached` is told
        each step that is done, so that tests can end the process there.
        """
        files.private_folder(folder)
        layers, catalogue = LayerStore(folder, reached), ImageCatalog(folder, reached)
        await in_thread(layers.load)
        await in_thread(catalogue.load, layers.__contains__)
        await in_thread(layers.mark, catalogue.registry_layers())  # which earlier versions did not
        deps = PullDeps(settings, clock, platform, unpacker, layers, catalogue, reached, backoff)
        return cls(deps, RegistryPolicy(guest_registries))

    def for_guests(self) -> GuestImages:
        """The images that a stranger may have."""
        return self._guests

    async def pull(
        self,
        reference: str,
        *,
        access: ImageAccess = ImageAccess.REGISTRIES,
        owner: str = "",
        on_progress: OnProgress = ignore,
    ) -> Image:
        """Ask the source what `reference` means now and have that here, whole and on disk.

        With `owner` the image is claimed in the same step. Pulls of the same thing at once share the work.
        Raises Invalid (no reference), Forbidden (a path, without the access), NotFound, Unprocessable
        (broken, hostile, or not for this machine), TooLarge, FailedPrecondition (no login, no trust),
        Unavailable, TimedOut, Overloaded (later it may work).
        """
        parsed = self._parse(reference, access)
        return await self.bring(parsed, self._puller, owner=owner, on_progress=on_progress)

    async def bring(
        self, reference: ImageReference, puller: Puller, *, owner: str, on_progress: OnProgress
    ) -> Image:
        """What `pull` does, by a certain puller: pulls of different ones share no work."""
        key = puller, str(reference)
        pull = self._under_way.setdefault(key, PullTracker(str(reference), self._clock))
        try:
            with pull.heard_by(on_progress):
                image = await self._pulls.join(key, lambda: self._pull(reference, pull, puller))
                if owner:
                    self._claims[owner] = image
                return self.get(image)
        finally:
            # Until the last one who asked has got the image and claimed it, nothing takes it away.
            if not pull.is_wanted and self._under_way.get(key) is pull:
                del self._under_way[key]
                pull.end()

    async def ensure(
        self,
        reference: str,
        *,
        access: ImageAccess = ImageAccess.REGISTRIES,
        owner: str = "",
        on_progress: OnProgress = ignore,
    ) -> Image:
        """What is here under `reference`, which may also be an id; pulled if nothing is."""
        try:
            found = self.find(reference, access=access)
        except errors.NotFound:
            if is_id(reference):
                raise
            return await self.pull(reference, access=access, owner=owner, on_progress=on_progress)
        if owner:
            self._claims[owner] = found.id
        return found

    @asynccontextmanager
    async def provisional(self, reference: str) -> AsyncIterator[None]:
        """If what is done inside fails, `reference` leads again to what it led to before, and what came here
        under it goes, unless somebody uses that. Of several at once one is enough that does not fail."""
        name = str(references.parse(reference, self._settings.default_registry))
        trial = self._trials.setdefault(name, _Trial(self._catalogue.record(name)))
        trial.users += 1
        owner = f"a trial of {name}"
        if trial.before is not None:
            self._claims[owner] = trial.before.image  # it may be without a name meanwhile
        try:
            yield
            trial.has_succeeded = True
        finally:
            trial.users -= 1
            if not trial.users:
                del self._trials[name]
                if not trial.has_succeeded:
                    await run_to_completion(self._restore(name, trial.before))
                if self._trials.get(name) is None:
                    self.release(owner)

    async def _restore(self, name: str, before: NameRecord | None) -> None:
        async with self._catalogue.writing:
            now = self._catalogue.record(name)
            if now is None or (before is not None and now.image == before.image):
                return
            if self.get(now.image).names == (name,) and self._is_needed(now.image):
                return
            if before is None:
                await self._catalogue.forget((name,))
            else:
                await self._catalogue.name(before)
            left = self._catalogue.get(now.image)
            if left is not None and await self._forget_if_idle(left):
                await self._drop_layers(left.layers)

    def list(self) -> list[Image]:
        """All of them, by name and then by age."""
        return self._catalogue.all()

    def get(self, image: ImageId) -> Image:
        """The very image; whoever has its whole id from here need not say how it came."""
        found = self._catalogue.get(image)
        if found is None:
            raise errors.NotFound(f"there is no image {image[:19]} here; pull it first")
        return found

    def find(self, reference_or_id: str, *, access: ImageAccess = ImageAccess.REGISTRIES) -> Image:
        """By a reference, an id, or the beginning of an id, at least 6 hex digits.

        To who has no access to all of them, those that came from no registry are not there.
        """
        if not is_id(reference_or_id):
            named = self._catalogue.named(str(self._parse(reference_or_id, access)))
            if named is not None:
                return named
        digits = references.parse_id_prefix(reference_or_id)
        matches = self._catalogue.starting_with(digits, access) if digits else []
        if len(matches) > 1:
            raise errors.Invalid(
                f"{len(matches)} images have an id that begins with {digits}; write more of it", field="image"
            )
        if not matches:
            how = "" if is_id(reference_or_id) else f"; pull it with `skerry image pull {reference_or_id}`"
            raise errors.NotFound(f"there is no image {reference_or_id} here{how}")
        return self.get(matches[0])

    async def remove(self, reference_or_id: str, *, access: ImageAccess = ImageAccess.REGISTRIES) -> int:
        """Drop a name, and the image with its last one; by id: the image with all its names that may be used
        with `access`. Bytes freed."""
        return await run_to_completion(self._remove(reference_or_id, access))

    def claim(self, owner: str, image: ImageId) -> None:
        """Keep `image` from being removed or collected until `release(owner)`. Not remembered on disk."""
        self.get(image)
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
        await run_to_completion(self._collect_one(image))

    async def collect(self) -> int:
        """Remove images without a name and a claim, and layers that no image has. Bytes freed."""
        return await run_to_completion(self._collect())

    async def close(self) -> None:
        """End pulls that are under way; who waits for one is told."""
        await self._pulls.close()
        await self._puller.close()
        await self._guests.close()

    async def _pull(self, reference: ImageReference, pull: PullTracker, puller: Puller) -> ImageId:
        try:
            image = await puller.pull(reference, pull)
        except (errors.SkerryError, OSError) as error:
            told = error if isinstance(error, errors.SkerryError) else _of_system(reference, error)
            log.info("image.not_pulled", reference=str(reference), error=told.message, detail=told.detail)
            if not (puller.keeps_parts and isinstance(told, _MAY_PASS)):
                await run_to_completion(self._drop_parts(pull))
            raise told from None
        except asyncio.CancelledError:
            if not puller.keeps_parts:
                await run_to_completion(self._drop_parts(pull))
            raise
        log.info("image.pulled", reference=str(reference), image=image)
        return image

    async def _remove(self, reference_or_id: str, access: ImageAccess) -> int:
        async with self._catalogue.writing:
            image = self.find(reference_or_id, access=access)
            names = tuple(name for name in image.names if access is ImageAccess.ALL or not is_path(name))
            if not is_id(reference_or_id):
                asked = str(self._parse(reference_or_id, access))
                names = (asked,) if asked in image.names else names
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
            raise errors.FailedPrecondition(
                f"image {image.id[:19]} is used by {', '.join(users[:20])}; remove what uses it first"
            )
        pulls = [pull.reference for pull in self._under_way.values() if image.id in pull.images]
        if pulls:
            raise errors.FailedPrecondition(
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

    async def _drop_parts(self, pull: PullTracker) -> None:
        brought, pull.layers = pull.layers, set()
        await self._drop_layers(brought)

    async def _drop_layers(self, layers: Iterable[Digest]) -> int:
        """Remove those of `layers` that nobody needs. From looking to taking away nothing else can happen."""
        needed = self._catalogue.layers_in_use().union(*(pull.layers for pull in self._under_way.values()))
        idle = {layer for layer in layers if layer in self._layers and layer not in needed}
        freed, trash = self._layers.take_away(idle)
        await self._layers.empty(trash)
        return freed

    def _parse(self, reference: str, access: ImageAccess) -> ImageReference:
        """What `reference` means, if it may be used with `access`; nothing on the disk is looked at."""
        parsed = references.parse(reference, self._settings.default_registry)
        check_path_access(str(parsed), access)
        return parsed


def _of_system(reference: ImageReference, error: OSError) -> errors.SkerryError:
    """What the system says to our own files, in words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return errors.ResourcesExhausted(f"the disk is too full for {reference}; make room and pull it again")
    reason = (error.strerror or "it failed").lower()
    return errors.Internal(f"{reference} cannot be kept: {reason}", detail=repr(error))


class GuestImages:
    """What strangers have in the place of `Images`."""

    def __init__(self, images: Images, puller: GuestPuller) -> None:
        self._images = images
        self._puller = puller
        self._tidying: set[asyncio.Task[None]] = set()

    async def ensure(
        self,
        reference: str,
        *,
        access: ImageAccess = ImageAccess.REGISTRIES,
        owner: str = "",
        on_progress: OnProgress = ignore,
    ) -> Image:
        """What the registry means by `reference` now and gives to anybody. Raises what `Images.pull` does;
        Invalid also for what is on this machine's disk, and for an id, whatever `access` another cloud says
        that it grants."""
        return await self._images.bring(
            parse_for_guests(reference), self._puller, owner=owner, on_progress=on_progress
        )

    def release(self, owner: str) -> None:
        """Give up what `owner` claimed, if anything; tidied up."""
        image = self._images.claimed_by(owner)
        self._images.release(owner)
        if image is not None:
            self.tidy(image)

    def tidy(self, image: ImageId) -> None:
        """Let `image` go, in its own time, unless somebody needs it or it has a name."""
        task = asyncio.create_task(self._tidy(image))
        self._tidying.add(task)
        task.add_done_callback(self._tidying.discard)

    async def close(self) -> None:
        """End pulls that are under way; what is being tidied up is finished."""
        await self._puller.close()
        await asyncio.gather(*self._tidying)

    async def _tidy(self, image: ImageId) -> None:
        try:
            await self._images.collect_one(image)
        except OSError as error:  # it stays until somebody collects
            log.warning("image.not_collected", image=image, error=str(error))

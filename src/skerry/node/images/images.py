"""The images of a node: pulled once, shared by all, kept while they are used.

Used by `skerry.node.containers` and the API. It decides which images a reference may resolve to: every caller
passes the access of the reference's author, and without `ALL` no path of this machine is read. It also
decides what may be removed: never what is claimed, and never what a pull in progress needs. `puller` pulls
images, `layer_store` and `image_catalog` store them.
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
from skerry.model.ids import Digest, Namespace
from skerry.model.image_settings import ImageSettings
from skerry.model.images import Image, ImageAccess, ImageId, Platform, check_path_access, is_path
from skerry.node.images import references, registry_source
from skerry.node.images.guest_puller import GuestPuller, parse_for_guests
from skerry.node.images.image_catalog import ImageCatalog, NameRecord, is_usable_by
from skerry.node.images.layer_store import LayerStore
from skerry.node.images.namespace_puller import FetchLogin, NamespacePuller
from skerry.node.images.progress import OnProgress, PullTracker, ignore
from skerry.node.images.puller import PullDeps, Puller
from skerry.node.images.references import ImageReference, is_id
from skerry.node.images.registry_policy import RegistryPolicy
from skerry.node.images.single_flight import SingleFlight
from skerry.node.layers import stacking
from skerry.node.layers.unpacker_client import LayerUnpacker

log = structlog.get_logger(__name__)

# After these, a retry of the pull may succeed, and layers that are here are reused.
_MAY_PASS = (errors.Unavailable, errors.TimedOut, errors.Overloaded)


@dataclass(slots=True)
class _Trial:
    """The image of a name before a trial."""

    before: NameRecord | None
    users: int = 0
    has_succeeded: bool = False


class Images:
    """All images of a node. One per folder; all calls from one event loop."""

    def __init__(self, deps: PullDeps, policy: RegistryPolicy) -> None:
        """Use `open`."""
        self._settings = deps.settings
        self._clock = deps.clock
        self._layers = deps.layers
        self._catalogue = deps.catalogue
        self._puller = Puller(deps)
        self._guests = GuestImages(self, GuestPuller(deps, policy))
        self._deps = deps
        self._of_namespaces: dict[Namespace, NamespaceImages] = {}
        self._claims: dict[str, ImageId] = {}
        self._trackers: dict[tuple[Puller, str], PullTracker] = {}
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
        failpoint: Callable[[str], None] = lambda step: None,
        backoff: Backoff = registry_source.BACKOFF,
    ) -> Images:
        """Load the records of `folder`; what a crash left half done is removed.

        `guest_registries` are not public and may yet be used for guests. `failpoint` is called after each
        step, so that tests can end the process there.
        """
        files.private_folder(folder)
        layers, catalogue = LayerStore(folder, failpoint), ImageCatalog(folder, failpoint)
        await in_thread(layers.load)
        await in_thread(catalogue.load, layers.__contains__)
        await in_thread(layers.mark, catalogue.registry_layers())  # earlier versions did not mark them
        deps = PullDeps(settings, clock, platform, unpacker, layers, catalogue, failpoint, backoff)
        return cls(deps, RegistryPolicy(guest_registries))

    def for_guests(self) -> GuestImages:
        """The images that guests may use."""
        return self._guests

    def for_namespace(self, namespace: Namespace, fetch_login: FetchLogin) -> NamespaceImages:
        """The images that instances and functions of `namespace` may use."""
        found = self._of_namespaces.get(namespace)
        if found is None:
            puller = NamespacePuller(self._deps, namespace, fetch_login)
            found = self._of_namespaces[namespace] = NamespaceImages(self, puller)
        return found

    async def pull(
        self,
        reference: str,
        *,
        access: ImageAccess = ImageAccess.REGISTRIES,
        owner: str = "",
        on_progress: OnProgress = ignore,
    ) -> Image:
        """Resolve `reference` at its source and pull that image; complete and durable on return.

        With `owner` the image is claimed atomically. Concurrent pulls of the same reference share the work.
        Raises Invalid (no reference), Forbidden (a path, without the access), NotFound, Unprocessable
        (broken, hostile, or not for this machine), TooLarge, FailedPrecondition (no login, no trust),
        Unavailable, TimedOut, Overloaded (a retry may succeed).
        """
        parsed = self.parse(reference, access)
        return await self.pull_with(parsed, self._puller, owner=owner, on_progress=on_progress)

    async def pull_with(
        self, reference: ImageReference, puller: Puller, *, owner: str, on_progress: OnProgress
    ) -> Image:
        """As `pull`, with the given puller: pulls of different pullers share no work."""
        key = puller, str(reference)
        pull = self._trackers.setdefault(key, PullTracker(str(reference), self._clock))
        try:
            with pull.reporting_to(on_progress):
                image = await self._pulls.join(key, lambda: self._pull(reference, pull, puller))
                if owner:
                    self._claims[owner] = image
                return self.get(image)
        finally:
            # The image is protected until the last waiter has claimed it.
            if not pull.has_listeners and self._trackers.get(key) is pull:
                del self._trackers[key]
                pull.end()

    async def ensure(
        self,
        reference: str,
        *,
        access: ImageAccess = ImageAccess.REGISTRIES,
        owner: str = "",
        on_progress: OnProgress = ignore,
    ) -> Image:
        """The image of `reference`, which may also be an id; pulled if it is not here."""
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
        """If the body fails, restore the image of `reference`, and remove what was pulled for it, unless that
        is used. Of concurrent ones it is enough that one succeeds."""
        name = str(references.parse(reference, self._settings.default_registry))
        trial = self._trials.setdefault(name, _Trial(self._catalogue.record(name)))
        trial.users += 1
        owner = f"a trial of {name}"
        if trial.before is not None:
            self._claims[owner] = trial.before.image  # it may have no name meanwhile
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
            image = self._catalogue.get(now.image)
            if image is not None and await self._forget_if_idle(image):
                await self._drop_layers(image.layers)

    def list(self) -> list[Image]:
        """All images, by name and then by age."""
        return self._catalogue.all()

    def get(self, image: ImageId) -> Image:
        """The image with exactly this id, which the caller got from here; its origin does not matter."""
        found = self._catalogue.get(image)
        if found is None:
            raise errors.NotFound(f"there is no image {image[:19]} here; pull it first")
        return found

    def find(
        self,
        reference_or_id: str,
        *,
        access: ImageAccess = ImageAccess.REGISTRIES,
        namespace: str | None = None,
    ) -> Image:
        """By a reference, an id, or a prefix of an id, at least 6 hex digits.

        Without access to all, only images from a registry are found; with a `namespace`, none that are
        private to others.
        """
        if not is_id(reference_or_id):
            named = self._catalogue.named(str(self.parse(reference_or_id, access)))
            if named is not None and is_usable_by(named, namespace):
                return named
        digits = references.parse_id_prefix(reference_or_id)
        matches = self._catalogue.starting_with(digits, access, namespace) if digits else []
        if len(matches) > 1:
            raise errors.Invalid(
                f"{len(matches)} images have an id that begins with {digits}; write more of it", field="image"
            )
        if not matches:
            hint = "" if is_id(reference_or_id) else f"; pull it with `skerry image pull {reference_or_id}`"
            raise errors.NotFound(f"there is no image {reference_or_id} here{hint}")
        return self.get(matches[0])

    async def remove(self, reference_or_id: str, *, access: ImageAccess = ImageAccess.REGISTRIES) -> int:
        """Remove a name, and the image with its last one; by id: the image with all its names that `access`
        allows. Returns bytes freed."""
        return await run_to_completion(self._remove(reference_or_id, access))

    def claim(self, owner: str, image: ImageId) -> None:
        """Protect `image` from removal and collection until `release(owner)`. In memory only."""
        self.get(image)
        self._claims[owner] = image

    def claimed_by(self, owner: str) -> ImageId | None:
        return self._claims.get(owner)

    def release(self, owner: str) -> None:
        """Release the claim of `owner`, if there is one."""
        self._claims.pop(owner, None)

    def layers(self, image: Image) -> tuple[Path, ...]:
        """The folders to stack with overlayfs, the lowest first, each once."""
        if image.folder:
            folder = Path(image.folder)
            if not folder.is_dir():
                raise errors.NotFound(
                    f"the folder {folder} of image {image.id[:19]} no longer exists; restore it"
                )
            return (folder,)
        # overlayfs accepts no folder twice. Of a repeated layer the upper one determines the result.
        once = dict.fromkeys(reversed(image.layers))
        return tuple(stacking.visible([self._layers.root(layer) for layer in reversed(once)]))

    async def collect_one(self, image: ImageId) -> None:
        """Remove `image` if it has neither a name nor a claim, with layers that no other has."""
        await run_to_completion(self._collect_one(image))

    async def collect(self) -> int:
        """Remove images without names and claims, and layers without images. Returns bytes freed."""
        return await run_to_completion(self._collect())

    async def close(self) -> None:
        """Cancel pulls in progress; their callers get an error."""
        await self._pulls.close()
        await self._puller.close()
        await self._guests.close()
        for of_namespace in self._of_namespaces.values():
            await of_namespace.close()

    async def _pull(self, reference: ImageReference, pull: PullTracker, puller: Puller) -> ImageId:
        try:
            image = await puller.pull(reference, pull)
        except (errors.SkerryError, OSError) as error:
            failure = error if isinstance(error, errors.SkerryError) else _storage_error(reference, error)
            log.info(
                "image.not_pulled", reference=str(reference), error=failure.message, detail=failure.detail
            )
            if not (puller.keeps_layers and isinstance(failure, _MAY_PASS)):
                await run_to_completion(self._drop_parts(pull))
            raise failure from None
        except asyncio.CancelledError:
            if not puller.keeps_layers:
                await run_to_completion(self._drop_parts(pull))
            raise
        log.info("image.pulled", reference=str(reference), image=image)
        return image

    async def _remove(self, reference_or_id: str, access: ImageAccess) -> int:
        async with self._catalogue.writing:
            image = self.find(reference_or_id, access=access)
            names = tuple(name for name in image.names if access is ImageAccess.ALL or not is_path(name))
            if not is_id(reference_or_id):
                requested = str(self.parse(reference_or_id, access))
                names = (requested,) if requested in image.names else names
            if len(names) == len(image.names):
                self._check_unused(image)
            if len(names) < len(image.names):
                await self._catalogue.forget(names)
                return 0
            await self._catalogue.forget(names, image.id)
            log.info("image.removed", image=image.id, names=names)
            return await self._drop_layers(image.layers)

    def _check_unused(self, image: Image) -> None:
        users = sorted(owner for owner, claimed in self._claims.items() if claimed == image.id)
        if users:
            raise errors.FailedPrecondition(
                f"image {image.id[:19]} is used by {', '.join(users[:20])}; remove what uses it first"
            )
        pulls = [pull.reference for pull in self._trackers.values() if image.id in pull.images]
        if pulls:
            raise errors.FailedPrecondition(
                f"image {image.id[:19]} is being pulled as {pulls[0]}; wait until that is done"
            )

    async def _collect(self) -> int:
        async with self._catalogue.writing:
            for image in self._catalogue.all():
                await self._forget_if_idle(image)
            return await self._drop_layers(self._layers.digests())

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
        return image in self._claims.values() or any(image in pull.images for pull in self._trackers.values())

    async def _drop_parts(self, pull: PullTracker) -> None:
        brought, pull.layers = pull.layers, set()
        await self._drop_layers(brought)

    async def _drop_layers(self, layers: Iterable[Digest]) -> int:
        """Remove unused ones of `layers`. There is no await between check and removal."""
        needed = self._catalogue.layers_in_use().union(*(pull.layers for pull in self._trackers.values()))
        idle = {layer for layer in layers if layer in self._layers and layer not in needed}
        freed, trash = self._layers.move_to_trash(idle)
        await self._layers.empty(trash)
        return freed

    def parse(self, reference: str, access: ImageAccess) -> ImageReference:
        """Parse `reference` and check `access`; nothing on the disk is read."""
        parsed = references.parse(reference, self._settings.default_registry)
        check_path_access(str(parsed), access)
        return parsed


def _storage_error(reference: ImageReference, error: OSError) -> errors.SkerryError:
    """The error for a failure of our own files."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return errors.ResourcesExhausted(
            f"the disk is too full for {reference}; free some space and pull it again"
        )
    reason = (error.strerror or "it failed").lower()
    return errors.Internal(f"{reference} cannot be stored: {reason}", detail=repr(error))


class GuestImages:
    """The images of a node for guests."""

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
        """Resolve `reference` at its registry, without a login, and pull it. Raises as `Images.pull` does;
        Invalid also for paths and ids, whatever `access` another cloud claims to grant."""
        return await self._images.pull_with(
            parse_for_guests(reference), self._puller, owner=owner, on_progress=on_progress
        )

    def release(self, owner: str) -> None:
        """Release the claim of `owner`, if there is one, and remove the image if it is unused."""
        image = self._images.claimed_by(owner)
        self._images.release(owner)
        if image is not None:
            self.tidy(image)

    def tidy(self, image: ImageId) -> None:
        """Remove `image`, in the background, unless it is used or has a name."""
        task = asyncio.create_task(self._tidy(image))
        self._tidying.add(task)
        task.add_done_callback(self._tidying.discard)

    async def close(self) -> None:
        """Cancel pulls in progress; removals are finished."""
        await self._puller.close()
        await asyncio.gather(*self._tidying)

    async def _tidy(self, image: ImageId) -> None:
        try:
            await self._images.collect_one(image)
        except OSError as error:  # it stays until the next collection
            log.warning("image.not_collected", image=image, error=str(error))


class NamespaceImages:
    """The images of a node for one namespace."""

    def __init__(self, images: Images, puller: NamespacePuller) -> None:
        self._images = images
        self._puller = puller

    async def ensure(
        self,
        reference: str,
        *,
        access: ImageAccess = ImageAccess.REGISTRIES,
        owner: str = "",
        on_progress: OnProgress = ignore,
    ) -> Image:
        """The image of `reference`, pulled if it is not here or private to others. Raises as `Images.pull`
        does."""
        try:
            found = self.find(reference, access=access)
        except errors.NotFound:
            if is_id(reference):
                raise
            return await self.pull(reference, access=access, owner=owner, on_progress=on_progress)
        if owner:
            self._images.claim(owner, found.id)
        return found

    async def pull(
        self,
        reference: str,
        *,
        access: ImageAccess = ImageAccess.REGISTRIES,
        owner: str = "",
        on_progress: OnProgress = ignore,
    ) -> Image:
        """As `Images.pull`, with the namespace's login."""
        parsed = self._images.parse(reference, access)
        return await self._images.pull_with(parsed, self._puller, owner=owner, on_progress=on_progress)

    def find(self, reference_or_id: str, *, access: ImageAccess = ImageAccess.REGISTRIES) -> Image:
        """As `Images.find`; one that is private to others is not found, as if it were not here."""
        return self._images.find(reference_or_id, access=access, namespace=self._puller.namespace)

    def release(self, owner: str) -> None:
        """Release the claim of `owner`, if there is one."""
        self._images.release(owner)

    async def close(self) -> None:
        await self._puller.close()

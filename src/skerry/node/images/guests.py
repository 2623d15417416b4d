"""Images for strangers whose containers run here: from registries only, as anybody could have them.

What is here because this machine has a login, or because somebody put it on its disk, is not for them: the
registry is asked each time, without a login, and must hand out the manifest and the configuration. Layers
that are here already need not come again, since the configuration names them by what is in them. An image
that came this way gets no name, so nobody's `web:1` moves because of a stranger, and goes with the last who
needs it. Which hosts may be asked is `reach`'s to say.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from skerry.model import errors
from skerry.model.images import Image, ImageId
from skerry.node.images import references
from skerry.node.images.catalogue import NameRecord
from skerry.node.images.progress import OnProgress, ignore
from skerry.node.images.pulling import Means, Puller
from skerry.node.images.reach import Reach
from skerry.node.images.references import Reference, RegistryReference
from skerry.node.images.registry import RegistrySource
from skerry.node.images.sources import Source
from skerry.node.layers.unpacking import UnpackLimits

if TYPE_CHECKING:
    from skerry.node.images.images import Images

log = structlog.get_logger(__name__)

# So much of the disk is not for images of strangers: one part in so many, and no more than so many bytes.
_KEPT_PART: Final = 20
_KEPT_BYTES: Final = 8 << 30


class GuestImages:
    """What strangers have in the place of `Images`."""

    def __init__(self, images: Images, puller: GuestPuller) -> None:
        self._images = images
        self._puller = puller
        self._tidying: set[asyncio.Task[None]] = set()

    async def ensure(self, reference: str, *, owner: str = "", on_progress: OnProgress = ignore) -> Image:
        """What the registry means by `reference` now and gives to anybody. Raises what `Images.pull` does;
        Invalid also for what is on this machine's disk, and for an id."""
        return await self._images.bring(
            _in_registry(reference), self._puller, owner=owner, on_progress=on_progress
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


class GuestPuller(Puller):
    """Pulls without a login, apart from the pulls of others, and leaves nothing but whole images."""

    keeps_parts = False

    def __init__(self, means: Means, reach: Reach) -> None:
        super().__init__(means)
        self._reach = reach
        # What each reference led to. A registry is believed that nothing changed since it said so of the same
        # reference, and no more: the digests of other images are no secret.
        self._given: dict[str, NameRecord] = {}

    async def _source(self, reference: Reference) -> Source:
        assert isinstance(reference, RegistryReference)
        means = self._means
        return RegistrySource(
            reference, means.settings, means.clock, backoff=means.backoff, reach=self._reach
        )

    def _limits(self) -> UnpackLimits:
        """Pulls at once together leave the provider a part of its disk."""
        usual = super()._limits()
        free, all_ = self._means.layers.disk()
        spare = (free - min(all_ // _KEPT_PART, _KEPT_BYTES)) // self._means.settings.parallel
        if spare <= 0:
            raise errors.NoRoom(
                "the provider's disk is nearly full, and it pulls no images for buyers now; "
                "run it on another node, or try again later"
            )
        return replace(usual, bytes=min(usual.bytes, spare))

    def _known(self, reference: Reference, version: str) -> ImageId | None:
        given = self._given.get(str(reference))
        is_same = given is not None and version != "" and given.version == version
        return given.image if given is not None and is_same and self._is_here(given) else None

    async def _call(self, name: NameRecord) -> None:
        self._given = {key: each for key, each in self._given.items() if self._is_here(each)}
        self._given[name.reference] = name

    def _is_here(self, name: NameRecord) -> bool:
        return self._means.catalogue.get(name.image) is not None


def _in_registry(text: str) -> RegistryReference:
    """A reference without a registry is in Docker Hub: this machine's own default is nobody else's."""
    parsed = references.parse(text)
    if not isinstance(parsed, RegistryReference) or references.is_id(text):
        raise errors.Invalid(
            f"image {text[:120]!r} is no image in a registry, and images of buyers come from nowhere else; "
            "push it to one, and write it as `example.org/web:1.2`",
            field="image",
        )
    return parsed

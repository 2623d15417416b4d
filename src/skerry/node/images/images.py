"""The images of a node: pulled once, shared by all, kept while somebody needs them.

What `skerry.node.containers` and the people at the command line use.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from skerry.kit.clock import Clock
from skerry.model.images import Image, ImageId, Platform, PullProgress
from skerry.model.settings import ImageSettings
from skerry.node.layers.unpacking import Unpacker

OnProgress = Callable[[PullProgress], None]


def _ignore(progress: PullProgress) -> None:
    """For callers that do not care."""


class Images:
    """Every image that is here. One for a folder; all calls from one event loop."""

    @classmethod
    async def open(
        cls, folder: Path, settings: ImageSettings, clock: Clock, *, platform: Platform, unpacker: Unpacker
    ) -> Images:
        """Take over what is in `folder`; what a crash left half-done is removed."""
        raise NotImplementedError

    async def pull(self, reference: str, *, owner: str = "", on_progress: OnProgress = _ignore) -> Image:
        """Ask the source what `reference` means now and have that here, whole and on disk.

        With `owner` the image is claimed in the same step. Pulls of the same thing at once share the work.
        """
        raise NotImplementedError

    async def ensure(self, reference: str, *, owner: str = "", on_progress: OnProgress = _ignore) -> Image:
        """What is here under `reference`, which may also be an id; pulled if nothing is."""
        raise NotImplementedError

    def list(self) -> list[Image]:
        """All of them, by name and then by age."""
        raise NotImplementedError

    def find(self, reference_or_id: str) -> Image:
        """By a reference, an id, or the beginning of an id, at least 6 hex digits."""
        raise NotImplementedError

    async def remove(self, reference_or_id: str) -> int:
        """Drop a name, and the image with its last one; by id: the image with all its names. Bytes freed."""
        raise NotImplementedError

    def claim(self, owner: str, image: ImageId) -> None:
        """Keep `image` from being removed or collected until `release(owner)`. Not remembered on disk."""
        raise NotImplementedError

    def release(self, owner: str) -> None:
        """Give up what `owner` claimed, if anything."""
        raise NotImplementedError

    def layers(self, image: Image) -> tuple[Path, ...]:
        """The folders to stack with overlayfs, the lowest first, each only once."""
        raise NotImplementedError

    async def collect(self) -> int:
        """Remove images without a name and a claim, and layers that no image has. Bytes freed."""
        raise NotImplementedError

    async def close(self) -> None:
        """End pulls that are under way."""
        raise NotImplementedError

"""A folder for images that may be opened by one agent after another, and looking at what is in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from skerry.kit.backoff import Backoff
from skerry.kit.clock import SystemClock
from skerry.model.image_settings import ImageSettings
from skerry.model.images import Platform, PullProgress
from skerry.node.images.images import Images
from skerry.node.layers.unpacker_client import LayerUnpacker
from tests.node.images.fakes import FakeUnpacker
from tests.support.imagery import Made

needs_root = pytest.mark.root(tries=1)
QUICK = Backoff(first_s=0.001, cap_s=0.01)


class Ground:
    """Where images are kept in a test, and with which settings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "images"
        self.unpacker: LayerUnpacker = FakeUnpacker()
        self.platform = Platform()
        self.guest_registries: tuple[str, ...] = ()
        # A file of our own: the one in the home of whoever runs the tests is none of our business.
        credentials = folder / "config.json"
        credentials.write_text("{}")
        self.settings = ImageSettings(credentials=str(credentials), timeout_s=20.0)

    def set(self, **settings: object) -> None:
        self.settings = msgspec.structs.replace(self.settings, **settings)

    @property
    def fake(self) -> FakeUnpacker:
        assert isinstance(self.unpacker, FakeUnpacker)
        return self.unpacker

    @asynccontextmanager
    async def images(self, failpoint: Callable[[str], None] = lambda step: None) -> AsyncIterator[Images]:
        images = await Images.open(
            self.folder,
            self.settings,
            SystemClock(),
            platform=self.platform,
            unpacker=self.unpacker,
            guest_registries=self.guest_registries,
            failpoint=failpoint,
            backoff=QUICK,
        )
        try:
            yield images
        finally:
            await images.close()

    def stored(self) -> list[str]:
        """Every file and folder of records and layers, but for what is in a layer."""
        return sorted(
            f"{folder.name}/{path.name}" for folder in self.folder.iterdir() for path in folder.iterdir()
        )

    def stored_layers(self) -> set[str]:
        return {f"sha256:{path.name}" for path in (self.folder / "layers").iterdir()}


def diff_ids(*images: Made) -> set[str]:
    return {layer.diff_id for created in images for layer in created.layers}


class Listener:
    """Keeps what it is told of a pull."""

    def __init__(self) -> None:
        self.reported: list[PullProgress] = []

    def __call__(self, progress: PullProgress) -> None:
        self.reported.append(progress)

    def states(self) -> list[tuple[str, ...]]:
        """The states of the layers, without repetitions."""
        found: list[tuple[str, ...]] = []
        for progress in self.reported:
            states = tuple(layer.state for layer in progress.layers)
            if states and (not found or found[-1] != states):
                found.append(states)
        return found

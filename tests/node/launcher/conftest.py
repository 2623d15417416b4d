"""A launcher, and rooms to open cells in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.node.launcher.client import LauncherClient
from tests.node.launcher.ground import Ground, Room, launching


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    ground = Ground(tmp_path)
    yield ground
    await ground.close()


@pytest.fixture
async def launcher() -> AsyncIterator[LauncherClient]:
    async with launching() as launcher:
        yield launcher


@pytest.fixture
async def room(ground: Ground, launcher: LauncherClient) -> Room:
    """An open cell."""
    room = ground.room()
    await room.open(launcher)
    return room

"""A launcher, and rooms to open cells in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.node.launcher.client import LauncherClient
from tests.node.launcher.ground import Ground, LaunchedCell, launching


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
async def cell(ground: Ground, launcher: LauncherClient) -> LaunchedCell:
    """An open cell."""
    cell = ground.cell()
    await cell.open(launcher)
    return cell

"""A server of Aurae's contracts over a keeper that runs nothing, and a place for real cells."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.node.cells.real import Ground
from tests.support.cells import CellServer, FakeKeeper, cell_server


@pytest.fixture
async def served(tmp_path, authority) -> AsyncIterator[CellServer]:
    with closing(FakeKeeper(tmp_path / "output")) as keeper:
        async with cell_server(tmp_path, authority, keeper) as server:
            yield server


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    ground = Ground(tmp_path)
    yield ground
    left = ground.leftovers()
    await ground.clear()
    assert left == []

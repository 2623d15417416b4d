"""A server of our own contract over a keeper that runs nothing, and ways to call it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from tests.support.cells import CellServer, FakeKeeper, cell_server


@pytest.fixture
async def served(tmp_path, authority) -> AsyncIterator[CellServer]:
    with closing(FakeKeeper(tmp_path / "output")) as keeper:
        async with cell_server(tmp_path, authority, keeper) as server:
            yield server

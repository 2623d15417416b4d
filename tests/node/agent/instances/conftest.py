"""Fixtures for tests of instances."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.node.agent.instances.ground import Ground


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    """A machine in memory with an agent on it."""
    ground = Ground(tmp_path)
    await ground.open()
    yield ground
    await ground.leave()

"""Registries and places that the tests of images share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.node.images.fakes import FakeRegistry
from tests.node.images.ground import Ground
from tests.support.registry import Registry


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A real one without any access control; tests use repositories of their own."""
    with Registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.fixture
async def fake() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry().serving() as serving:
        yield serving


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)

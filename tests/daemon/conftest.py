"""A cluster of three machines for tests of whole programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.lans import Lan, lan


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    with lan(tmp_path_factory.mktemp("lan"), "north", "south", "west") as made:
        yield made


@pytest.fixture
def cloud(machines: Lan) -> Iterator[Lan]:
    """The cluster, as empty after a test as before."""
    yield machines
    machines.tidy_up()

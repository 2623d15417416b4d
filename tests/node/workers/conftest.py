"""Programs of workers, started for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.programs import Nodes, Programs, Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def python(zygote: Zygote, tmp_path: Path) -> Programs:
    return Programs(zygote.start, tmp_path, "py")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Programs]:
    nodes = Nodes()
    yield Programs(nodes.start, tmp_path, "js")
    nodes.reap()

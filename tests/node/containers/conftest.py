"""Fixtures for tests of containers, in memory and real ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.node.containers.nodes import Node
from tests.node.containers.real import Agent, Ground, machine, make_image


@pytest.fixture(scope="session")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image that no test changes."""
    return make_image(tmp_path_factory.mktemp("busybox") / "root")


@pytest.fixture
async def ground(tmp_path: Path, busybox: Path) -> AsyncIterator[Ground]:
    """A machine that the test is on, and nothing of any container on it when it ends."""
    with machine(tmp_path):
        ground = Ground(tmp_path / "data", busybox)
        yield ground
        leftovers = ground.leftovers()
        await ground.clear()
        assert leftovers == []


@pytest.fixture
async def agent(ground: Ground) -> AsyncIterator[Agent]:
    """An agent on that machine; what it still has at the end is removed."""
    async with ground.agent() as agent:
        yield agent
        for view in agent.containers.list():
            await agent.containers.stop(view.spec.name, grace_s=0)
            await agent.containers.remove(view.spec.name)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node in memory."""
    node = Node(tmp_path)
    yield node
    await node.leave()

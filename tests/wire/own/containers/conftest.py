"""A server of the contract for containers over fakes, and ways to call it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from skerry.transport.proto.containers_grpc import ContainerServiceStub, ImageServiceStub
from tests.support.containers import ContainerServer, FakeContainers, container_server


@pytest.fixture
async def served(tmp_path, authority) -> AsyncIterator[ContainerServer]:
    with closing(FakeContainers(tmp_path / "output")) as keeper:
        async with container_server(tmp_path, authority, keeper) as server:
            yield server


@pytest.fixture
def containers(channel) -> ContainerServiceStub:
    return ContainerServiceStub(channel)


@pytest.fixture
def images(channel) -> ImageServiceStub:
    return ImageServiceStub(channel)

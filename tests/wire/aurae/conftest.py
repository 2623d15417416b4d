"""A server of Aurae's contract over a keeper that runs nothing, and ways to call it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing

import pytest
from grpclib.client import Channel

from skerry.wire.grpc.channel import dial
from tests.support.cells import CellServer, FakeKeeper, cell_server
from tests.support.certificates import SERVER_NAME, TestAuthority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
async def served(tmp_path, authority) -> AsyncIterator[CellServer]:
    with closing(FakeKeeper(tmp_path / "output")) as keeper:
        async with cell_server(tmp_path, authority, keeper) as server:
            yield server


@pytest.fixture
async def channel(served) -> AsyncIterator[Channel]:
    """To the server, with an admin's certificate."""
    line = dial(str(served.path), served.tls(), server_name=SERVER_NAME)
    yield line
    line.close()

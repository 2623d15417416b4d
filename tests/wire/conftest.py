"""What tests of services on the unix socket share; `served` is each folder's own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from grpclib.client import Channel

from skerry.transport.grpc.channels import dial
from tests.support.certificates import SERVER_NAME, TestAuthority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
async def channel(served) -> AsyncIterator[Channel]:
    """To the server, with an admin's certificate."""
    line = dial(str(served.path), served.tls(), server_name=SERVER_NAME)
    yield line
    line.close()

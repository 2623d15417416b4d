"""What the tests of this room share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpclib.client import Channel

from skerry.wire.grpc.channel import dial
from tests.support.certificates import TestAuthority
from tests.wire.kudo.grpc_serving import Served, compile_documents, serving


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is compiled from the documents."""
    return compile_documents(tmp_path_factory.mktemp("stubs"))


@pytest.fixture
async def served(authority: TestAuthority, stubs: Path) -> AsyncIterator[Served]:
    """Kudo's gRPC services over fakes."""
    server = Served(0, authority, stubs)
    async with serving(server.instances, server.nodes, server.identity, authority) as server.port:
        yield server


@pytest.fixture
async def channel(served: Served) -> AsyncIterator[Channel]:
    """To that server, from the user who runs it."""
    line = dial(f"127.0.0.1:{served.port}", None)
    yield line
    line.close()

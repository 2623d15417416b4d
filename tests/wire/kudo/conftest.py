"""What the tests of this room share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from grpclib.client import Channel

from skerry.kit import pki
from skerry.kit.clock import SystemClock
from skerry.transport.grpc.channels import dial
from tests.support.certificates import TestAuthority
from tests.transport.http.conftest import serving as serving_http
from tests.wire.kudo.grpc_serving import Served, compile_documents, serving
from tests.wire.kudo.rest_client import Rest


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


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> pki.CertificateAuthority:
    """The CA of the cloud that is served over HTTP."""
    return pki.CertificateAuthority.load_or_create(tmp_path_factory.mktemp("pki"), SystemClock())


@pytest.fixture
async def rest(cloud: pki.CertificateAuthority) -> AsyncIterator[Rest]:
    """Kudo's REST routes over the real control plane, in which nobody decides but the test."""
    with structlog.testing.capture_logs():
        async with serving_http(cloud) as site:
            yield Rest(site, await site.session())

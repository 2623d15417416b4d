"""The HTTP routes of Skerry's own API over a real control plane."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import structlog

from skerry.kit import pki
from skerry.kit.clock import SystemClock
from tests.transport.http.conftest import serving
from tests.wire.kudo.rest_client import Rest


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> pki.CertificateAuthority:
    return pki.CertificateAuthority.load_or_create(tmp_path_factory.mktemp("pki"), SystemClock())


@pytest.fixture
async def rest(cloud: pki.CertificateAuthority) -> AsyncIterator[Rest]:
    """The routes over a control plane in which nobody decides."""
    with structlog.testing.capture_logs():
        async with serving(cloud) as site:
            yield Rest(site, await site.session())


@pytest.fixture
async def led(cloud: pki.CertificateAuthority) -> AsyncIterator[Rest]:
    """The routes over a control plane that decides, with a node that the test plays."""
    with structlog.testing.capture_logs():
        async with serving(cloud, leads=True) as site:
            await site.control.join("n1", zone="a")
            yield Rest(site, await site.session())

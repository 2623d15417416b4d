"""What tests of verbs share that talk to a node or to a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.kit import pki
from skerry.kit.clock import SystemClock
from tests.support.certificates import TestAuthority
from tests.support.sites import CloudServer


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="session")
def cloud_authority(tmp_path_factory: pytest.TempPathFactory) -> pki.CertificateAuthority:
    return pki.CertificateAuthority.load_or_create(tmp_path_factory.mktemp("pki"), SystemClock())


@pytest.fixture
def cloud(tmp_path: Path, cloud_authority: pki.CertificateAuthority) -> Iterator[CloudServer]:
    """A server with one node that does as it is told."""
    with CloudServer(tmp_path, cloud_authority) as running:
        yield running

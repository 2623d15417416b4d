"""An own CA, and a real ACME server that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.kit.clock import SystemClock
from skerry.kit.pki import CertificateAuthority
from skerry.store.tables import table
from tests.support.certificates import TestAuthority
from tests.support.pebble import PebbleServer


@pytest.fixture(autouse=True)
def impatient_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that read the store at once, instead of waiting for a change that does not come."""
    monkeypatch.setattr(table, "_PATIENCE_S", 0.005)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority.load_or_create(tmp_path_factory.mktemp("ca"), SystemClock())


@pytest.fixture(scope="module")
def acme_authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("acme-ca"))


@pytest.fixture(scope="module")
def pebble(tmp_path_factory: pytest.TempPathFactory, acme_authority: TestAuthority) -> Iterator[PebbleServer]:
    folder: Path = tmp_path_factory.mktemp("pebble")
    server = PebbleServer(folder, acme_authority, bad_nonces=20)
    server.start()
    yield server
    server.stop()

"""What tests of servers and links share."""

from __future__ import annotations

import pytest

from tests.support.certificates import TestAuthority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("ca"))

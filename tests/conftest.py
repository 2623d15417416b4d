"""Every test ends as it began: no file, thread or process more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import leaks


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    before = leaks.footprint()
    yield
    leaks.assert_nothing_leaked(before)

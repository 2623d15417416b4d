"""Every test ends as it began: no file, thread or process more."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest
import uvloop

from tests.support import leaks

# The first loop of uvloop opens a pipe for signals that stays with the process: not a leak of the first test.
uvloop.new_event_loop().close()

# A busy machine makes single examples slow; that says nothing about the code.
hypothesis.settings.register_profile("skerry", deadline=None)
hypothesis.settings.load_profile("skerry")


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    before = leaks.footprint()
    yield
    leaks.assert_nothing_leaked(before)

"""A clock, a store and a fleet for tests of the control plane."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from skerry.kit.clock import ManualClock
from skerry.store.local.memory import MemoryStore
from tests.support.fleets import Fleet, fleet_on


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[MemoryStore]:
    made = MemoryStore(clock)
    yield made
    await made.close()


@pytest.fixture
async def fleet(store: MemoryStore, clock: ManualClock) -> AsyncIterator[Fleet]:
    async with fleet_on(store, clock) as made:
        yield made

"""A control plane in which nobody decides."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from skerry.control.events.log import EventLog
from skerry.kit.clock import ManualClock
from skerry.model.settings import EventSettings
from skerry.store.local.memory import MemoryStore
from tests.support.controls import Control, control_on


@pytest.fixture
async def control(store: MemoryStore, clock: ManualClock) -> AsyncIterator[Control]:
    async with control_on(store, EventLog(store, clock, EventSettings()), clock) as made:
        yield made

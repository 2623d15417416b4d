"""Leases: renewed, made anew once they have ended, shared by keys of one time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from skerry.kit.clock import ManualClock
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import NO_LEASE, Put
from skerry.store.tables.leases import LeaseKeeper, SharedLease


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def memory(clock: ManualClock) -> AsyncIterator[MemoryStore]:
    store = MemoryStore(clock)
    yield store
    await store.close()


async def test_a_lease_that_is_renewed_in_time_stays_the_same(
    memory: MemoryStore, clock: ManualClock
) -> None:
    keeper = LeaseKeeper(memory, 10)
    assert keeper.lease == NO_LEASE
    assert not await keeper.renew()
    first = keeper.lease
    for _ in range(3):
        clock.advance(9)
        assert await keeper.renew()
    assert keeper.lease == first


async def test_a_lease_that_has_ended_is_followed_by_another_without_its_keys(
    memory: MemoryStore, clock: ManualClock
) -> None:
    keeper = LeaseKeeper(memory, 10)
    await keeper.renew()
    first = keeper.lease
    await memory.commit([Put("a", b"", first)])
    clock.advance(11)
    await memory.expire()
    assert not await keeper.renew()
    assert keeper.lease not in (NO_LEASE, first)
    assert await memory.get("a") is None


async def test_keys_of_one_time_share_a_lease_and_each_lasts_as_long_as_it_is_to(
    memory: MemoryStore, clock: ManualClock
) -> None:
    shared = SharedLease(memory, clock, keep_s=100, shared_s=10)
    first = await shared.current()
    clock.advance(9)
    assert await shared.current() == first
    await memory.commit([Put("a", b"", first)])
    clock.advance(1)
    assert await shared.current() != first
    clock.advance(98)
    await memory.expire()
    assert await memory.get("a") is not None


async def test_a_shared_lease_that_is_forgotten_is_another_one(
    memory: MemoryStore, clock: ManualClock
) -> None:
    shared = SharedLease(memory, clock, keep_s=100, shared_s=10)
    first = await shared.current()
    shared.forget()
    assert await shared.current() != first

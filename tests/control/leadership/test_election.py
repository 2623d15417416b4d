"""One leader at a time, another soon after it, and a fence against one that does not know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from skerry.control.events.log import EventLog
from skerry.control.leadership.election import KEY, LeaderElection
from skerry.kit import tasks
from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.settings import EventSettings
from skerry.store import fencing
from skerry.store.fencing import LeadershipLost
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Expect, LeaseId, Put
from tests.support.waiting import eventually


class FlakyStore(MemoryStore):
    """A store that does not hear of leases, as one behind a broken connection."""

    is_away = False

    async def renew_lease(self, lease: LeaseId) -> None:
        if self.is_away:
            raise errors.Unavailable("away")
        await super().renew_lease(lease)

    async def revoke_lease(self, lease: LeaseId) -> None:
        if self.is_away:
            raise errors.Unavailable("away")
        await super().revoke_lease(lease)


@pytest.fixture
async def store() -> AsyncIterator[FlakyStore]:
    made = FlakyStore(SystemClock())
    yield made
    await made.close()


def candidate(store: MemoryStore, name: str, lease_s: int = 30, *, is_alone: bool = False) -> LeaderElection:
    clock = SystemClock()
    events = EventLog(store, clock, EventSettings())
    return LeaderElection(store, events, clock, name=name, lease_s=lease_s, is_alone=is_alone)


@asynccontextmanager
async def running(
    leader: LeaderElection, *loops: Callable[[Expect], Coroutine[Any, Any, None]]
) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(leader.run())
    working = [asyncio.create_task(leader.run_while_leading(f"loop {n}", one)) for n, one in enumerate(loops)]
    try:
        yield task
    finally:
        await tasks.cancel_and_wait([*working, task])


async def who(store: MemoryStore) -> str | None:
    entry = await store.get(KEY)
    return entry.value.decode() if entry else None


async def test_of_two_only_one_leads_and_the_other_follows_when_it_stops(store: FlakyStore) -> None:
    one, two = candidate(store, "one"), candidate(store, "two")
    async with running(two), running(one):
        await eventually(lambda: two.is_leading)
        assert not one.is_leading
        await asyncio.sleep(0)
        assert await who(store) == "two"
    assert not two.is_leading
    async with running(one):
        await eventually(lambda: one.is_leading)
        assert await who(store) == "one"


async def test_a_leader_that_stops_in_good_order_is_followed_at_once(store: FlakyStore) -> None:
    one, two = candidate(store, "one", lease_s=3600), candidate(store, "two", lease_s=3600)
    async with running(one) as task:
        await eventually(lambda: one.is_leading)
        async with running(two):
            await tasks.cancel_and_wait([task])
            await eventually(lambda: two.is_leading)


async def test_a_leader_that_dies_is_followed_when_its_lease_is_over(store: FlakyStore) -> None:
    lease = await store.grant_lease(1)
    await store.commit([Put(KEY, b"dead", lease)])
    one = candidate(store, "one")
    async with running(one):
        assert await who(store) == "dead"
        await eventually(lambda: one.is_leading)


async def test_one_that_is_alone_leads_at_once_and_what_its_dead_process_began_is_fenced_off(
    store: FlakyStore,
) -> None:
    lease = await store.grant_lease(3600)
    fence = Expect(KEY, await store.commit([Put(KEY, b"one", lease)]))
    one = candidate(store, "one", is_alone=True)
    async with running(one):
        await eventually(lambda: one.is_leading)
        with pytest.raises(errors.Conflict):
            await store.commit([Put("x", b"")], [fence])
        with pytest.raises(errors.NotFound):
            await store.renew_lease(lease)


async def test_one_that_is_not_alone_leaves_the_lead_to_its_own_name_too(store: FlakyStore) -> None:
    """The name is an address, and two servers may have been given the same."""
    await store.commit([Put(KEY, b"one", await store.grant_lease(3600))])
    before = await store.revision()
    one = candidate(store, "one")
    async with running(one), store.watch("", since=before) as batches:
        await store.commit([Put("x", b"")])
        assert [change.key for change in (await anext(batches)).changes] == ["x"]
        assert not one.is_leading


async def test_a_lost_lease_stops_the_work_and_the_lead_is_sought_again(store: FlakyStore) -> None:
    fences: list[Expect] = []
    stopped: list[Expect] = []

    async def lead(fence: Expect) -> None:
        fences.append(fence)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(fence)

    one = candidate(store, "one", lease_s=1)
    async with running(one, lead):
        await eventually(lambda: one.is_leading)
        entry = await store.get(KEY)
        assert entry is not None
        await store.revoke_lease(entry.lease)
        await eventually(lambda: len(fences) == 2)
        assert stopped == fences[:1]
        with pytest.raises(errors.Conflict):
            await store.commit([Put("x", b"")], [fences[0]])
        await store.commit([Put("x", b"")], [fences[1]])


async def test_a_leader_that_cannot_renew_stops_before_another_can_begin(store: FlakyStore) -> None:
    one = candidate(store, "one", lease_s=1)
    async with running(one):
        await eventually(lambda: one.is_leading)
        store.is_away = True
        await eventually(lambda: not one.is_leading)
        assert await who(store) == "one", "its lease is not over yet"
        store.is_away = False
        await eventually(lambda: one.is_leading)


async def test_work_that_finds_itself_overtaken_seeks_the_lead_again(store: FlakyStore) -> None:
    turns: list[Expect] = []

    async def lead(fence: Expect) -> None:
        turns.append(fence)
        if len(turns) == 1:
            raise LeadershipLost("another server leads")
        await asyncio.Event().wait()

    async with running(candidate(store, "one"), lead):
        await eventually(lambda: len(turns) == 2)


async def test_vital_work_that_fails_lets_the_lead_go(store: FlakyStore) -> None:
    async def lead(fence: Expect) -> None:
        raise ValueError("a fault of ours")

    one = candidate(store, "one", lease_s=3600)
    async with running(one):
        with pytest.raises(ValueError, match="fault"):
            await one.run_while_leading("vital", lead, is_vital=True)
        first = (await EventLog(store, SystemClock(), EventSettings()).of("server/one"))[0]
        await eventually(lambda: one.is_leading)
        assert first.event.kind == "server.leads"
        await eventually(lambda: terms(store, 2))


async def terms(store: MemoryStore, count: int) -> bool:
    """Whether somebody has been elected so often."""
    return len(await EventLog(store, SystemClock(), EventSettings()).of("server/one")) == count


async def test_a_loop_that_fails_and_is_not_vital_leaves_the_lead_where_it_is(store: FlakyStore) -> None:
    async def fail(fence: Expect) -> None:
        raise ValueError("a fault of ours")

    one = candidate(store, "one")
    async with running(one):
        with pytest.raises(ValueError, match="fault"):
            await one.run_while_leading("market", fail)
        assert one.is_leading
        assert await terms(store, 1)


async def test_all_loops_of_a_leader_have_the_same_fence_and_end_together(store: FlakyStore) -> None:
    fences: list[Expect] = []
    ended: list[Expect] = []

    async def follow(fence: Expect) -> None:
        fences.append(fence)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(fence)

    async def overtaken(fence: Expect) -> None:
        await eventually(lambda: fences.count(fence) == 2)
        if len(fences) > 2:
            await asyncio.Event().wait()
        raise LeadershipLost("another server leads")

    async with running(candidate(store, "one"), follow, follow, overtaken):
        await eventually(lambda: len(fences) == 4)
        assert fences[0] == fences[1] != fences[2] == fences[3]
        assert ended == fences[:2]


async def test_what_a_leader_that_was_replaced_writes_is_refused_and_it_hears_why(store: FlakyStore) -> None:
    fence = Expect(KEY, await store.commit([Put(KEY, b"one")]))
    await fencing.commit(store, [Put("x", b"first")], fence=fence)
    await store.commit([Put(KEY, b"two")])
    with pytest.raises(LeadershipLost):
        await fencing.commit(store, [Put("x", b"late")], fence=fence)
    entry = await store.get("x")
    assert entry is not None
    assert entry.value == b"first"


async def test_a_conflict_that_is_not_the_fence_s_is_a_conflict_still(store: FlakyStore) -> None:
    fence = Expect(KEY, await store.commit([Put(KEY, b"one")]))
    with pytest.raises(errors.Conflict):
        await fencing.commit(store, [Put("x", b"")], [Expect("x", 77)], fence)


async def test_who_leads_is_told(store: FlakyStore) -> None:
    one = candidate(store, "one")
    async with running(one):
        await eventually(lambda: one.is_leading)
    log = EventLog(store, SystemClock(), EventSettings())
    assert [told.event.kind for told in await log.of("server/one")] == ["server.leads"]

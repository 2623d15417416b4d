"""What memory and SQLite do alike and etcd does in its own way: leases by the clock, and bounded history."""

from __future__ import annotations

import asyncio

import pytest

from skerry.model import errors
from skerry.store.local import keyspace as trees
from skerry.store.local.store import LocalStore
from skerry.store.protocol import Put
from tests.store.conftest import Backend
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.parametrize("backend", ["memory", "sqlite"], indirect=True)


async def opened(backend: Backend, history: int = 10_000) -> LocalStore:
    store = await backend.open(history=history)
    assert isinstance(store, LocalStore)
    return store


async def test_a_lease_ends_when_its_time_is_over_and_not_before(backend: Backend) -> None:
    store = await opened(backend)
    lease = await store.grant_lease(10)
    await store.commit([Put("a", b"", lease)])
    backend.clock.advance(9.9)
    await store.expire()
    assert await store.get("a") is not None
    backend.clock.advance(0.1)
    with pytest.raises(errors.NotFound):
        await store.renew_lease(lease)
    await store.expire()
    assert await store.get("a") is None
    with pytest.raises(errors.NotFound):
        await store.revoke_lease(lease)


async def test_a_lease_that_is_kept_goes_on(backend: Backend) -> None:
    store = await opened(backend)
    lease, other = await store.grant_lease(10), await store.grant_lease(10)
    await store.commit([Put("a", b"", lease), Put("b", b"", other)])
    for _ in range(5):
        backend.clock.advance(6)
        await store.renew_lease(lease)
        await store.expire()
    assert [e.key for e in (await store.range("")).entries] == ["a"]


async def test_the_end_of_a_lease_needs_nobody_to_ask(backend: Backend) -> None:
    store = await opened(backend)
    await store.grant_lease(600)
    lease = await store.grant_lease(1)
    since = await store.commit([Put("a", b"", lease)])
    backend.clock.advance(1)
    async with store.watch("", since=since) as batches, asyncio.timeout(PATIENCE_S):
        assert (await anext(batches)).changes[0].entry is None


async def test_a_watch_that_falls_behind_the_history_is_compacted_and_history_stays_small(
    backend: Backend,
) -> None:
    store = await opened(backend, history=10)
    since = await store.revision()
    async with store.watch("a", since=since) as batches:
        for number in range(11):
            await store.commit([Put("a", str(number).encode())])
        with pytest.raises(errors.Compacted, match="history goes back to"):
            await anext(batches)
    async with store.watch("a", since=since + 1) as batches:
        assert [(await anext(batches)).revision for _ in range(10)] == list(range(since + 2, since + 12))


async def test_a_watch_of_a_quiet_prefix_is_not_compacted_by_the_noise_of_others(backend: Backend) -> None:
    store = await opened(backend, history=10)
    async with store.watch("quiet", since=await store.revision()) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        for _ in range(50):
            await store.commit([Put("noise", b"")])
        wanted = await store.commit([Put("quiet", b"")])
        assert (await waiting).revision == wanted


async def test_a_group_longer_than_history_compacts_only_the_watches_it_concerns(backend: Backend) -> None:
    store = await opened(backend, history=10)
    since = await store.revision()
    async with store.watch("early", since=since) as early, store.watch("late", since=since) as late:
        await asyncio.gather(
            store.commit([Put("early", b"")]),
            *(store.commit([Put("noise", b"")]) for _ in range(20)),
            store.commit([Put("late", b"")]),
        )
        assert (await anext(late)).revision == since + 22
        with pytest.raises(errors.Compacted):
            await anext(early)


async def test_an_unread_watch_is_compacted_only_if_it_missed_something(backend: Backend) -> None:
    store = await opened(backend)
    since = await store.commit([Put("a", b"1")])
    await store.commit([Put("b", b"")])
    async with store.watch("a", since=since) as batches:
        wanted = await store.commit([Put("a", b"2")])
        await store.compact(wanted)
        assert (await anext(batches)).revision == wanted


async def test_a_reader_that_is_slow_but_within_history_gets_everything(backend: Backend) -> None:
    store = await opened(backend, history=100)
    since = await store.revision()
    async with store.watch("", since=since) as batches:
        await asyncio.gather(*(store.commit([Put(str(number), b"")]) for number in range(80)))
        seen = [(await anext(batches)).revision for _ in range(80)]
    assert seen == list(range(since + 1, since + 81))


async def test_history_is_bounded_by_bytes_too(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_HISTORY_BYTES", 1000)
    store = await opened(backend)
    since = await store.revision()
    for _ in range(20):
        last = await store.commit([Put("a", bytes(99))])
    with pytest.raises(errors.Compacted):
        async with store.watch("", since=since):
            pass
    async with store.watch("", since=last - 10) as batches:
        assert [(await anext(batches)).revision for _ in range(10)] == list(range(last - 9, last + 1))


async def test_a_watch_from_the_future_waits_for_it(backend: Backend) -> None:
    store = await opened(backend)
    now = await store.revision()
    async with store.watch("", since=now + 2) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        for _ in range(3):
            last = await store.commit([Put("a", b"")])
        assert (await waiting).revision == last


async def test_many_waiting_readers_of_one_watch_are_not_left_hanging(backend: Backend) -> None:
    store = await opened(backend)
    async with store.watch("", since=await store.revision()) as batches:
        one, two = asyncio.ensure_future(anext(batches)), asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        one.cancel()
        await store.commit([Put("a", b"")])
        await eventually(two.done)
        assert two.result().changes[0].key == "a"

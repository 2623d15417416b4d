"""What every backend promises of watches and leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from skerry.model import errors
from skerry.store.protocol import Batch, Delete, LeaseId, Put, Store
from tests.store.conftest import Backend
from tests.support.waiting import eventually


async def take(batches: AsyncIterator[Batch], count: int) -> list[Batch]:
    async with asyncio.timeout(30):
        return [await anext(batches) for _ in range(count)]


def shape(batch: Batch) -> list[tuple[str, bytes | None]]:
    return [(c.key, c.entry.value if c.entry is not None else None) for c in batch.changes]


async def test_a_watch_sees_transactions_whole_in_order_and_only_of_its_prefix(store: Store) -> None:
    since = await store.revision()
    async with store.watch("p/", since=since) as batches:
        first = await store.commit([Put("p/b", b"1"), Put("q", b""), Put("p/a", b"1")])
        await store.commit([Put("q", b"2")])
        second = await store.commit([Delete("p/b"), Put("p/a", b"2")])
        seen = await take(batches, 2)
    assert [batch.revision for batch in seen] == [first, second]
    assert shape(seen[0]) == [("p/a", b"1"), ("p/b", b"1")]
    assert shape(seen[1]) == [("p/a", b"2"), ("p/b", None)]
    entry = seen[1].changes[0].entry
    assert entry is not None
    assert entry == await store.get("p/a")


async def test_a_watch_from_the_past_replays_it(store: Store) -> None:
    first = await store.commit([Put("a", b"1")])
    second = await store.commit([Put("a", b"2")])
    third = await store.commit([Delete("a")])
    async with store.watch("", since=first) as batches:
        assert [batch.revision for batch in await take(batches, 2)] == [second, third]


async def test_a_watch_from_a_snapshot_misses_nothing_while_others_write(store: Store) -> None:
    async def write(writer: int) -> None:
        for number in range(15):
            await store.commit([Put(f"p/{writer}/{number}", b""), Put(f"p/{writer}", str(number).encode())])

    writers = [asyncio.ensure_future(write(writer)) for writer in range(4)]
    await eventually(store.revision)
    await writers[0]
    page = await store.range("p/")
    mirror = {entry.key: entry for entry in page.entries}
    async with store.watch("p/", since=page.revision) as batches:
        await asyncio.gather(*writers)
        final = await store.range("p/")
        last = page.revision
        while last < final.revision:
            (batch,) = await take(batches, 1)
            assert batch.revision == last + 1
            last = batch.revision
            mirror.update({c.key: c.entry for c in batch.changes if c.entry is not None})
    assert mirror == {entry.key: entry for entry in final.entries}


async def test_two_watches_see_the_same(store: Store) -> None:
    since = await store.revision()
    async with store.watch("", since=since) as one, store.watch("", since=since) as two:
        for number in range(5):
            await store.commit([Put("a", str(number).encode())])
        assert await take(one, 5) == await take(two, 5)


async def test_a_cancelled_read_loses_nothing(store: Store) -> None:
    since = await store.revision()
    async with store.watch("a", since=since) as batches:
        first = await store.commit([Put("a", b"1")])
        await take(batches, 1)
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        await store.commit([Put("a", b"2")])
        await store.commit([Put("a", b"3")])
        assert [batch.revision for batch in await take(batches, 2)] == [first + 1, first + 2]


async def test_a_watch_that_was_left_yields_nothing_more(store: Store) -> None:
    async with store.watch("", since=await store.revision()) as batches:
        await store.commit([Put("a", b"1")])
    assert [batch async for batch in batches] == []


async def test_a_watch_from_before_the_history_is_compacted(store: Store) -> None:
    first = await store.commit([Put("a", b"1")])
    for number in range(5):
        last = await store.commit([Put("a", str(number).encode())])
    await store.compact(last)
    with pytest.raises(errors.Compacted, match="snapshot"):
        async with store.watch("", since=first) as batches:
            await take(batches, 1)
    with pytest.raises(errors.Compacted):
        async with store.watch("", since=last - 2) as batches:
            await take(batches, 1)
    async with store.watch("", since=last - 1) as batches:
        assert (await take(batches, 1))[0].revision == last


async def test_a_removal_next_to_a_compaction_is_not_lost(store: Store) -> None:
    await store.commit([Put("a", b"1")])
    removed = await store.commit([Delete("a")])
    after = await store.commit([Put("b", b"1")])
    await store.compact(removed)
    async with store.watch("", since=removed - 1) as batches:
        assert [shape(batch) for batch in await take(batches, 2)] == [[("a", None)], [("b", b"1")]]
    await store.compact(after)
    with pytest.raises(errors.Compacted):
        async with store.watch("", since=removed - 1) as batches:
            await take(batches, 1)


async def test_compaction_keeps_current_entries_and_may_be_repeated(store: Store) -> None:
    for number in range(3):
        await store.commit([Put("a", str(number).encode()), Put(f"b{number}", b"")])
    before = await store.range("")
    await store.compact(before.revision)
    await store.compact(before.revision)
    await store.compact(1)
    await store.compact(before.revision + 1000)
    after = await store.range("")
    assert after.entries == before.entries
    revision = await store.commit([Put("a", b"new")])
    async with store.watch("", since=revision - 1) as batches:
        assert (await take(batches, 1))[0].revision == revision


async def test_an_open_watch_that_keeps_up_does_not_mind_a_compaction(store: Store) -> None:
    since = await store.revision()
    async with store.watch("a", since=since) as batches:
        await store.commit([Put("a", b"1")])
        await take(batches, 1)
        waiting = asyncio.ensure_future(anext(batches))
        for _ in range(5):
            last = await store.commit([Put("b", b"")])
        await store.compact(last)
        wanted = await store.commit([Put("a", b"2")])
        async with asyncio.timeout(30):
            assert (await waiting).revision == wanted


async def test_large_transactions_arrive_whole(store: Store) -> None:
    since = await store.revision()
    async with store.watch("", since=since) as batches:
        for number in range(4):
            await store.commit([Put(f"{number}/{part}", bytes(100_000)) for part in range(12)])
        seen = await take(batches, 4)
    assert [len(batch.changes) for batch in seen] == [12] * 4
    assert [batch.revision for batch in seen] == list(range(since + 1, since + 5))


async def test_closing_the_store_ends_its_watches(store: Store) -> None:
    async with store.watch("", since=await store.revision()) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0.01)
        await store.close()
        with pytest.raises(errors.Unavailable, match="closed"):
            await asyncio.wait_for(waiting, 30)


async def test_dropping_a_lease_removes_its_keys_in_one_revision(store: Store) -> None:
    lease = await store.grant(600)
    await store.commit([Put("stays", b"")])
    since = await store.commit([Put("a", b"", lease), Put("b", b"", lease)])
    entry = await store.get("a")
    assert entry is not None
    assert entry.lease == lease
    await store.keep(lease)
    async with store.watch("", since=since) as batches:
        await store.drop(lease)
        (batch,) = await take(batches, 1)
    assert shape(batch) == [("a", None), ("b", None)]
    assert [e.key for e in (await store.range("")).entries] == ["stays"]


async def test_a_lease_without_keys_ends_without_a_revision(store: Store) -> None:
    before = await store.commit([Put("a", b"")])
    await store.drop(await store.grant(600))
    assert await store.revision() == before


async def test_a_key_written_again_without_the_lease_outlives_it(store: Store) -> None:
    lease, other = await store.grant(600), await store.grant(600)
    await store.commit([Put("a", b"", lease), Put("b", b"", lease), Put("c", b"", lease)])
    await store.commit([Put("a", b"free"), Put("b", b"moved", other)])
    await store.drop(lease)
    assert [e.key for e in (await store.range("")).entries] == ["a", "b"]
    await store.drop(other)
    assert [e.key for e in (await store.range("")).entries] == ["a"]


async def test_an_ended_lease_is_not_found(store: Store) -> None:
    lease = await store.grant(600)
    await store.drop(lease)
    before = await store.revision()
    for unknown in (lease, LeaseId(12345)):
        with pytest.raises(errors.NotFound):
            await store.keep(unknown)
        with pytest.raises(errors.NotFound):
            await store.drop(unknown)
        with pytest.raises(errors.NotFound):
            await store.commit([Put("x", b""), Put("y", b"", unknown)])
    assert await store.revision() == before


@pytest.mark.parametrize("ttl_s", [0, -1, 10**10])
async def test_a_lease_must_last_a_sensible_time(store: Store, ttl_s: int) -> None:
    with pytest.raises(errors.Invalid, match="seconds"):
        await store.grant(ttl_s)


@pytest.mark.parametrize("backend", ["sqlite", "etcd"], indirect=True)  # memory forgets
async def test_what_was_there_is_there_after_opening_again(backend: Backend) -> None:
    store = await backend.open()
    lease = await store.grant(600)
    await store.commit([Put("a", b"1"), Put("b", b"1", lease)])
    since = await store.commit([Put("a", b"2")])
    last = await store.commit([Delete("a"), Put("c", b"")])
    before = await store.range("")
    await store.close()
    again = await backend.open()
    assert await again.range("") == before
    async with again.watch("", since=since) as batches:
        assert [batch.revision for batch in await take(batches, 1)] == [last]
    await again.keep(lease)
    await again.drop(lease)
    assert [e.key for e in (await again.range("")).entries] == ["c"]

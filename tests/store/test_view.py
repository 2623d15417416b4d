"""The mirror: complete from its first moment, gap-free after interruptions, able to show one's own write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from skerry.kit.backoff import Backoff
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Delete, Entry, Put, RangePage, Store
from skerry.store.tables.cache import PrefixCache, RecordChange
from tests.support.waiting import PATIENCE_S, eventually


def text(entry: Entry) -> str:
    return entry.value.decode()


class FlakyStore(MemoryStore):
    """A store that is away for as many reads as it is told."""

    failures = 0

    async def range(self, prefix: str, *, limit: int = 0, cursor: str | None = None) -> RangePage:
        if self.failures:
            self.failures -= 1
            raise errors.Unavailable("away")
        return await super().range(prefix, limit=limit, cursor=cursor)


@asynccontextmanager
async def following(view: PrefixCache[str]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(view.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_view_has_what_was_there_and_follows_what_comes(store: Store) -> None:
    await store.commit([Put("p/b", b"1"), Put("p/a", b"1"), Put("q", b"1")])
    view = PrefixCache(store, "p/", text)
    async with following(view):
        await view.ready()
        assert list(view.items()) == [("p/a", "1"), ("p/b", "1")]
        await view.reached(await store.commit([Delete("p/a"), Put("p/c", b"2")]))
        assert list(view.items()) == [("p/b", "1"), ("p/c", "2")]
        assert (view.get("p/c"), view.get("p/a"), view.get("q"), len(view)) == ("2", None, None, 2)


async def test_a_view_shows_ones_own_write(store: Store) -> None:
    view = PrefixCache(store, "", text)
    async with following(view):
        for number in range(20):
            revision = await store.commit([Put("a", str(number).encode())])
            await view.reached(revision)
            assert view.get("a") == str(number)
            assert view.revision >= revision


async def test_who_asked_is_told_what_moved_as_it_was_and_as_it_is(store: Store) -> None:
    await store.commit([Put("p/a", b"1"), Put("p/b", b"1")])
    heard: list[RecordChange[str]] = []
    view = PrefixCache(store, "p/", text, changed=heard.extend)
    async with following(view):
        await view.ready()
        assert heard == [("p/a", None, "1"), ("p/b", None, "1")]
        heard.clear()
        await view.seen(await store.commit([Put("p/a", b"2"), Delete("p/b"), Put("q", b"1")]))
        assert heard == [("p/a", "1", "2"), ("p/b", "1", None)]


async def test_a_new_snapshot_tells_of_what_is_not_as_it_was() -> None:
    store = FlakyStore(ManualClock(), history=2)
    heard: list[RecordChange[str]] = []
    view = PrefixCache(store, "", text, changed=heard.extend)
    await store.commit([Put("a", b"1"), Put("b", b"1"), Put("same", b"1")])
    async with following(view):
        await view.ready()
    heard.clear()
    await store.commit([Delete("a"), Put("c", b"1")])
    for number in range(3):
        await store.commit([Put("b", str(number).encode())])
    async with following(view):
        await view.reached(await store.revision())
        assert heard == [("b", "1", "2"), ("c", None, "1"), ("a", "1", None)]
    await store.close()


async def test_a_revision_that_does_not_touch_the_prefix_is_reached_too(store: Store) -> None:
    view = PrefixCache(store, "p/", text)
    async with following(view):
        await view.ready()
        await view.reached(await store.commit([Put("q", b"")]))
        await view.reached(await store.commit([Delete("p/nothing")]))
        await view.reached(await store.commit([Put("p/a", b"1")]))
        assert view.get("p/a") == "1"


async def test_a_view_that_fell_behind_takes_a_new_snapshot() -> None:
    store = MemoryStore(ManualClock(), history=3)
    view = PrefixCache(store, "", text)
    async with following(view):
        await view.ready()
        for number in range(10):  # without a pause in which the view could read
            await store.commit([Put(f"k{number}", b"")])
            await store.commit([Delete(f"k{number - 1}")])
        await eventually(lambda: [key for key, _ in view.items()] == ["k9"])
        await view.reached(await store.commit([Put("after", b"1")]))
        assert view.get("after") == "1"
    await store.close()


async def test_a_view_waits_for_a_store_that_is_away() -> None:
    store = FlakyStore(ManualClock())
    store.failures = 3
    await store.commit([Put("a", b"1")])
    view = PrefixCache(store, "", text, backoff=Backoff(first_s=0.001, cap_s=0.001))
    async with following(view):
        await view.ready()
        assert view.get("a") == "1"
        assert store.failures == 0
    await store.close()


async def test_waiting_for_a_revision_of_a_store_that_is_away_fails_instead_of_hanging() -> None:
    store = FlakyStore(ManualClock())
    view = PrefixCache(store, "", text)
    async with following(view):
        await view.ready()
        store.failures = 1000
        with pytest.raises(errors.Unavailable):
            await view.reached(99)
    await store.close()


async def test_a_store_put_back_to_a_backup_puts_the_view_back() -> None:
    class Restored(MemoryStore):
        async def range(self, prefix: str, *, limit: int = 0, cursor: str | None = None) -> RangePage:
            return RangePage((Entry("old", b"1", 1, 1),), 1)

    view = PrefixCache(MemoryStore(ManualClock()), "", text)
    async with following(view):
        await view.ready()
        await view.reached(await view._store.commit([Put("new", b"")]))
        await view.reached(await view._store.commit([Put("new", b"")]))
        assert view.revision == 2
    view._store = Restored(ManualClock())
    await view._refresh()
    assert (view.revision, list(view.items())) == (1, [("old", "1")])


async def test_a_batch_that_a_snapshot_has_overtaken_does_not_put_the_view_back() -> None:
    store = MemoryStore(ManualClock())
    await store.commit([Put("a", b"old")])
    async with store.watch("", since=0) as batches:
        overtaken = await anext(batches)
    await store.commit([Put("a", b"new")])
    view = PrefixCache(store, "", text)
    await view.reached(2)
    view._apply(overtaken)
    assert (view.revision, view.get("a")) == (2, "new")
    await store.close()


async def test_an_entry_that_cannot_be_read_stops_the_view_and_is_named() -> None:
    store = MemoryStore(ManualClock())
    view = PrefixCache(store, "", lambda entry: int(entry.value))
    async with asyncio.timeout(PATIENCE_S):
        task = asyncio.ensure_future(view.run())
        await view.ready()
        await store.commit([Put("bad", b"no number")])
        with pytest.raises(errors.Internal, match="'bad'"):
            await task


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    view = PrefixCache(MemoryStore(ManualClock()), "", text)
    waiting = asyncio.ensure_future(view.ready())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert view._waiting == []

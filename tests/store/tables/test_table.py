"""Tables: complete from their first moment, gap-free after interruptions, written by compare-and-set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from skerry.kit.backoff import Backoff
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.store.fencing import LeadershipLost
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Delete, Entry, Expect, Put, RangePage, Store
from skerry.store.tables.table import Record, RecordChange, Table, Write, json_of
from tests.support.waiting import PATIENCE_S, eventually

PlainChange = tuple[str, str | None, str | None]


def text(entry: Entry) -> str:
    return entry.value.decode()


def values(table: Table[str]) -> list[tuple[str, str]]:
    return [(id, record.value) for id, record in table.items()]


def plain(change: RecordChange[str]) -> PlainChange:
    id, before, after = change
    return id, before and before.value, after and after.value


class FlakyStore(MemoryStore):
    """A store that is away for as many reads as it is told."""

    failures = 0

    async def range(self, prefix: str, *, limit: int = 0, cursor: str | None = None) -> RangePage:
        if self.failures:
            self.failures -= 1
            raise errors.Unavailable("away")
        return await super().range(prefix, limit=limit, cursor=cursor)


@asynccontextmanager
async def following(table: Table[str]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(table.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_table_has_what_was_there_and_follows_what_comes(store: Store) -> None:
    await store.commit([Put("p/b", b"1"), Put("p/a", b"1"), Put("q", b"1")])
    table = Table(store, "p/", text)
    async with following(table):
        await table.ready()
        assert values(table) == [("a", "1"), ("b", "1")]
        await table.wait_for_revision(await store.commit([Delete("p/a"), Put("p/c", b"2")]))
        assert values(table) == [("b", "1"), ("c", "2")]
        assert (table.value("c"), table.value("a"), table.get("q"), len(table)) == ("2", None, None, 2)


async def test_a_table_shows_ones_own_write(store: Store) -> None:
    table = Table(store, "", text)
    async with following(table):
        for number in range(20):
            revision = await store.commit([Put("a", str(number).encode())])
            await table.wait_for_revision(revision)
            assert table.value("a") == str(number)
            assert table.revision >= revision


async def test_who_asked_is_told_what_moved_as_it_was_and_as_it_is(store: Store) -> None:
    await store.commit([Put("p/a", b"1"), Put("p/b", b"1")])
    heard: list[PlainChange] = []
    table = Table(store, "p/", text)
    table.subscribe(lambda changes: heard.extend(map(plain, changes)))
    async with following(table):
        await table.ready()
        assert heard == [("a", None, "1"), ("b", None, "1")]
        heard.clear()
        await table.wait_for_change(await store.commit([Put("p/a", b"2"), Delete("p/b"), Put("q", b"1")]))
        assert heard == [("a", "1", "2"), ("b", "1", None)]


async def test_a_new_snapshot_tells_of_what_is_not_as_it_was() -> None:
    store = FlakyStore(ManualClock(), history=2)
    heard: list[PlainChange] = []
    table = Table(store, "", text)
    table.subscribe(lambda changes: heard.extend(map(plain, changes)))
    await store.commit([Put("a", b"1"), Put("b", b"1"), Put("same", b"1")])
    async with following(table):
        await table.ready()
    heard.clear()
    await store.commit([Delete("a"), Put("c", b"1")])
    for number in range(3):
        await store.commit([Put("b", str(number).encode())])
    async with following(table):
        await table.wait_for_revision(await store.revision())
        assert heard == [("b", "1", "2"), ("c", None, "1"), ("a", "1", None)]
    await store.close()


async def test_a_revision_that_does_not_touch_the_prefix_is_reached_too(store: Store) -> None:
    table = Table(store, "p/", text)
    async with following(table):
        await table.ready()
        await table.wait_for_revision(await store.commit([Put("q", b"")]))
        await table.wait_for_revision(await store.commit([Delete("p/nothing")]))
        await table.wait_for_revision(await store.commit([Put("p/a", b"1")]))
        assert table.value("a") == "1"


async def test_a_revision_that_the_watch_has_passed_is_reached_without_reading_the_store() -> None:
    store = FlakyStore(ManualClock())
    table = Table(store, "p/", text)
    async with following(table):
        await table.ready()
        store.failures = 1
        revision = await store.commit([Put("q", b"1")])
        await table.wait_for_revision(revision)
        assert table.revision == revision
        await store.commit([Put("p/a", b"1")])
        await store.commit([Put("q", b"2")])
        await table.sync()
        assert table.value("a") == "1"
        assert store.failures == 1
    await store.close()


async def test_a_table_that_fell_behind_takes_a_new_snapshot() -> None:
    store = MemoryStore(ManualClock(), history=3)
    table = Table(store, "", text)
    async with following(table):
        await table.ready()
        for number in range(10):  # without a pause in which the table could read
            await store.commit([Put(f"k{number}", b"")])
            await store.commit([Delete(f"k{number - 1}")])
        await eventually(lambda: [key for key, _ in table.items()] == ["k9"])
        await table.wait_for_revision(await store.commit([Put("after", b"1")]))
        assert table.value("after") == "1"
    await store.close()


async def test_a_table_waits_for_a_store_that_is_away() -> None:
    store = FlakyStore(ManualClock())
    store.failures = 3
    await store.commit([Put("a", b"1")])
    table = Table(store, "", text, backoff=Backoff(first_s=0.001, cap_s=0.001))
    async with following(table):
        await table.ready()
        assert table.value("a") == "1"
        assert store.failures == 0
    await store.close()


async def test_waiting_for_a_revision_of_a_store_that_is_away_fails_instead_of_hanging() -> None:
    store = FlakyStore(ManualClock())
    table = Table(store, "", text)
    async with following(table):
        await table.ready()
        store.failures = 1000
        with pytest.raises(errors.Unavailable):
            await table.wait_for_revision(99)
    await store.close()


async def test_a_store_put_back_to_a_backup_puts_the_table_back() -> None:
    class Restored(MemoryStore):
        async def range(self, prefix: str, *, limit: int = 0, cursor: str | None = None) -> RangePage:
            return RangePage((Entry("old", b"1", 1, 1),), 1)

    table = Table(MemoryStore(ManualClock()), "", text)
    async with following(table):
        await table.ready()
        await table.wait_for_revision(await table._store.commit([Put("new", b"")]))
        await table.wait_for_revision(await table._store.commit([Put("new", b"")]))
        assert table.revision == 2
    table._store = Restored(ManualClock())
    await table._refresh()
    assert (table.revision, values(table)) == (1, [("old", "1")])


async def test_a_batch_that_a_snapshot_has_overtaken_does_not_put_the_table_back() -> None:
    store = MemoryStore(ManualClock())
    await store.commit([Put("a", b"old")])
    async with store.watch("", since=0) as batches:
        overtaken = await anext(batches)
    await store.commit([Put("a", b"new")])
    table = Table(store, "", text)
    await table.wait_for_revision(2)
    table._apply(overtaken)
    assert (table.revision, table.value("a")) == (2, "new")
    await store.close()


async def test_an_entry_that_cannot_be_read_stops_the_table_and_is_named() -> None:
    store = MemoryStore(ManualClock())
    table = Table(store, "", lambda entry: int(entry.value))
    async with asyncio.timeout(PATIENCE_S):
        task = asyncio.ensure_future(table.run())
        await table.ready()
        await store.commit([Put("bad", b"no number")])
        with pytest.raises(errors.Internal, match="'bad'"):
            await task


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    table = Table(MemoryStore(ManualClock()), "", text)
    waiting = asyncio.ensure_future(table.ready())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert table._waiting == []


# Writing


class Decoder:
    """Decodes texts, and counts how many."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, entry: Entry) -> str:
        self.count += 1
        return json_of(str)(entry)


GONE = errors.NotFound("it is gone")


async def test_a_record_is_written_once_and_seen_at_once(store: Store) -> None:
    table = Table(store, "p/", json_of(str))
    async with following(table):
        await table.ready()
        revision = await table.commit([table.put("a", "1")], [table.expect("a", None)])
        assert table.get("a") == Record("1", revision) == await table.read("a")
        with pytest.raises(errors.Conflict):
            await table.commit([table.put("a", "2")], [table.expect("a", None)])
        await table.commit([table.delete("a")], [table.expect("a", table.get("a"))])
        assert (table.get("a"), await table.read("a")) == (None, None)


async def test_what_a_table_wrote_itself_is_not_decoded_again(store: Store) -> None:
    decode = Decoder()
    table = Table(store, "p/", decode)
    async with following(table):
        await table.ready()
        await table.commit([table.put("a", "ours"), table.put("b", "ours")])
        assert (table.values(), decode.count) == (["ours", "ours"], 0)
        await table.wait_for_revision(await store.commit([Put("p/a", b'"theirs"')]))
        assert (table.value("a"), decode.count) == ("theirs", 1)


async def test_a_write_that_was_refused_is_not_taken_for_what_another_wrote(store: Store) -> None:
    table = Table(store, "p/", json_of(str))
    async with following(table):
        await table.ready()
        await table.commit([table.put("a", "first")])
        with pytest.raises(errors.Conflict):
            await table.commit([table.put("a", "refused")], [table.expect("a", None)])
        await table.wait_for_revision(await store.commit([Put("p/a", b'"theirs"')]))
        assert table.value("a") == "theirs"


async def test_a_lease_is_known_with_the_record(store: Store) -> None:
    table = Table(store, "p/", json_of(str))
    async with following(table):
        await table.ready()
        lease = await store.grant_lease(60)
        revision = await table.commit([table.put("a", "1", lease)])
        assert table.get("a") == Record("1", revision, lease)


async def test_an_update_is_decided_on_what_is_there_when_it_is_written(store: Store) -> None:
    table = Table(store, "p/", json_of(int))
    other = Table(store, "p/", json_of(int))
    async with following(table), following(other):
        await table.commit([table.put("a", 0)])

        async def add(to: Table[int]) -> None:
            for _ in range(20):
                await to.update("a", lambda record: Write(record.value + 1), missing=GONE)

        await asyncio.gather(add(table), add(other), add(table))
        await table.sync()
        assert table.value("a") == 60


async def test_an_update_writes_its_events_in_the_same_transaction_and_may_delete(store: Store) -> None:
    table = Table(store, "p/", json_of(str))
    async with following(table):
        await table.commit([table.put("a", "1")])
        told = Put("event", b"changed")
        assert await table.update("a", lambda _: Write("2", [told]), missing=GONE) == "2"
        record, event = table.get("a"), await store.get("event")
        assert record is not None
        assert event is not None
        assert record.revision == event.revision
        last = await table.update("a", lambda one: Write(one.value, is_delete=True), missing=GONE)
        assert (last, table.get("a")) == ("2", None)
        with pytest.raises(errors.NotFound, match="it is gone"):
            await table.update("a", lambda _: Write("3"), missing=GONE)


async def test_that_nothing_is_to_be_done_is_decided_on_what_is_in_the_store() -> None:
    store = MemoryStore(ManualClock())
    table = Table(store, "p/", json_of(str))
    await store.commit([Put("p/a", b'"old"')])
    await table.wait_for_revision(1)  # and follows no further
    await store.commit([Put("p/a", b'"new"')])
    seen: list[str] = []

    def nothing(record: Record[str]) -> None:
        seen.append(record.value)

    assert await table.update("a", nothing, missing=GONE) == "new"
    assert seen == ["old", "new"]
    await store.close()


async def test_an_update_of_who_no_longer_leads_is_not_tried_for_ever(store: Store) -> None:
    table = Table(store, "p/", json_of(str))
    async with following(table):
        fence = Expect("leader", await store.commit([Put("leader", b"us")]))
        await table.commit([table.put("a", "1")])
        await table.update("a", lambda _: Write("2"), missing=GONE, fence=fence)
        await store.commit([Put("leader", b"them")])
        with pytest.raises(LeadershipLost):
            await table.update("a", lambda _: Write("3"), missing=GONE, fence=fence)
        assert table.value("a") == "2"


async def test_all_who_wait_for_what_is_durable_share_the_work() -> None:
    class Asked(MemoryStore):
        times = 0

        async def revision(self) -> int:
            self.times += 1
            return await super().revision()

    store = Asked(ManualClock())
    table = Table(store, "", text)
    async with following(table):
        await table.ready()
        await store.commit([Put("a", b"1")])
        await asyncio.gather(*(table.sync() for _ in range(50)))
        assert table.value("a") == "1"
        assert store.times <= 2
    await store.close()


async def test_who_unsubscribed_hears_no_more(store: Store) -> None:
    table = Table(store, "", text)
    heard: list[PlainChange] = []
    unsubscribe = table.subscribe(lambda changes: heard.extend(map(plain, changes)))
    async with following(table):
        await table.wait_for_revision(await store.commit([Put("a", b"1")]))
        unsubscribe()
        await table.wait_for_revision(await store.commit([Put("a", b"2")]))
        assert heard[-1] == ("a", None, "1")

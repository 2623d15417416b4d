"""What every backend promises: transactions, ranges, limits, closing, watches, history and leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from skerry.model import errors
from skerry.store.protocol import (
    ABSENT,
    MAX_KEY,
    MAX_OPS,
    MAX_TRANSACTION,
    MAX_VALUE,
    Batch,
    Delete,
    Expect,
    LeaseId,
    Put,
    Store,
)
from tests.store.conftest import Backend
from tests.support.waiting import PATIENCE_S, eventually


async def take(batches: AsyncIterator[Batch], count: int) -> list[Batch]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(batches) for _ in range(count)]


def shape(batch: Batch) -> list[tuple[str, bytes | None]]:
    return [(c.key, c.entry.value if c.entry is not None else None) for c in batch.changes]


async def keys(store: Store, prefix: str = "") -> list[str]:
    return [entry.key for entry in (await store.range(prefix)).entries]


async def test_a_committed_key_is_read_with_its_revision(store: Store) -> None:
    revision = await store.commit([Put("a", b"1")])
    entry = await store.get("a")
    assert entry is not None
    assert (entry.value, entry.created, entry.revision) == (b"1", revision, revision)
    assert await store.revision() == revision


async def test_a_key_that_was_never_written_is_none(store: Store) -> None:
    assert await store.get("nothing") is None


async def test_every_transaction_gets_the_next_revision(store: Store) -> None:
    first = await store.commit([Put("a", b"1"), Put("b", b"1")])
    second = await store.commit([Delete("a"), Put("b", b"2")])
    assert second == first + 1


async def test_all_keys_of_a_transaction_have_one_revision(store: Store) -> None:
    revision = await store.commit([Put("b", b""), Put("a", b""), Put("c", b"")])
    page = await store.range("")
    assert [(e.key, e.revision) for e in page.entries] == [(k, revision) for k in "abc"]


async def test_overwriting_keeps_when_a_key_was_made(store: Store) -> None:
    made = await store.commit([Put("a", b"1")])
    written = await store.commit([Put("a", b"2")])
    entry = await store.get("a")
    assert entry is not None
    assert (entry.created, entry.revision, entry.value) == (made, written, b"2")


async def test_a_key_made_anew_after_its_removal_was_made_then(store: Store) -> None:
    await store.commit([Put("a", b"1")])
    await store.commit([Delete("a")])
    assert await store.get("a") is None
    again = await store.commit([Put("a", b"1")])
    entry = await store.get("a")
    assert entry is not None
    assert entry.created == again


async def test_removing_what_is_not_there_makes_no_revision(store: Store) -> None:
    before = await store.commit([Put("a", b"1")])
    assert await store.commit([Delete("b")]) == before
    assert await store.revision() == before


async def test_writing_the_same_value_is_a_change(store: Store) -> None:
    first = await store.commit([Put("a", b"1")])
    assert await store.commit([Put("a", b"1")]) == first + 1


async def test_an_expectation_that_holds_lets_the_transaction_happen(store: Store) -> None:
    revision = await store.commit([Put("a", b"1")], [Expect("a", ABSENT)])
    await store.commit([Put("a", b"2")], [Expect("a", revision), Expect("b", ABSENT)])
    entry = await store.get("a")
    assert entry is not None
    assert entry.value == b"2"


async def test_a_conflict_names_the_first_key_that_changed_and_writes_nothing(store: Store) -> None:
    revision = await store.commit([Put("a", b"1"), Put("b", b"1")])
    with pytest.raises(errors.Conflict, match="'b'") as caught:
        await store.commit(
            [Put("a", b"2"), Put("new", b"")],
            [Expect("a", revision), Expect("b", revision + 7), Expect("c", revision)],
        )
    assert str(revision) in caught.value.message
    assert await keys(store) == ["a", "b"]
    assert await store.revision() == revision


async def test_a_key_that_must_not_exist_conflicts_if_it_does(store: Store) -> None:
    await store.commit([Put("a", b"1")])
    with pytest.raises(errors.Conflict, match="already exists"):
        await store.commit([Put("a", b"2")], [Expect("a")])


async def test_a_key_that_is_gone_conflicts_with_its_old_revision(store: Store) -> None:
    revision = await store.commit([Put("a", b"1")])
    await store.commit([Delete("a")])
    with pytest.raises(errors.Conflict, match="gone"):
        await store.commit([Put("a", b"2")], [Expect("a", revision)])


async def test_a_transaction_without_operations_only_checks(store: Store) -> None:
    revision = await store.commit([Put("a", b"1")])
    assert await store.commit([], [Expect("a", revision)]) == revision
    with pytest.raises(errors.Conflict):
        await store.commit([], [Expect("a", ABSENT)])


async def test_of_many_who_expect_the_same_exactly_one_wins(store: Store) -> None:
    async def take(number: int) -> bool:
        try:
            await store.commit([Put("lock", str(number).encode())], [Expect("lock")])
        except errors.Conflict:
            return False
        return True

    won = await asyncio.gather(*(take(number) for number in range(20)))
    assert sum(won) == 1
    entry = await store.get("lock")
    assert entry is not None
    assert entry.value == str(won.index(True)).encode()


async def test_concurrent_counters_lose_no_count(store: Store) -> None:
    await store.commit([Put("count", b"0")])

    async def add() -> None:
        while True:
            entry = await store.get("count")
            assert entry is not None
            try:
                await store.commit(
                    [Put("count", str(int(entry.value) + 1).encode())], [Expect("count", entry.revision)]
                )
            except errors.Conflict:
                continue
            return

    await asyncio.gather(*(add() for _ in range(8)))
    entry = await store.get("count")
    assert entry is not None
    assert entry.value == b"8"


async def test_a_caller_may_change_its_lists_after_calling(store: Store) -> None:
    ops = [Put("a", b"1")]
    commit = asyncio.ensure_future(store.commit(ops))
    await asyncio.sleep(0)
    ops.append(Put("b", b"1"))
    await commit
    assert await keys(store) == ["a"]


async def test_a_cancelled_commit_leaves_the_store_working(store: Store) -> None:
    doomed = asyncio.ensure_future(store.commit([Put("a", b"1")]))
    await asyncio.sleep(0)
    doomed.cancel()
    await asyncio.wait([doomed])
    revision = await store.commit([Put("b", b"1")])
    assert await store.revision() == revision
    assert "b" in await keys(store)


async def test_a_range_is_in_the_order_of_utf_8_and_only_of_its_prefix(store: Store) -> None:
    names = ["p/", "p/a", "p/a/b", "p/aa", "p/ä", "p/€", "p/\U0001f600", "p0", "o/z", "p"]
    for name in names:
        await store.commit([Put(name, b"")])
    wanted = sorted((n for n in names if n.startswith("p/")), key=str.encode)
    assert await keys(store, "p/") == wanted
    assert await keys(store) == sorted(names, key=str.encode)


async def test_pages_cover_a_range_exactly_once(store: Store) -> None:
    names = [f"p/{number:02}" for number in range(10)]
    await store.commit([Put(name, b"") for name in [*names, "q"]])
    seen: list[str] = []
    cursor = None
    sizes = []
    while True:
        page = await store.range("p/", limit=4, cursor=cursor)
        seen += [entry.key for entry in page.entries]
        sizes.append(len(page.entries))
        cursor = page.cursor
        if cursor is None:
            break
    assert (seen, sizes) == (names, [4, 4, 2])


async def test_a_page_that_ends_with_the_range_has_no_cursor(store: Store) -> None:
    await store.commit([Put("p/1", b""), Put("p/2", b"")])
    assert (await store.range("p/", limit=2)).cursor is None
    assert (await store.range("p/", limit=1)).cursor is not None
    assert (await store.range("empty/", limit=1)).entries == ()


async def test_a_large_range_is_whole(store: Store) -> None:
    names = [f"n/{number:04}" for number in range(1100)]
    for start in range(0, len(names), MAX_OPS):
        await store.commit([Put(name, b"x") for name in names[start : start + MAX_OPS]])
    page = await store.range("n/")
    assert [entry.key for entry in page.entries] == names
    assert page.cursor is None


async def test_the_largest_that_is_allowed_is_stored(store: Store) -> None:
    value = bytes(MAX_VALUE)
    await store.commit([Put("k" * MAX_KEY, value)])
    entry = await store.get("k" * MAX_KEY)
    assert entry is not None
    assert entry.value == value
    many = [f"{number:0{MAX_KEY}}" for number in range(MAX_OPS)]
    room = (MAX_TRANSACTION - 2 * MAX_OPS * MAX_KEY) // MAX_OPS
    await store.commit([Put(key, bytes(room)) for key in many], [Expect(key) for key in many])
    assert await keys(store, "0") == many


@pytest.mark.parametrize(
    ("ops", "kind"),
    [
        ([Put("", b"")], errors.Invalid),
        ([Put("\ud800", b"")], errors.Invalid),
        ([Put("a", b""), Delete("a")], errors.Invalid),
        ([Put("k" * (MAX_KEY + 1), b"")], errors.TooLarge),
        ([Put("ä" * (MAX_KEY // 2 + 1), b"")], errors.TooLarge),
        ([Put("a", bytes(MAX_VALUE + 1))], errors.TooLarge),
        ([Put("a", bytes(MAX_VALUE)), Put("b", bytes(MAX_VALUE // 2))], errors.TooLarge),
        ([Put(str(number), b"") for number in range(MAX_OPS + 1)], errors.TooLarge),
    ],
    ids=["empty", "surrogate", "twice", "long key", "long UTF-8 key", "long value", "heavy", "many"],
)
async def test_what_is_out_of_bounds_is_refused_and_nothing_written(
    store: Store, ops: list[Put | Delete], kind: type[Exception]
) -> None:
    before = await store.revision()
    with pytest.raises(kind):
        await store.commit(ops)
    assert await store.revision() == before


async def test_too_many_expectations_are_refused(store: Store) -> None:
    with pytest.raises(errors.TooLarge):
        await store.commit([], [Expect(str(number)) for number in range(MAX_OPS + 1)])


async def test_a_cursor_of_another_range_is_refused(store: Store) -> None:
    with pytest.raises(errors.Invalid, match="cursor"):
        await store.range("p/", cursor="q/1")
    with pytest.raises(errors.Invalid, match="limit"):
        await store.range("p/", limit=-1)
    with pytest.raises(errors.Invalid):
        await store.get("")


async def test_after_closing_every_call_says_that_the_store_is_closed(store: Store) -> None:
    await store.commit([Put("a", b"1")])
    await store.close()
    await store.close()
    for call in (
        store.get("a"),
        store.range(""),
        store.commit([Put("a", b"")]),
        store.grant_lease(10),
        store.revision(),
        store.check_writes(),
        store.compact(1),
    ):
        with pytest.raises(errors.Unavailable, match="closed"):
            await call
    with pytest.raises(errors.Unavailable, match="closed"):
        async with store.watch("", since=0):
            pass


async def test_closing_finishes_what_was_accepted(store: Store) -> None:
    commits = [asyncio.ensure_future(store.commit([Put(str(number), b"")])) for number in range(10)]
    await asyncio.sleep(0)
    await store.close()
    revisions = await asyncio.gather(*commits)
    assert sorted(revisions) == list(range(min(revisions), min(revisions) + 10))


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


async def test_the_position_of_a_watch_passes_no_batch_that_was_not_returned(
    backend: Backend, store: Store
) -> None:
    since = await store.revision()
    async with store.watch("p/", since=since) as watch:
        assert watch.position == since
        first = await store.commit([Put("p/a", b"1")])
        other = await store.commit([Put("q", b"1")])
        last = await store.commit([Put("p/a", b"2")])
        assert watch.position < first
        assert (await take(aiter(watch), 1))[0].revision == first
        assert first <= watch.position <= other
        assert (await take(aiter(watch), 1))[0].revision == last
        assert watch.position == last
        other = await store.commit([Put("q", b"2")])
        assert watch.position == (last if backend.name == "etcd" else other)


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
        await asyncio.sleep(0)
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
        async with asyncio.timeout(PATIENCE_S):
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
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(errors.Unavailable, match="closed"):
            await asyncio.wait_for(waiting, PATIENCE_S)


async def test_dropping_a_lease_removes_its_keys_in_one_revision(store: Store) -> None:
    lease = await store.grant_lease(600)
    await store.commit([Put("stays", b"")])
    since = await store.commit([Put("a", b"", lease), Put("b", b"", lease)])
    entry = await store.get("a")
    assert entry is not None
    assert entry.lease == lease
    await store.renew_lease(lease)
    async with store.watch("", since=since) as batches:
        await store.revoke_lease(lease)
        (batch,) = await take(batches, 1)
    assert shape(batch) == [("a", None), ("b", None)]
    assert [e.key for e in (await store.range("")).entries] == ["stays"]


async def test_a_lease_without_keys_ends_without_a_revision(store: Store) -> None:
    before = await store.commit([Put("a", b"")])
    await store.revoke_lease(await store.grant_lease(600))
    assert await store.revision() == before


async def test_a_key_written_again_without_the_lease_outlives_it(store: Store) -> None:
    lease, other = await store.grant_lease(600), await store.grant_lease(600)
    await store.commit([Put("a", b"", lease), Put("b", b"", lease), Put("c", b"", lease)])
    await store.commit([Put("a", b"free"), Put("b", b"moved", other)])
    await store.revoke_lease(lease)
    assert [e.key for e in (await store.range("")).entries] == ["a", "b"]
    await store.revoke_lease(other)
    assert [e.key for e in (await store.range("")).entries] == ["a"]


async def test_an_ended_lease_is_not_found(store: Store) -> None:
    lease = await store.grant_lease(600)
    await store.revoke_lease(lease)
    before = await store.revision()
    for unknown in (lease, LeaseId(12345)):
        with pytest.raises(errors.NotFound):
            await store.renew_lease(unknown)
        with pytest.raises(errors.NotFound):
            await store.revoke_lease(unknown)
        with pytest.raises(errors.NotFound):
            await store.commit([Put("x", b""), Put("y", b"", unknown)])
    assert await store.revision() == before


@pytest.mark.parametrize("ttl_s", [0, -1, 10**10])
async def test_a_lease_must_last_a_sensible_time(store: Store, ttl_s: int) -> None:
    with pytest.raises(errors.Invalid, match="seconds"):
        await store.grant_lease(ttl_s)


@pytest.mark.parametrize("backend", ["sqlite", "etcd"], indirect=True)  # memory forgets
async def test_what_was_there_is_there_after_opening_again(backend: Backend) -> None:
    store = await backend.open()
    lease = await store.grant_lease(600)
    await store.commit([Put("a", b"1"), Put("b", b"1", lease)])
    since = await store.commit([Put("a", b"2")])
    last = await store.commit([Delete("a"), Put("c", b"")])
    before = await store.range("")
    await store.close()
    again = await backend.open()
    assert await again.range("") == before
    async with again.watch("", since=since) as batches:
        assert [batch.revision for batch in await take(batches, 1)] == [last]
    await again.renew_lease(lease)
    await again.revoke_lease(lease)
    assert [e.key for e in (await again.range("")).entries] == ["c"]

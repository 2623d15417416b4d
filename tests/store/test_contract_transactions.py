"""What every backend promises of transactions, ranges and limits."""

from __future__ import annotations

import asyncio

import pytest

from skerry.model import errors
from skerry.store.protocol import (
    ABSENT,
    MAX_KEY,
    MAX_OPS,
    MAX_TRANSACTION,
    MAX_VALUE,
    Delete,
    Expect,
    Put,
    Store,
)


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
        store.grant(10),
        store.revision(),
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

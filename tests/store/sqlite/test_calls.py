"""The file of async calls: what returned is on disk, calls share commits, and nothing grows without bound."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from skerry.model import errors
from skerry.model.calls import CallState
from skerry.store.sqlite import call_rows
from skerry.store.sqlite.call_rows import ROW_BYTES, SWEEP, CallRow, CallRows, CopyAttempt, UncopiedResult
from skerry.store.sqlite.calls import CallStore

PLENTY = 10**9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[CallStore]:
    opened, _ = await CallStore.open(path, PLENTY)
    yield opened
    await opened.close()


async def finished(store: CallStore, *ids: str, at: float = 0.0, body: bytes = b"done") -> None:
    """Calls that were accepted, run and done."""

    async def live(id: str) -> None:
        await store.accept(id, "line", at, b"ask")
        await store.start(id)
        await store.finish(id, CallState.DONE, at, body)

    await asyncio.gather(*map(live, ids))


async def uncopied(store: CallStore, now: float = 1e9, most: int = 100) -> list[str]:
    return [result.id for result in await store.uncopied(now, most)]


async def test_a_call_that_waits_or_runs_is_found_again_in_order(path: Path, store: CallStore) -> None:
    for number in range(4):
        await store.accept(f"id{number}", f"line{number}", float(number), b"ask")
    await store.start("id1")
    assert await store.start("id2") == b"ask"
    await store.put_back("id2")
    await store.finish("id0", CallState.FAILED, 9.0, b"why")
    await store.close()
    again, left = await CallStore.open(path, PLENTY)
    try:
        assert [(one.id, one.line, one.state, one.accepted_at) for one in left] == [
            ("id1", "line1", CallState.RUNNING, 1.0),
            ("id2", "line2", CallState.QUEUED, 2.0),
            ("id3", "line3", CallState.QUEUED, 3.0),
        ]
        assert {one.size for one in left} == {ROW_BYTES + 3}
        assert await again.read("id0") == CallRow(CallState.FAILED, b"why")
    finally:
        await again.close()


async def test_calls_that_come_together_share_a_commit(
    store: CallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    write = CallRows.write

    def counting(rows: CallRows, steps: Sequence[Callable[[CallRows], Any]]) -> list[Any]:
        sizes.append(len(steps))
        return write(rows, steps)

    monkeypatch.setattr(CallRows, "write", counting)
    await asyncio.gather(*(store.accept(f"id{number}", "line", 0.0, b"") for number in range(500)))
    assert sizes == [500]


async def test_marking_a_call_as_running_rewrites_nothing_of_what_it_asks(
    path: Path, store: CallStore
) -> None:
    await store.accept("id", "line", 0.0, b"x" * 1_000_000)
    wal = path.with_name(f"{path.name}-wal")
    before = wal.stat().st_size
    await store.start("id")
    await store.put_back("id")
    assert wal.stat().st_size - before < 100_000


async def test_the_bytes_of_what_is_kept_are_counted_again_at_a_restart(path: Path, store: CallStore) -> None:
    await finished(store, "old", at=1.0, body=b"x" * 1000)
    await store.close()
    again, _ = await CallStore.open(path, 3000)
    try:
        await finished(again, "new", at=2.0, body=b"x" * 1000)
        assert await again.read("old") == CallRow(CallState.EXPIRED, b"")
        assert await again.read("new") == CallRow(CallState.DONE, b"x" * 1000)
    finally:
        await again.close()


async def test_what_has_not_ended_is_never_dropped_for_room(path: Path) -> None:
    store, _ = await CallStore.open(path, 2000)
    try:
        for number in range(3):
            await store.accept(f"id{number}", "line", 0.0, b"x" * 1000)
        await finished(store, "ended")
        assert [await store.start(f"id{number}") for number in range(3)] == [b"x" * 1000] * 3
    finally:
        await store.close()


async def test_a_sweep_goes_through_more_than_it_takes_at_once(store: CallStore) -> None:
    ids = [f"id{number}" for number in range(SWEEP * 2 + 1)]
    await finished(store, *ids)
    await store.sweep(10.0, 10.0)
    assert {row.state for id in ids if (row := await store.read(id))} == {CallState.EXPIRED}
    await store.sweep(20.0, 10.0)
    assert [id for id in ids if await store.read(id)] == []


async def test_only_so_many_are_remembered_as_expired(
    store: CallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_rows, "MOST_EXPIRED", 3)
    for number in range(6):
        await finished(store, f"id{number}", at=float(number))
        await store.sweep(number + 10.0, 10.0)
    await store.sweep(15.5, 10.0)
    assert [number for number in range(6) if await store.read(f"id{number}")] == [3, 4, 5]


async def test_a_closed_store_says_so(store: CallStore) -> None:
    await store.close()
    with pytest.raises(errors.Unavailable, match="stopping"):
        await store.accept("id", "line", 0.0, b"")
    with pytest.raises(errors.Unavailable, match="stopping"):
        await store.read("id")


async def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    rows = CallRows(path, PLENTY)
    rows._connection.execute("PRAGMA user_version = 99")
    rows.close()
    with pytest.raises(errors.FailedPrecondition, match="newer version"):
        await CallStore.open(path, PLENTY)


async def test_which_results_nobody_else_has_is_on_disk_with_them(path: Path, store: CallStore) -> None:
    await finished(store, "b", at=2.0)
    await finished(store, "a", at=1.0)
    await store.accept("waits", "line", 0.0, b"ask")
    await store.keep_copy("kept", CallState.DONE, 1.0, b"done", "*origin")
    assert await store.uncopied(1e9, 100) == [UncopiedResult("a", 1.0, 0), UncopiedResult("b", 2.0, 0)]
    assert await uncopied(store, most=1) == ["a"]
    await store.note_copies([CopyAttempt("a", "n1", 3.0), CopyAttempt("b", "", 7.0, 1)])
    await store.note_copies([CopyAttempt("never", "n1", 3.0)])
    assert await uncopied(store, now=6.9) == []
    await store.close()
    again, _ = await CallStore.open(path, PLENTY)
    try:
        assert await again.uncopied(7.0, 100) == [UncopiedResult("b", 2.0, 1)]
        assert await again.holders() == {"*origin": "kept", "n1": "a"}
        await again.retry_copies()
        assert await again.uncopied(0.0, 100) == [UncopiedResult("b", 2.0, 0)]
    finally:
        await again.close()


async def test_results_of_a_holder_that_is_lost_are_to_be_copied_again_however_many(
    store: CallStore,
) -> None:
    ids = [f"id{number}" for number in range(SWEEP + 7)]
    await finished(store, "other", *ids)
    await store.note_copies([CopyAttempt(id, "n1", 1.0) for id in ids])
    await store.note_copies([CopyAttempt("other", "n2", 1.0)])
    assert await store.release("n1") == len(ids)
    assert sorted(await uncopied(store, most=PLENTY)) == sorted(ids)
    assert await store.holders() == {"n2": "other"}


async def test_of_what_a_holder_has_a_small_one_is_asked_for(store: CallStore) -> None:
    await finished(store, "large", at=2.0, body=b"x" * 1000)
    await finished(store, "small", at=1.0)
    await store.note_copies([CopyAttempt("large", "n1", 2.0), CopyAttempt("small", "n1", 1.0)])
    assert await store.holders() == {"n1": "small"}


async def test_a_result_that_expired_is_not_copied_and_has_no_holder(store: CallStore) -> None:
    await finished(store, "a", "b", at=0.0)
    await store.note_copies([CopyAttempt("a", "n1", 0.0)])
    await store.sweep(100.0, 50.0)
    await store.note_copies([CopyAttempt("b", "n1", 0.0)])
    assert await uncopied(store) == []
    assert await store.holders() == {}


async def test_a_file_of_the_version_before_has_its_results_copied(path: Path) -> None:
    connection = sqlite3.connect(path)
    for statement in call_rows.MIGRATIONS[0]:
        connection.execute(statement)
    for id, line, state in (
        ("own", "0/f", "d"),
        ("kept", "", "d"),
        ("gone", "0/f", "e"),
        ("new", "0/f", "q"),
    ):
        connection.execute(
            "INSERT INTO call (id, line, state, at, size, body) VALUES (?, ?, ?, 5.0, 512, x'01')",
            (id, line, state),
        )
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    store, left = await CallStore.open(path, PLENTY)
    try:
        assert [call.id for call in left] == ["new"]
        assert await store.uncopied(1e9, 100) == [UncopiedResult("own", 5.0, 0)]
        assert await store.read("kept") == CallRow(CallState.DONE, b"\x01")
    finally:
        await store.close()

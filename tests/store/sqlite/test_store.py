"""The SQLite store on its file: restarts, full disks, damage, other versions, other processes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop

from skerry.kit import disk_reserve
from skerry.kit.clock import ManualClock, SystemClock
from skerry.kit.disk_reserve import DiskReserve
from skerry.model import errors
from skerry.store.protocol import Delete, Entry, Expect, LeaseId, Put
from skerry.store.sqlite import journal
from skerry.store.sqlite.store import CHECKPOINT_EVERY, SqliteStore
from tests.support.disks import disk_full, small_disk
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(path, ManualClock())
    yield opened
    await opened.close()


async def entries(store: SqliteStore) -> tuple[Entry, ...]:
    return (await store.range("")).entries


async def reopened(path: Path) -> tuple[tuple[Entry, ...], int]:
    """What a fresh process would find in the file."""
    store = await SqliteStore.open(path, ManualClock())
    try:
        return await entries(store), await store.revision()
    finally:
        await store.close()


async def test_the_file_is_for_its_owner_only(store: SqliteStore, path: Path) -> None:
    await store.commit([Put("a", b"secret")])
    assert {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()} == {
        "store.db": 0o600,
        "store.db-wal": 0o600,
    }


async def test_a_file_with_wider_rights_is_narrowed(path: Path) -> None:
    path.touch(0o644)
    await (await SqliteStore.open(path, ManualClock())).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_the_file_is_written_ahead_and_in_full(path: Path) -> None:
    opened = journal.Journal(path)
    try:
        run = opened._connection.execute
        assert run("PRAGMA journal_mode").fetchone() == ("wal",)
        assert run("PRAGMA synchronous").fetchone() == (2,)
    finally:
        opened.close()


async def test_folding_history_into_entries_loses_nothing(path: Path) -> None:
    store = await SqliteStore.open(path, ManualClock(), history=100)
    lease = await store.grant_lease(600)
    for number in range(CHECKPOINT_EVERY + 300):
        name = f"k{number % 37}"
        await store.commit([Delete(name)] if number % 5 == 0 else [Put(name, str(number).encode())])
        await store.commit([Put(f"own/{number}", b"", lease)])
    before, revision = await entries(store), await store.revision()
    await store.close()
    assert await reopened(path) == (before, revision)
    raw = sqlite3.connect(path)
    rows, folded = raw.execute("SELECT (SELECT count(*) FROM journal), revision FROM fold").fetchone()
    raw.close()
    assert folded >= revision - 100 - CHECKPOINT_EVERY
    assert rows == revision - folded


async def test_a_shorter_history_after_a_restart_loses_no_entry(path: Path) -> None:
    store = await SqliteStore.open(path, ManualClock(), history=10_000)
    for number in range(CHECKPOINT_EVERY * 2):
        await store.commit([Put(f"k{number}", b"")])
    before = await entries(store)
    await store.close()
    again = await SqliteStore.open(path, ManualClock(), history=100)
    with pytest.raises(errors.Compacted):
        async with again.watch("", since=CHECKPOINT_EVERY * 2 - 101):
            pass
    async with again.watch("", since=CHECKPOINT_EVERY * 2 - 100) as batches:
        assert (await anext(batches)).revision == CHECKPOINT_EVERY * 2 - 99
    with pytest.raises(errors.Conflict):  # a group in which nothing happens must not lose track either
        await again.commit([], [Expect("k0")])
    await again.commit([Put("last", b"")])
    await again.close()
    found, _ = await reopened(path)
    assert [e.key for e in found] == sorted([*(e.key for e in before), "last"])


async def test_a_compaction_holds_after_a_restart(path: Path) -> None:
    store = await SqliteStore.open(path, ManualClock())
    for number in range(5):
        last = await store.commit([Put("a", str(number).encode())])
    await store.compact(last)
    await store.close()
    again = await SqliteStore.open(path, ManualClock())
    with pytest.raises(errors.Compacted):
        async with again.watch("", since=last - 2):
            pass
    async with again.watch("", since=last - 1) as batches:
        assert (await anext(batches)).revision == last
    await again.close()


async def test_a_lease_has_its_full_time_again_after_a_restart(path: Path) -> None:
    clock = ManualClock()
    store = await SqliteStore.open(path, clock)
    lease, ended = await store.grant_lease(10), await store.grant_lease(10)
    await store.commit([Put("a", b"", lease), Put("b", b"", ended)])
    await store.revoke_lease(ended)
    clock.advance(9)
    await store.close()
    again = await SqliteStore.open(path, clock)
    clock.advance(9)
    await again.expire()
    assert [e.key for e in await entries(again)] == ["a"]
    clock.advance(1)
    await again.expire()
    assert await entries(again) == ()
    await again.close()
    assert (await reopened(path))[0] == ()


@contextmanager
def groups_written() -> Iterator[list[journal.CommitGroup]]:
    """What the writer is given meanwhile."""
    groups: list[journal.CommitGroup] = []
    write = journal.Journal.write

    def noting(self: journal.Journal, group: journal.CommitGroup) -> None:
        groups.append(group)
        write(self, group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal.Journal, "write", noting)
        yield groups


async def test_concurrent_transactions_share_a_commit(store: SqliteStore) -> None:
    with groups_written() as groups:
        await asyncio.gather(*(store.commit([Put(f"{number}", b"")]) for number in range(64)))
    assert [len(group.batches) for group in groups] == [64]


async def test_a_group_in_which_nothing_changes_does_not_touch_the_disk(store: SqliteStore) -> None:
    with groups_written() as groups:
        await asyncio.gather(store.commit([Delete("nothing")]), store.commit([], [Expect("nothing")]))
    assert groups == []


async def test_folding_is_seldom(path: Path) -> None:
    store = await SqliteStore.open(path, ManualClock(), history=100)
    with groups_written() as groups:
        for number in range(100 + 2 * CHECKPOINT_EVERY):
            await store.commit([Put(f"k{number % 7}", b"")])
    await store.close()
    folds = [group.fold for group in groups if group.fold is not None]
    assert [len(fold.entries) for fold in folds] == [7, 7]


async def test_a_key_freed_in_the_group_that_drops_its_lease_stays(store: SqliteStore) -> None:
    lease = await store.grant_lease(10)
    await store.commit([Put("freed", b"", lease), Put("held", b"", lease), Put("gone", b"", lease)])
    await asyncio.gather(
        store.commit([Put("freed", b"")]), store.commit([Delete("gone")]), store.revoke_lease(lease)
    )
    assert [e.key for e in await entries(store)] == ["freed"]


async def test_a_transaction_sees_those_before_it_in_its_group(store: SqliteStore) -> None:
    results = await asyncio.gather(
        store.commit([Put("a", b"1")], [Expect("a")]),
        store.commit([Put("a", b"2")], [Expect("a")]),
        store.commit([Delete("a")]),
        store.commit([Put("a", b"3")], [Expect("a")]),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [int, errors.Conflict, int, int]
    assert [e.value for e in await entries(store)] == [b"3"]


async def test_a_lease_granted_used_and_dropped_in_one_group_leaves_nothing(path: Path) -> None:
    store = await SqliteStore.open(path, ManualClock(), entropy=lambda bits: 41)
    grant = asyncio.ensure_future(store.grant_lease(10))
    lease = LeaseId(42)  # what the grant will make of that chance
    await asyncio.gather(grant, store.commit([Put("a", b"", lease)]), store.revoke_lease(lease))
    assert await entries(store) == ()
    await store.close()
    assert (await reopened(path))[0] == ()


async def test_a_full_disk_is_unavailable_and_leaves_nothing_half_done(path: Path) -> None:
    store = await SqliteStore.open(path, ManualClock())
    await store.commit([Put("a", b"1")])
    before, revision = await entries(store), await store.revision()
    async with store.watch("", since=revision) as batches:
        with disk_full():
            results = await asyncio.gather(
                *(store.commit([Put(f"b{n}", bytes(100_000)), Put(f"c{n}", b"")]) for n in range(4)),
                return_exceptions=True,
            )
            for result in results:
                assert isinstance(result, errors.Unavailable)
                assert "nothing was changed" in result.message
                assert str(path) in result.message
            assert (await entries(store), await store.revision()) == (before, revision)
        after = await store.commit([Put("d", b"room again")])
        assert after == revision + 1
        assert (await anext(batches)).revision == after
    found = await entries(store)
    assert [e.key for e in found] == ["a", "d"]
    await store.close()
    assert await reopened(path) == (found, after)


async def test_a_write_that_failed_is_told_until_the_disk_takes_one_again(path: Path) -> None:
    store = await SqliteStore.open(path, ManualClock())
    await store.check_writes()
    with disk_full(4096):
        with pytest.raises(errors.Unavailable):
            await store.commit([Put("a", bytes(10_000))])
        for _ in range(2):
            with pytest.raises(errors.Unavailable, match="could not write"):
                await store.check_writes()
    await store.check_writes()  # by itself: no transaction has to come first
    assert await entries(store) == ()
    await store.commit([Put("a", b"1")])
    found = await entries(store)
    await store.close()
    assert await reopened(path) == (found, 1)


async def test_a_lease_whose_end_met_a_full_disk_ends_later(path: Path) -> None:
    clock = ManualClock()
    store = await SqliteStore.open(path, clock)
    lease = await store.grant_lease(10)
    await store.commit([Put("a", b"", lease), Put("b", bytes(100_000))])
    clock.advance(10)
    with disk_full(), pytest.raises(errors.Unavailable):
        await store.expire()
    assert len(await entries(store)) == 2
    await store.expire()
    assert [e.key for e in await entries(store)] == ["b"]
    await store.close()


@pytest.mark.root
async def test_a_full_disk_takes_transactions_until_its_reserve_is_used_up(tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=16) as disk:
        kept = DiskReserve(disk.root, 2 << 20)
        kept.refill()
        store = await SqliteStore.open(disk.root / "store.db", ManualClock())
        await store.commit([Put("a", b"1")])
        disk.fill()
        with disk_reserve.installed(kept):
            await store.commit([Put("b", bytes(100_000))])
            assert kept.is_short

            async def go_on() -> None:
                for number in range(100):
                    disk.fill()  # others take what is given up
                    await store.commit([Put(f"c{number}", bytes(100_000))])

            with pytest.raises(errors.Unavailable, match="disk is full"):
                await go_on()
            assert kept.held == 0
        disk.empty()
        await store.commit([Put("d", b"")])
        found = await entries(store)
        await store.close()
        assert [entry.key for entry in found][:2] == ["a", "b"]
        assert (await reopened(disk.root / "store.db"))[0] == found


@pytest.mark.root
async def test_a_small_file_system_that_fills_up_goes_on_when_there_is_room(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(tmp_path)], check=True)
    try:
        path = tmp_path / "store.db"
        store = await SqliteStore.open(path, ManualClock())
        ballast = tmp_path / "ballast"
        ballast.write_bytes(bytes(1024 * 1024))
        acknowledged: list[str] = []

        async def fill() -> None:
            for number in range(100):
                await store.commit([Put(f"k{number:03}", bytes(50_000)), Put("last", str(number).encode())])
                acknowledged.append(f"k{number:03}")

        with pytest.raises(errors.Unavailable, match="full"):
            await fill()
        assert [e.key for e in await entries(store)] == [*acknowledged, "last"]
        ballast.unlink()
        await store.commit([Put("z", b"")])
        found, revision = await entries(store), await store.revision()
        await store.close()
        assert await reopened(path) == (found, revision)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


async def test_a_cancelled_waiter_changes_nothing_for_the_others(store: SqliteStore) -> None:
    commits = [asyncio.ensure_future(store.commit([Put(f"{n}", b"")])) for n in range(3)]
    await asyncio.sleep(0)
    commits[1].cancel()
    results = await asyncio.gather(*commits, return_exceptions=True)
    assert isinstance(results[1], asyncio.CancelledError)
    assert [e.key for e in await entries(store)] == ["0", "1", "2"]


async def test_a_step_that_fails_in_our_own_code_fails_only_itself(store: SqliteStore) -> None:
    def broken(draft: object) -> None:
        raise ZeroDivisionError

    results = await asyncio.gather(
        store.commit([Put("a", b"")]), store._submit(broken), return_exceptions=True
    )
    assert isinstance(results[1], ZeroDivisionError)
    assert [e.key for e in await entries(store)] == ["a"]


async def test_cancelling_close_still_closes(path: Path) -> None:
    store = await SqliteStore.open(path, ManualClock())
    commit = asyncio.ensure_future(store.commit([Put("a", b"")]))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    await store.close()
    assert await commit == 1
    assert (await reopened(path))[1] == 1


async def test_a_damaged_file_is_refused_by_name_and_with_advice(path: Path) -> None:
    store = await SqliteStore.open(path, ManualClock(), history=100)
    for number in range(CHECKPOINT_EVERY * 2):
        await store.commit([Put(f"k{number}", bytes(100))])
    await store.close()
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = os.urandom(4096)
    path.write_bytes(content)
    with pytest.raises(errors.FailedPrecondition, match="damaged") as caught:
        await SqliteStore.open(path, ManualClock())
    assert str(path) in caught.value.message
    assert "backup" in caught.value.message


async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"something else entirely, and long enough to look like a header" * 100)
    with pytest.raises(errors.FailedPrecondition, match="damaged"):
        await SqliteStore.open(path, ManualClock())


async def test_a_journal_with_a_hole_is_refused(path: Path) -> None:
    store = await SqliteStore.open(path, ManualClock())
    for _ in range(3):
        await store.commit([Put("a", b"")])
    await store.close()
    raw = sqlite3.connect(path)
    raw.execute("DELETE FROM journal WHERE revision = 2")
    raw.commit()
    raw.close()
    with pytest.raises(errors.FailedPrecondition, match="revisions are missing"):
        await SqliteStore.open(path, ManualClock())


async def test_a_row_that_cannot_be_read_is_refused(path: Path) -> None:
    store = await SqliteStore.open(path, ManualClock())
    await store.commit([Put("a", b"")])
    await store.close()
    raw = sqlite3.connect(path)
    raw.execute("UPDATE journal SET changes = x'ff'")
    raw.commit()
    raw.close()
    with pytest.raises(errors.FailedPrecondition, match="cannot be read"):
        await SqliteStore.open(path, ManualClock())


async def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    await (await SqliteStore.open(path, ManualClock())).close()
    newer = len(journal.MIGRATIONS) + 1
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version = {newer}")
    raw.close()
    with pytest.raises(errors.FailedPrecondition, match=f"schema {newer}.*newer version"):
        await SqliteStore.open(path, ManualClock())
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA user_version").fetchone() == (newer,)
    raw.close()


async def test_an_older_schema_is_brought_up_step_by_step(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open(path, ManualClock())
    await store.commit([Put("a", b"1")])
    await store.close()
    monkeypatch.setattr(
        journal,
        "MIGRATIONS",
        (*journal.MIGRATIONS, ("CREATE TABLE extra (x INTEGER)",), ("INSERT INTO extra VALUES (1)",)),
    )
    assert [e.key for e in (await reopened(path))[0]] == ["a"]
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT x FROM extra").fetchall() == [(1,)]
    assert raw.execute("PRAGMA user_version").fetchone() == (len(journal.MIGRATIONS),)
    raw.close()


async def test_a_file_in_use_is_refused(store: SqliteStore, path: Path) -> None:
    with pytest.raises(errors.FailedPrecondition, match="in use"):
        await SqliteStore.open(path, ManualClock())
    program = (
        "import asyncio, pathlib, sys\n"
        "from skerry.kit.clock import SystemClock\n"
        "from skerry.store.sqlite.store import SqliteStore\n"
        "asyncio.run(SqliteStore.open(pathlib.Path(sys.argv[1]), SystemClock()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "is in use by another process" in done.stderr


async def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.FailedPrecondition, match="cannot be opened"):
        await SqliteStore.open(tmp_path / "missing" / "store.db", ManualClock())


async def test_opening_may_be_cancelled(path: Path) -> None:
    opening = asyncio.ensure_future(SqliteStore.open(path, ManualClock()))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    assert opening.cancelled()
    assert await reopened(path) == ((), 0)


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
@pytest.mark.usefixtures("warm_uvloop")
def test_it_works_on_either_event_loop(path: Path, runner: object) -> None:
    async def use() -> int:
        store = await SqliteStore.open(path, SystemClock())
        async with store.watch("", since=0) as batches:
            await asyncio.gather(*(store.commit([Put(str(n), b"")]) for n in range(50)))
            revision = [(await anext(batches)).revision for _ in range(50)][-1]
        await store.close()
        return revision

    assert runner(use()) == 50  # type: ignore[operator] # asyncio.run or uvloop.run


def test_a_program_that_does_not_close_its_store_ends_all_the_same(path: Path) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from skerry.kit.clock import SystemClock\n"
        "from skerry.store.protocol import Put\n"
        "from skerry.store.sqlite.store import SqliteStore\n"
        "async def main():\n"
        "    store = await SqliteStore.open(pathlib.Path(sys.argv[1]), SystemClock())\n"
        "    print(await store.commit([Put('a', b'1')]))\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr, done.returncode) == (b"1\n", b"", 0)
    assert asyncio.run(reopened(path))[1] == 1

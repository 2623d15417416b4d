"""The runs of servers on a store, and what tells that it was restored from a backup."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.control.events.log import EventLog
from skerry.control.recovery.store_history import ServerRun, StoreHistory, StoreStamp, is_unknown
from skerry.kit import files
from skerry.kit.clock import ManualClock
from skerry.model.settings import EventSettings
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Put


class Place:
    """A data folder with a store, which a test can back up and restore."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self._folder = folder

    async def start(self, server: str = "s1", *, is_alone: bool = True) -> StoreHistory:
        self.clock.advance(1.0)
        history = StoreHistory(
            self.store,
            EventLog(self.store, self.clock, EventSettings()),
            self.clock,
            self._folder / f"{server}.json",
            server=server,
            is_alone=is_alone,
            settle_s=30.0,
        )
        await history.begin()
        return history

    async def write(self) -> int:
        return await self.store.commit([Put("something", b"else")])

    async def back_up(self) -> list[Put]:
        return [Put(entry.key, entry.value) for entry in (await self.store.range("")).entries]

    async def restore(self, backup: list[Put]) -> None:
        """One transaction each, so that runs have revisions in the order in which they began."""
        await self.store.close()
        self.store = MemoryStore(self.clock)
        for put in sorted(backup, key=lambda put: put.key):
            await self.store.commit([put])


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    await place.store.close()


async def test_a_store_that_goes_on_was_not_restored_and_has_forgotten_nothing(place: Place) -> None:
    first = await place.start()
    stamp = first.stamp(await place.write())
    second = await place.start()
    assert not first.is_settling
    assert not second.is_settling
    assert not (await second.forgotten())(stamp)
    assert not (await second.forgotten())(second.stamp(await place.write()))


async def test_a_server_whose_last_run_the_store_does_not_know_lets_it_settle(place: Place) -> None:
    await place.start()
    backup = await place.back_up()
    second = await place.start()
    stamp = second.stamp(await place.write())
    await place.restore(backup)
    third = await place.start()
    assert third.is_settling
    for _ in range(20):
        await place.write()
    assert (await third.forgotten())(stamp)
    place.clock.advance(30.0)
    assert not third.is_settling
    assert not (await place.start()).is_settling, "that was once"


async def test_what_a_run_said_after_its_backup_is_forgotten_also_if_the_store_knows_the_run(
    place: Place,
) -> None:
    first = await place.start()
    before = first.stamp(await place.write())
    backup = await place.back_up()
    for _ in range(5):
        after = first.stamp(await place.write())
    await place.restore(backup)
    second = await place.start()
    for _ in range(20):
        await place.write()
    assert (await second.forgotten())(after)
    assert not (await second.forgotten())(before)


async def test_the_very_first_that_a_run_said_after_its_backup_is_forgotten_too(place: Place) -> None:
    first = await place.start()
    before = first.stamp(await place.write())
    backup = await place.back_up()
    after = first.stamp(before.revision + 1)
    await place.restore(backup)
    second = await place.start()
    await place.write()
    assert (await second.forgotten())(after)
    assert not (await second.forgotten())(before)


async def test_a_store_that_has_not_come_as_far_as_its_server_knew_was_restored(place: Place) -> None:
    first = await place.start("s1", is_alone=False)
    backup = await place.back_up()
    for _ in range(5):
        await place.write()
    await first.save_revision()
    await place.restore(backup)
    assert (await place.start("s1", is_alone=False)).is_settling


async def test_a_new_data_folder_knows_that_its_store_came_from_elsewhere(place: Place) -> None:
    await place.start()
    assert (await place.start("s2")).is_settling
    assert not (await place.start("s3", is_alone=False)).is_settling, "it is one more server on one etcd"


async def test_a_store_of_a_version_without_runs_needs_not_settle(place: Place) -> None:
    await place.write()
    assert not (await place.start()).is_settling


async def test_servers_beside_each_other_do_not_end_each_others_runs(place: Place) -> None:
    first = await place.start("s1", is_alone=False)
    second = await place.start("s2", is_alone=False)
    stamp = first.stamp(await place.write())
    assert not (await second.forgotten())(stamp)
    await place.start("s2", is_alone=False)
    third = await place.start("s3", is_alone=False)
    stamp = first.stamp(await place.write())
    assert not (await third.forgotten())(stamp)


async def test_after_a_restore_servers_that_start_one_after_the_other_do_not_end_each_others_runs(
    place: Place,
) -> None:
    await place.start("s1", is_alone=False)
    await place.start("s2", is_alone=False)
    backup = await place.back_up()
    forgotten = (await place.start("s1", is_alone=False)).stamp(await place.write())
    await place.start("s2", is_alone=False)
    await place.restore(backup)
    first = await place.start("s1", is_alone=False)
    third = await place.start("s3", is_alone=False)
    second = await place.start("s2", is_alone=False)
    assert first.is_settling
    assert second.is_settling, "it was restored, whoever noticed first"
    for _ in range(20):
        stamps = [run.stamp(await place.write()) for run in (first, second, third)]
    later = await place.start("s4", is_alone=False)
    for judge in (first, second, third, later):
        is_forgotten_by = await judge.forgotten()
        assert not any(map(is_forgotten_by, stamps)), "what they order now is not of before the restore"
        assert is_forgotten_by(forgotten)


async def test_servers_that_start_at_once_after_a_restore_do_not_end_each_others_runs(place: Place) -> None:
    await place.start("s1", is_alone=False)
    await place.start("s2", is_alone=False)
    await place.restore([])
    first, second = await asyncio.gather(place.start("s1", is_alone=False), place.start("s2", is_alone=False))
    for run, judge in ((first, second), (second, first)):
        stamp = run.stamp(await place.write())
        assert not (await judge.forgotten())(stamp)


async def test_each_restore_is_noticed(place: Place) -> None:
    await place.start("s1", is_alone=False)
    for _ in range(3):
        backup = await place.back_up()
        forgotten = (await place.start("s1", is_alone=False)).stamp(await place.write())
        await place.restore(backup)
        run = await place.start("s1", is_alone=False)
        assert run.is_settling
        assert (await run.forgotten())(forgotten)


async def test_a_server_stops_cleanly_while_its_store_or_its_disk_is_away(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await place.start()
    await place.write()

    def refuse(path: Path, data: bytes, mode: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(files, "write_atomically", refuse)
    await run.save_revision()
    await place.store.close()
    await run.save_revision()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5)), min_size=1, max_size=8))
def test_what_a_run_said_before_its_server_began_another_is_never_forgotten(
    spans: list[tuple[str, int]],
) -> None:
    """Runs begin one after the other, of three servers; each says something until its server's next."""
    runs: dict[str, tuple[ServerRun, int]] = {}
    current: dict[str, str] = {}
    stamps: list[StoreStamp] = []
    revision = 0
    for number, (server, length) in enumerate(spans):
        revision += 1
        runs[f"r{number}"] = ServerRun(server), revision
        current[server] = f"r{number}"
        for _ in range(length):
            revision += 1
            stamps += [StoreStamp(run, revision) for run in current.values()]
    assert not [stamp for stamp in stamps if is_unknown(stamp, runs, revision)]
    assert is_unknown(StoreStamp("unknown", 1), runs, revision)
    assert is_unknown(StoreStamp("r0", revision + 1), runs, revision)

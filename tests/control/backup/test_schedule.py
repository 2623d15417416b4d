"""Scheduled backups: when they are due, that they are encrypted, kept in number, and tried again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry.control.backup import restore, schedule
from skerry.control.backup.schedule import BackupSchedule, BackupStatus
from skerry.control.backup.targets import FolderTarget
from skerry.control.events.log import EventLog
from skerry.kit import sealed_stream
from skerry.kit.clock import ManualClock
from skerry.kit.sealed_stream import by_passphrase
from skerry.model import errors
from skerry.model.backup_settings import BackupSettings
from skerry.model.settings import EventSettings
from skerry.store.fencing import LeadershipLost
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Expect, Put
from tests.support.backups import CLOUD, backup_service
from tests.support.waiting import eventually

HOURLY = "0 * * * *"
NOON = 1_700_049_600.0  # 2023-11-15 12:00 UTC


def test_a_backup_is_due_at_the_first_time_since_the_last_one() -> None:
    status = BackupStatus(began_at=NOON - 60)
    assert schedule.next_at(status, HOURLY) == NOON
    assert schedule.next_at(replace(status, last_success_at=NOON + 5), HOURLY) == NOON + 3600
    # Several were missed: one is due, at once.
    assert schedule.next_at(replace(status, last_success_at=NOON - 86400), HOURLY) < NOON


def test_one_that_failed_is_tried_again_with_growing_pauses() -> None:
    failed = BackupStatus(began_at=NOON - 60, last_failure_at=NOON + 1, failures=1)
    assert schedule.next_at(failed, HOURLY) == NOON + 61
    assert schedule.next_at(replace(failed, failures=3), HOURLY) == NOON + 241
    assert schedule.next_at(replace(failed, failures=99), HOURLY) == NOON + 3601


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (BackupSettings(schedule="every day", target="/b", plain=True), "backup.schedule"),
        (BackupSettings(schedule=HOURLY, plain=True), "backup.target"),
        (BackupSettings(schedule=HOURLY, target="/b"), "backup.passphrase_file"),
        (BackupSettings(schedule=HOURLY, target="/b", recipient="x"), "backup.recipient"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused_at_the_start(settings: BackupSettings, names: str) -> None:
    with pytest.raises(errors.Invalid, match=names.replace(".", r"\.")):
        schedule.check_settings(settings, NOON)


class Scheduled:
    """A leader with a schedule, whose sleeps advance the clock."""

    def __init__(
        self, folder: Path, store: MemoryStore, clock: ManualClock, settings: BackupSettings
    ) -> None:
        self.store, self.clock, self.slept = store, clock, 0
        events = EventLog(store, clock, EventSettings())
        service = backup_service(store, events, clock, folder / "data")
        self.target = FolderTarget(folder / "backups")
        self.schedule = BackupSchedule(
            store,
            events,
            clock,
            service,
            settings,
            cloud=CLOUD,
            target=lambda: self.target,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.slept += 1
        await asyncio.sleep(0)

    async def kinds(self) -> list[str]:
        entries = (await self.store.range("event/")).entries
        return [entry.value.decode().split('"kind":"')[1].split('"')[0] for entry in entries]

    async def _happened(self, kind: str, number: int) -> bool:
        status = await self.schedule.status()
        is_recorded = status.last_success_at > 0 or kind != "backup.written"
        return is_recorded and (await self.kinds()).count(kind) >= number

    async def lead_until(self, condition: str, number: int) -> None:
        """Lead until an event of this kind was recorded so often."""
        await self.store.commit([Put("leader", b"us")])
        entry = await self.store.get("leader")
        assert entry is not None
        leading = asyncio.create_task(self.schedule.lead(Expect("leader", entry.revision)))
        try:
            await eventually(lambda: self._happened(condition, number))
        finally:
            leading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leading


@pytest.fixture
async def scheduled(tmp_path: Path) -> AsyncIterator[Scheduled]:
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("correct horse\n")
    passphrase.chmod(0o600)
    settings = BackupSettings(
        schedule=HOURLY, target=str(tmp_path / "backups"), keep=2, passphrase_file=str(passphrase)
    )
    clock = ManualClock(NOON + 5)
    store = MemoryStore(clock)
    (tmp_path / "backups").mkdir()
    yield Scheduled(tmp_path, store, clock, settings)
    await store.close()


async def test_backups_are_encrypted_verified_and_kept_in_number(
    scheduled: Scheduled, tmp_path: Path
) -> None:
    others = ["other.backup", "skerry-ba9876543210-20200101T000000Z-1.backup"]
    for name in others:
        (tmp_path / "backups" / name).write_text("of somebody else")
    await scheduled.lead_until("backup.written", 4)
    found = await scheduled.schedule.stored()
    assert 2 <= len(found) <= 3  # the one before the last may not be removed yet
    newest = tmp_path / "backups" / found[-1].name
    with newest.open("rb") as raw:
        assert restore.verify(raw, by_passphrase("correct horse")).is_encrypted
    status = await scheduled.schedule.status()
    assert not status.failures
    assert all((tmp_path / "backups" / name).exists() for name in others), "another cloud writes there, too"


async def test_a_failure_is_an_event_and_the_next_try_succeeds(scheduled: Scheduled, tmp_path: Path) -> None:
    (tmp_path / "backups").rmdir()
    await scheduled.lead_until("backup.failed", 2)
    status = await scheduled.schedule.status()
    assert status.failures >= 1
    assert "is no folder" in status.last_error
    (tmp_path / "backups").mkdir()
    await scheduled.lead_until("backup.written", 1)
    status = await scheduled.schedule.status()
    assert status.failures == 0
    assert status.last_name.startswith(str(tmp_path / f"backups/skerry-{CLOUD}-"))


async def test_a_leader_that_was_replaced_writes_no_record(scheduled: Scheduled) -> None:
    await scheduled.store.commit([Put("leader", b"another")])
    with pytest.raises(LeadershipLost):
        await scheduled.schedule.lead(Expect("leader", 999))


def test_a_passphrase_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "passphrase"
    path.write_text("correct horse\nsecond line\n")
    path.chmod(0o640)
    with pytest.raises(errors.FailedPrecondition, match="chmod 600"):
        schedule.read_passphrase(path)
    path.chmod(0o600)
    assert schedule.read_passphrase(path) == "correct horse"
    assert sealed_stream.check_passphrase("correct horse")

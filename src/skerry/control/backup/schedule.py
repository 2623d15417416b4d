"""Scheduled backups, which the leading server takes.

`decide` is pure: when the next backup is due, by the record of the last ones. A backup that fails is reported
by an event and tried again with growing pauses until it succeeds; the record is in the store, so that the
next leader goes on where this one was. Of those that succeeded, `backup.keep` are kept.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from skerry.control.backup import names
from skerry.control.backup.archive import FileSeal
from skerry.control.backup.service import FAILURES, LAST_BYTES, LAST_SUCCESS, BackupService
from skerry.control.backup.targets import BackupTarget, StoredBackup
from skerry.control.events.log import EventLog
from skerry.control.leadership.election import LeaderElection
from skerry.control.schedules import due_times
from skerry.kit import json_codec, sealed_stream
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.backup_settings import BackupSettings
from skerry.store import fencing
from skerry.store.protocol import Expect, Put, Store

log = structlog.get_logger(__name__)

KEY: Final = "backup-status"
ACTOR: Final = "skerry"
_ZONE: Final = "UTC"
_FIRST_RETRY_S: Final = 60.0
_LAST_RETRY_S: Final = 3600.0
_LONGEST_SLEEP_S: Final = 3600.0  # clocks are put forward


class BackupStatus(msgspec.Struct, frozen=True):
    """The record of scheduled backups. Times are seconds since the epoch; 0: never."""

    began_at: float = 0.0  # when the schedule was first seen
    last_success_at: float = 0.0
    last_name: str = ""
    last_bytes: int = 0
    last_failure_at: float = 0.0
    last_error: str = ""
    failures: int = 0  # since the last success


def next_at(status: BackupStatus, cron: str) -> float:
    """When a backup is due: at the first due time since the last one, and after a failure soon again."""
    since = status.last_success_at or status.began_at
    due = next(due_times.after(cron, _ZONE, since), None)
    assert due is not None, "the expression was checked"
    if not status.failures:
        return due
    pause: float = min(_FIRST_RETRY_S * 2.0 ** min(status.failures - 1, 10), _LAST_RETRY_S)
    return max(due, status.last_failure_at + pause)


def check_settings(settings: BackupSettings, now: float) -> None:
    """Raise `Invalid` if the schedule cannot be kept."""
    if not settings.schedule:
        return
    try:
        due_times.check(settings.schedule, _ZONE, now)
    except errors.Invalid as error:
        raise errors.Invalid(f"backup.schedule: {error.message}", field="backup.schedule") from None
    if not settings.target:
        raise errors.Invalid(
            "backup.schedule is set, and backup.target is not: say where", field="backup.target"
        )
    if not (settings.passphrase_file or settings.recipient or settings.plain):
        raise errors.Invalid(
            "scheduled backups hold the keys of the cloud: set backup.passphrase_file or "
            "backup.recipient, or "
            "backup.plain = true to leave them unencrypted",
            field="backup.passphrase_file",
        )
    if settings.recipient:
        try:
            sealed_stream.check_public(settings.recipient)
        except ValueError as error:
            raise errors.Invalid(f"backup.recipient: {error}", field="backup.recipient") from None


def seal_of(settings: BackupSettings) -> FileSeal | None:
    """How a scheduled backup is encrypted; the passphrase is read each time. Blocking."""
    if settings.recipient:
        return FileSeal(*sealed_stream.seal_for(settings.recipient))
    if settings.passphrase_file:
        try:
            return FileSeal(
                *sealed_stream.seal_by_passphrase(read_passphrase(Path(settings.passphrase_file)))
            )
        except ValueError as error:
            raise errors.FailedPrecondition(
                f"{settings.passphrase_file} (backup.passphrase_file): {error}"
            ) from None
    return None


def read_passphrase(path: Path) -> str:
    """The first line of a file that only its owner can read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise errors.FailedPrecondition(
            f"the passphrase in {path} cannot be read: {error.strerror}"
        ) from None
    with open(descriptor, "rb") as file:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
            raise errors.FailedPrecondition(
                f"{path} holds a passphrase, and others can read it; chmod 600 {path}"
            )
        line = file.read(sealed_stream.MAX_PASSPHRASE + 2).split(b"\n")[0].rstrip(b"\r")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise errors.FailedPrecondition(f"the passphrase in {path} is no text") from None


class BackupSchedule:
    """Takes backups at their times, while this server leads."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        service: BackupService,
        settings: BackupSettings,
        *,
        cloud: str,
        target: Callable[[], BackupTarget],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`cloud` is in the names of its backups; `target` is that of the settings, with the credentials
        as they are now."""
        check_settings(settings, clock.now())
        self._store = store
        self._events = events
        self._clock = clock
        self._service = service
        self._settings = settings
        self._cloud = cloud
        self._target = target
        # The one that is under way: a target that hangs takes one thread, however often it is listed.
        self._listing: asyncio.Task[Sequence[StoredBackup]] | None = None
        self._sleep = sleep
        # Of the last one, or since when they are due; not known before this server leads.
        self.fresh_at = clock.now()

    async def run(self, leader: LeaderElection) -> None:
        """For ever: take backups while `leader` leads."""
        if self._settings.schedule:
            await leader.run_while_leading("backups", self.lead)
        await asyncio.Event().wait()

    async def lead(self, fence: Expect) -> None:
        """For ever, as the leader."""
        status = await self.status()
        if not status.began_at:
            status = replace(status, began_at=self._clock.now())
            await self._save(status, fence)
        LAST_SUCCESS.set(status.last_success_at)
        LAST_BYTES.set(status.last_bytes)
        while True:
            self.fresh_at = status.last_success_at or status.began_at
            wait_s = next_at(status, self._settings.schedule) - self._clock.now()
            if wait_s > 0:
                await self._sleep(min(wait_s, _LONGEST_SLEEP_S))
                continue
            status = await self._take(status)
            await self._save(status, fence)
            if not status.failures:
                await self._remove_old()

    async def status(self) -> BackupStatus:
        entry = await self._store.get(KEY)
        return BackupStatus() if entry is None else json_codec.decode(entry.value, BackupStatus)

    async def stored(self) -> Sequence[StoredBackup]:
        """Those that are at the target, the oldest first."""
        if self._listing is None or self._listing.done():
            self._listing = asyncio.create_task(self._list())
        return await asyncio.shield(self._listing)

    async def _list(self) -> Sequence[StoredBackup]:
        return await self._target().list(self._cloud)

    async def _save(self, status: BackupStatus, fence: Expect) -> None:
        await fencing.commit(self._store, [Put(KEY, json_codec.encode(status))], fence=fence)

    async def _take(self, status: BackupStatus) -> BackupStatus:
        begun = self._clock.now()
        try:
            seal = await asyncio.to_thread(seal_of, self._settings)
            done = None
            steps = self._service.write(
                self._target(),
                lambda content: names.name_of(self._cloud, content.header),
                seal,
                actor=ACTOR,
            )
            async for step in steps:
                done = step
            assert done is not None, "the last step is `done`"
        except (errors.SkerryError, OSError) as error:
            message = error.message if isinstance(error, errors.SkerryError) else str(error)
            log.warning("backup.failed", error=message, failures=status.failures + 1)
            FAILURES.inc()
            await self._events.record(
                "backup.failed", f"backup/{self._settings.target}", actor=ACTOR, reason=message
            )
            return replace(
                status, last_failure_at=self._clock.now(), last_error=message, failures=status.failures + 1
            )
        return replace(
            status,
            last_success_at=begun,
            last_name=done.name,
            last_bytes=done.bytes,
            failures=0,
            last_error="",
        )

    async def _remove_old(self) -> None:
        """Remove all but the newest that are kept; what cannot be removed is tried after the next backup."""
        try:
            target = self._target()
            for old in (await self.stored())[: -self._settings.keep]:
                await target.delete(old.name)
                log.info("backup.removed", name=target.describe(old.name), keep=self._settings.keep)
        except (errors.SkerryError, OSError) as error:
            log.warning("backup.not_removed", error=str(error))

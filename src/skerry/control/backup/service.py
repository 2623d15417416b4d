"""Backups of this server: streamed to a client, or written to a target and read back. One at a time.

`skerry.control.backup.sources` has what is in one, `skerry.control.backup.targets` where it goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager

import msgspec
import structlog

from skerry.control.backup.archive import FileSeal
from skerry.control.backup.sources import BackupContent, BackupSource
from skerry.control.backup.targets import BackupTarget, WrittenBackup
from skerry.control.events.log import EventLog
from skerry.kit import metrics, sealed_stream, tasks
from skerry.kit.clock import Clock
from skerry.model import errors

log = structlog.get_logger(__name__)

_REPORT_S = 1.0

LAST_SUCCESS = metrics.gauge(
    "skerry_backup_last_success_timestamp_seconds",
    "When the last backup was written and read back by this server, or by another for the schedule; 0: never",
)
LAST_BYTES = metrics.gauge("skerry_backup_last_bytes", "Size of that backup")
FAILURES = metrics.counter("skerry_backup_failures_total", "Backups of this server that failed")


class BackupProgress(msgspec.Struct, frozen=True):
    """Where a backup is: `writing` or `verifying` so many bytes, or `done`."""

    step: str
    bytes: int
    name: str = ""
    records: int = 0
    revision: int = 0
    missing_code: tuple[str, ...] = ()
    missing_files: tuple[str, ...] = ()


class BackupService:
    """Takes backups."""

    def __init__(self, source: BackupSource, events: EventLog, clock: Clock) -> None:
        self._source = source
        self._events = events
        self._clock = clock
        self._busy = asyncio.Lock()

    async def stream(self, actor: str) -> AsyncGenerator[bytes, None]:
        """The bytes of a backup that is not encrypted, for a client that does the rest."""
        async with self._alone(), self._source.open() as content:
            await self._events.record(
                "backup.sent",
                "backup/stream",
                actor=actor,
                revision=str(content.header.revision),
            )
            log.info("backup.sent", actor=actor, revision=content.header.revision)
            async with aclosing(_in_thread(content.write(None))) as parts:
                async for part in parts:
                    yield part

    async def write(
        self,
        target: BackupTarget,
        name: Callable[[BackupContent], str],
        seal: FileSeal | None,
        *,
        actor: str,
    ) -> AsyncGenerator[BackupProgress, None]:
        """Write a backup to `target` under a name and read it back; steps as they come, the last one
        `done`."""
        async with self._alone(), self._source.open() as content:
            chosen = name(content)
            counted = {"writing": 0, "verifying": 0}
            task = asyncio.ensure_future(self._write(target, chosen, content, seal, counted))
            try:
                while not task.done():
                    await asyncio.wait([task], timeout=_REPORT_S)
                    step = "verifying" if counted["verifying"] else "writing"
                    yield BackupProgress(step, counted[step])
                done = task.result()
            finally:
                await tasks.cancel_and_wait([task])
            at, manifest = content.header.created_at, done.verified.manifest
            LAST_SUCCESS.set(at)
            LAST_BYTES.set(done.bytes)
            whole = target.describe(chosen)
            await self._events.record(
                "backup.written",
                f"backup/{whole}",
                actor=actor,
                bytes=str(done.bytes),
                revision=str(content.header.revision),
            )
            log.info(
                "backup.written", name=whole, bytes=done.bytes, revision=content.header.revision, actor=actor
            )
            yield BackupProgress(
                "done",
                done.bytes,
                whole,
                sum(manifest.records.values()),
                content.header.revision,
                manifest.missing_code,
                manifest.missing_files,
            )

    async def _write(
        self,
        target: BackupTarget,
        name: str,
        content: BackupContent,
        seal: FileSeal | None,
        counted: dict[str, int],
    ) -> WrittenBackup:
        def count(step: str) -> Callable[[int], None]:
            def add(amount: int) -> None:
                counted[step] += amount

            return add

        unlock = None if seal is None else sealed_stream.by_key(seal.key)
        async with aclosing(_in_thread(content.write(seal))) as parts:
            return await target.write(name, parts, unlock, written=count("writing"), read=count("verifying"))

    @asynccontextmanager
    async def _alone(self) -> AsyncGenerator[None, None]:
        if self._busy.locked():
            raise errors.Overloaded(
                "another backup is being taken by this server; try again when it has ended"
            )
        async with self._busy:
            yield


async def _in_thread(parts: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    """`parts`, each made in a thread."""
    while (part := await tasks.in_thread(next, parts, None)) is not None:
        yield part

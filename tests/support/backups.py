"""Backups without a whole Skerry: the source on a folder with few files, and code that is all there."""

from __future__ import annotations

from pathlib import Path

from skerry.control.backup.schedule import BackupSchedule
from skerry.control.backup.service import BackupService
from skerry.control.backup.sources import BackupSource
from skerry.control.backup.targets import BackupTarget, FolderTarget
from skerry.control.events.log import EventLog
from skerry.kit.clock import Clock
from skerry.model.backup_settings import BackupSettings
from skerry.model.ids import Digest
from skerry.store.protocol import Store
from skerry.wire.own.backups import BackupContext

CLOUD = "0123456789ab"  # in the names of scheduled backups


class HeldCode:
    """A `CodeHolder` that has the archives of `present`, and knows which are held."""

    def __init__(self, *present: Digest) -> None:
        self._present = present
        self.holds: list[Digest] = []

    def hold(self, digest: Digest) -> None:
        self.holds.append(digest)

    def release(self, digest: Digest) -> None:
        self.holds.remove(digest)

    def has_archive(self, digest: Digest) -> bool:
        return digest in self._present


def backup_service(store: Store, events: EventLog, clock: Clock, folder: Path) -> BackupService:
    """Backups of `store`, and of a folder that is created with an identity."""
    (folder / "pki").mkdir(parents=True)
    (folder / "node.id").write_text("01kb3k2v8x1w0d5q0m8s6n4r2t\n")
    (folder / "pki/ca.key").write_bytes(b"key")
    source = BackupSource(
        store, clock, folder, HeldCode(), server="us", kind="sqlite", cloud=lambda: "f" * 64
    )
    return BackupService(source, events, clock)


def backup_context(
    store: Store, events: EventLog, clock: Clock, settings: BackupSettings, folder: Path
) -> BackupContext:
    """What the endpoints of backups need; objects of S3 are files of `folder`."""
    service = backup_service(store, events, clock, folder / "data")
    target = folder / "target"
    target.mkdir()

    def bucket(name: str, prefix: str) -> BackupTarget:
        return FolderTarget(target)

    schedule = BackupSchedule(
        store, events, clock, service, settings, cloud=CLOUD, target=lambda: FolderTarget(target)
    )
    return BackupContext(service, schedule, settings, bucket)

"""Backups of this process: on request of an admin, and by the schedule while this server leads.

Called by `skerry.daemon.server_role`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from skerry.control.backup import names, targets
from skerry.control.backup.schedule import BackupSchedule
from skerry.control.backup.service import BackupService
from skerry.control.backup.sources import BackupSource
from skerry.control.backup.targets import BackupTarget, BucketTarget
from skerry.control.leadership.election import LeaderElection
from skerry.control.snapshots.object_stores import StoreSource
from skerry.daemon.server_base import ServerBase
from skerry.functions.registry.code_store import CodeStore
from skerry.model.snapshots import ObjectStore
from skerry.node.volumes.s3_client import S3Client
from skerry.node.volumes.s3_uploads import S3Bucket
from skerry.wire.own.backups import BackupContext


def start(base: ServerBase, leader: LeaderElection, code: CodeStore) -> BackupContext:
    """Begin to keep the schedule."""
    settings = base.settings
    store = StoreSource(settings.snapshots)
    source = BackupSource(
        base.store,
        base.clock,
        base.folder,
        code,
        server=base.node,
        kind="sqlite" if base.is_alone else "etcd",
        cloud=lambda: base.authority.fingerprint,
    )

    @asynccontextmanager
    async def connect(at: ObjectStore) -> AsyncIterator[S3Bucket]:
        async with S3Client(at, base.clock) as client:
            yield S3Bucket(client)

    def bucket(name: str, prefix: str) -> BackupTarget:
        return BucketTarget(replace(store.get(), bucket=name, prefix=""), prefix, connect)

    service = BackupService(source, base.events, base.clock)
    schedule = BackupSchedule(
        base.store,
        base.events,
        base.clock,
        service,
        settings.backup,
        cloud=names.cloud_of(base.authority),
        target=lambda: targets.target_of(settings.backup.target, store.get, connect),
    )
    base.loops.forever("backups", lambda: schedule.run(leader))
    return BackupContext(service, schedule, settings.backup, bucket)

"""Executes the tasks of operations on volumes: snapshots, restores and moves, as a server asks for them.

Each task comes over a tunnel of its own (`skerry.node.agent.instances.tunnel_handler`), reports its progress
there, and ends with it. A task that is asked for again goes on where it was interrupted, or finds that it is
done. Of two tasks of one operation the newer counts: the older belongs to a server that no longer leads. What
is decided is not decided here (`skerry.control.snapshots`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, NoReturn, Protocol

import msgspec
import structlog

from skerry.kit import files
from skerry.kit.clock import Clock
from skerry.kit.tasks import cancel_and_wait, race
from skerry.model import errors
from skerry.model.ids import VolumeId
from skerry.model.snapshot_settings import SnapshotSettings
from skerry.model.snapshots import SnapshotLocation
from skerry.model.streams import TunnelStream
from skerry.model.volume_tasks import (
    TaskChannel,
    TaskFrame,
    TaskProgress,
    TaskResult,
    VolumeAction,
    VolumeTask,
)
from skerry.model.volumes import VolumeOrder
from skerry.node.volumes import freezing, image_files, transfers
from skerry.node.volumes.manifests import ImageManifest
from skerry.node.volumes.node_snapshots import ImageChunks, NodeSnapshots
from skerry.node.volumes.operation_folders import OperationFolder, OperationFolders
from skerry.node.volumes.records import VolumeRecord
from skerry.node.volumes.s3_client import S3Client
from skerry.node.volumes.s3_store import S3Store
from skerry.node.volumes.snapshot_store import FolderStore, SnapshotReader, SnapshotStore
from skerry.node.volumes.work_progress import WorkProgress

log = structlog.get_logger(__name__)

_PROGRESS_S: Final = 1.0
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class VolumeImages(Protocol):
    """The part of `skerry.node.volumes.store.VolumeStore` that is needed here. All of it blocks."""

    def record(self, id: VolumeId) -> VolumeRecord: ...

    def has(self, id: VolumeId) -> bool: ...

    def image(self, id: VolumeId) -> Path: ...

    def is_used(self, id: VolumeId) -> bool: ...

    def mounted(self, id: VolumeId) -> AbstractContextManager[int]: ...

    def install(self, order: VolumeOrder, image: Path) -> None: ...

    def apply(self, order: VolumeOrder) -> None: ...


class VolumeTaskHandler:
    """The tasks of this node. `open` comes first."""

    def __init__(
        self,
        volumes: VolumeImages,
        folder: Path,
        settings: SnapshotSettings,
        clock: Clock,
        *,
        failpoint: Callable[[str], None] = lambda step: None,
    ) -> None:
        """Snapshots and unfinished operations are in `folder`, on the file system of the volumes. `failpoint`
        is called after every step that a crash may follow."""
        self._volumes = volumes
        self._settings = settings
        self._clock = clock
        self._failpoint = failpoint
        self._operations = OperationFolders(folder / "volume-operations")
        self._snapshots = NodeSnapshots(folder / "snapshots")
        self._running: dict[str, asyncio.Task[None]] = {}

    def open(self) -> None:
        """Thaw what a killed agent left frozen, and remove what nobody continues. Blocks."""
        self._operations.remove_abandoned()
        for operation in self._operations.all():
            volume = VolumeId(operation.frozen_volume())
            if not volume:
                continue
            try:
                with self._volumes.mounted(volume) as mount:
                    if freezing.thaw(mount):
                        log.warning("volume.thawed", volume=volume)
            except (errors.SkerryError, OSError) as error:
                log.error("volume.not_thawed", volume=volume, error=str(error))
                continue
            operation.thawed()

    async def close(self) -> None:
        """End what runs; the next agent goes on."""
        await cancel_and_wait(list(self._running.values()))

    async def handle(self, task: VolumeTask, tunnel: TunnelStream) -> None:
        """Execute `task` to its end. Raises the error to send, and ends with the tunnel."""
        if (earlier := self._running.get(task.operation)) is not None:
            await cancel_and_wait([earlier])
        running = asyncio.ensure_future(self._execute(task, tunnel))
        self._running[task.operation] = running
        try:
            await asyncio.wait([running])
        finally:
            await cancel_and_wait([running])
            if self._running.get(task.operation) is running:
                del self._running[task.operation]
        if running.cancelled():
            raise errors.Unavailable("the task was ended; a newer one of its operation began")
        running.result()

    async def _execute(self, task: VolumeTask, tunnel: TunnelStream) -> None:
        progress = WorkProgress()
        try:
            result = await race(self._run(task, tunnel, progress), _report(tunnel, progress))
        except TimeoutError as error:
            raise errors.FailedPrecondition(
                f"copying the volume stops its writers for more than {self._settings.freeze_s:g} s; stop "
                "them and try again, or raise the setting snapshots.freeze_s of the node"
            ) from error
        except OSError as error:
            raise _as_error(error) from error
        await tunnel.send(TaskFrame(TaskChannel.RESULT, msgspec.json.encode(result)).pack())

    async def _run(self, task: VolumeTask, tunnel: TunnelStream, progress: WorkProgress) -> TaskResult:
        operation = self._operations.of(task.operation)
        match task.action:
            case VolumeAction.SNAPSHOT:
                return await self._snapshot(task, operation, progress)
            case VolumeAction.DELETE_SNAPSHOT:
                await self._store(task).remove(task.snapshot)
                await asyncio.to_thread(operation.discard)
            case VolumeAction.DISCARD_SNAPSHOT:
                if task.location is not SnapshotLocation.FOLDER or self._settings.folder:
                    await self._store(task).remove(task.snapshot)
                await asyncio.to_thread(operation.discard)
            case VolumeAction.SEND_VOLUME:
                await self._send_volume(task, operation, tunnel, progress)
            case VolumeAction.SEND_SNAPSHOT:
                manifest = await self._snapshots.manifest(task.snapshot)
                async with _opened(self._snapshots, task.snapshot, manifest) as reader:
                    await transfers.send(tunnel, manifest, reader)
            case VolumeAction.RECEIVE:
                self._check_outdated(task)
                manifest = await transfers.receive(tunnel, operation, task.digest, progress, self._failpoint)
                return _result(manifest)
            case VolumeAction.FETCH:
                self._check_outdated(task)
                return await self._fetch(task, operation, progress)
            case VolumeAction.INSTALL:
                await progress.run(self._install, task, operation)
            case VolumeAction.DISCARD:
                await asyncio.to_thread(operation.discard)
            case VolumeAction.REMOVE:
                await progress.run(self._remove, task)
                await asyncio.to_thread(operation.discard)
        return TaskResult()

    def _store(self, task: VolumeTask) -> SnapshotStore:
        match task.location:
            case SnapshotLocation.NODE:
                return self._snapshots
            case SnapshotLocation.FOLDER:
                if not self._settings.folder:
                    raise errors.FailedPrecondition(
                        "this node has no folder for snapshots; set snapshots.folder on it, or choose "
                        "another place"
                    )
                return FolderStore(Path(self._settings.folder))
            case SnapshotLocation.S3:
                store = task.store
                if store is None:
                    raise errors.FailedPrecondition("the server sent no store for snapshots")
                return S3Store(lambda: S3Client(store, self._clock))

    # Snapshots

    async def _snapshot(
        self, task: VolumeTask, operation: OperationFolder, progress: WorkProgress
    ) -> TaskResult:
        store = self._store(task)
        try:
            manifest = await store.manifest(task.snapshot)
        except errors.NotFound:
            manifest = await self._copied(task, operation, progress)
            self._failpoint("snapshot.scanned")
            await store.write(task.snapshot, operation, manifest, progress)
            self._failpoint("snapshot.stored")
        await asyncio.to_thread(operation.discard)
        return _result(manifest)

    async def _copied(
        self, task: VolumeTask, operation: OperationFolder, progress: WorkProgress
    ) -> ImageManifest:
        """The manifest of the copy of the volume, which is in `operation`."""
        await asyncio.to_thread(operation.make)
        manifest = await asyncio.to_thread(operation.manifest)
        if manifest is not None:
            return manifest
        if not operation.image.exists():
            await asyncio.to_thread(operation.restart)
            await progress.run(self._copy, task.volume, operation, progress)
        self._failpoint("snapshot.copied")
        taken_at = operation.image.stat().st_mtime
        manifest = await progress.run(image_files.scan, operation.image, taken_at, progress)
        await asyncio.to_thread(operation.save_manifest, manifest)
        return manifest

    def _copy(self, volume: VolumeId, operation: OperationFolder, progress: WorkProgress) -> None:
        """Copy the image of `volume` while its writers wait."""
        image = self._volumes.image(volume)
        needed, spare = image_files.written_bytes(image), files.spare_bytes(operation.path)
        if needed > spare:
            raise errors.ResourcesExhausted(
                f"the copy needs {needed >> 20} MB, and the disk of the node has {max(0, spare) >> 20} MB to "
                "spare; free some"
            )
        is_used = self._volumes.is_used(volume)
        with operation.freezing(volume), self._volumes.mounted(volume) as mount:
            try:
                with freezing.frozen(mount):
                    self._failpoint("snapshot.frozen")
                    taken_at = self._clock.now()
                    progress.limit(self._settings.freeze_s if is_used else None)
                    image_files.copy(image, operation.part, progress)
            except BaseException:
                progress.limit(None)
                operation.thawed()
                operation.restart()
                raise
        progress.limit(None)
        os.utime(operation.part, (taken_at, taken_at))
        operation.complete()

    # Restores and moves

    async def _send_volume(
        self, task: VolumeTask, operation: OperationFolder, tunnel: TunnelStream, progress: WorkProgress
    ) -> None:
        image = await asyncio.to_thread(self._unused_image, task.volume)
        await asyncio.to_thread(operation.make)
        manifest = await asyncio.to_thread(_fresh_manifest, operation, image)
        if manifest is None:
            manifest = await progress.run(image_files.scan, image, self._clock.now(), progress)
            await asyncio.to_thread(operation.save_manifest, manifest)
        self._failpoint("send.scanned")
        reader = ImageChunks(image, manifest)
        try:
            await transfers.send(tunnel, manifest, reader)
        finally:
            await reader.close()

    def _unused_image(self, volume: VolumeId) -> Path:
        record = self._volumes.record(volume)
        if self._volumes.is_used(volume):
            raise errors.Unavailable(f"volume {record.name} is still in use on its node")
        return self._volumes.image(volume)

    def _check_outdated(self, task: VolumeTask) -> None:
        """Refuse a copy that could not be installed: the node has what this operation or a later one
        installed, and the store of the server was restored from a backup of before."""
        if self._volumes.has(task.volume) and self._volumes.record(task.volume).generation >= task.generation:
            raise errors.FailedPrecondition(
                f"volume {task.name} was installed on this node by this operation, or changed by a later one"
            )

    async def _fetch(
        self, task: VolumeTask, operation: OperationFolder, progress: WorkProgress
    ) -> TaskResult:
        store = self._store(task)
        manifest = await store.manifest(task.snapshot)
        if task.digest and manifest.digest != task.digest:
            raise errors.FailedPrecondition(
                "the data of the snapshot are not those that were stored: their digest is another"
            )
        async with _opened(store, task.snapshot, manifest) as reader:
            await transfers.build(operation, manifest, reader, progress, self._failpoint)
        return _result(manifest)

    def _install(self, task: VolumeTask, operation: OperationFolder) -> None:
        if operation.image.exists():
            self._volumes.install(_order(task), operation.image)
            self._failpoint("install.installed")
        elif not self._volumes.has(task.volume) or (
            self._volumes.record(task.volume).generation < task.generation
        ):
            raise errors.NotFound("the copy is not on this node any more; it is made again")
        operation.discard()

    def _remove(self, task: VolumeTask) -> None:
        if not self._volumes.has(task.volume):
            return
        if self._volumes.record(task.volume).generation > task.generation:
            return  # it came back by a later operation
        self._volumes.apply(msgspec.structs.replace(_order(task), is_deleted=True))
        self._failpoint("remove.removed")


def _order(task: VolumeTask) -> VolumeOrder:
    return VolumeOrder(task.volume, task.name, task.namespace, task.size, task.generation, may_create=False)


def _result(manifest: ImageManifest) -> TaskResult:
    return TaskResult(manifest.digest, manifest.data_bytes, manifest.image_bytes, manifest.taken_at)


def _fresh_manifest(operation: OperationFolder, image: Path) -> ImageManifest | None:
    """The manifest of an earlier try, unless the image was written since."""
    manifest = operation.manifest()
    if manifest is None or image.stat().st_mtime >= manifest.taken_at:
        return None
    return manifest


def _as_error(error: OSError) -> errors.SkerryError:
    if error.errno in _FULL:
        return errors.ResourcesExhausted("the disk of the node has no room for the copy; free some")
    return errors.Unavailable(
        f"the node cannot copy the volume: {error.strerror or error}", detail=repr(error)
    )


async def _report(tunnel: TunnelStream, progress: WorkProgress) -> NoReturn:
    """Send the progress for ever; raises if the tunnel breaks."""
    while True:
        await asyncio.sleep(_PROGRESS_S)
        await tunnel.send(TaskProgress(progress.done, progress.total).frame().pack())


@asynccontextmanager
async def _opened(
    store: SnapshotStore, snapshot: str, manifest: ImageManifest
) -> AsyncIterator[SnapshotReader]:
    reader = await store.open(snapshot, manifest)
    try:
        yield reader
    finally:
        with contextlib.suppress(OSError):
            await reader.close()

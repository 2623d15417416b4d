"""The volumes of this node: created and removed as ordered, and mounted for containers.

Used by `skerry.node.volumes.volumes`, which gets the orders and serves `skerry.node.containers.mounts`. A
volume is removed by an order to delete it and by nothing else, also if no server knows it, and never while it
is mounted.
Methods block and belong in a thread; those on one volume wait for each other.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import structlog
from msgspec.structs import replace

from skerry.kit import files
from skerry.model import errors
from skerry.model.ids import VolumeId
from skerry.model.volumes import VolumeOrder, VolumeUsage
from skerry.node.volumes import file_systems
from skerry.node.volumes.records import VolumeRecord, VolumeRecords

log = structlog.get_logger(__name__)

_GIGABYTE: Final = 1024**3
_TRIAL: Final = 16 * 1024**2
_BLOCK: Final = 512


class VolumeStore:
    """Volumes in one folder. `open` comes first."""

    def __init__(
        self,
        folder: Path,
        *,
        now: Callable[[], float],
        bytes_per_gb: int = _GIGABYTE,
        failpoint: Callable[[str], None] = lambda step: None,
    ) -> None:
        """Tests have smaller gigabytes. `failpoint` is called after every step that a crash may follow."""
        self._records = VolumeRecords(folder)
        self._now = now
        self._bytes_per_gb = bytes_per_gb
        self._failpoint = failpoint
        self._volumes: dict[VolumeId, VolumeRecord] = {}
        self._locks: dict[VolumeId, threading.RLock] = {}
        self._guard = threading.Lock()

    def open(self) -> None:
        """Load the volumes, and remove what a killed agent left half created or half removed."""
        self._volumes = {record.id: record for record in self._records.load()}
        if self._volumes:
            log.info("volumes.adopted", count=len(self._volumes))

    def probe_failure(self) -> str:
        """Create and mount one for a trial; why that failed, or empty."""
        draft = self._records.draft(VolumeId("trial"))
        try:
            file_systems.make(draft.image, _TRIAL)
        except (OSError, errors.SkerryError) as error:
            return str(error)
        finally:
            self._records.discard(draft)
        return ""

    def ids(self) -> list[VolumeId]:
        """Every volume, by id."""
        return sorted(self._volumes)

    def record(self, id: VolumeId) -> VolumeRecord:
        """Raises NotFound."""
        record = self._volumes.get(id)
        if record is None:
            raise errors.NotFound(f"this node has no volume {id}")
        return record

    def has(self, id: VolumeId) -> bool:
        return id in self._volumes

    def loss(self, id: VolumeId) -> str:
        """Why the data of a volume that has a record are lost; empty if they are there."""
        image = self._records.paths(id).image
        if id not in self._volumes or image.exists():
            return ""
        return f"its file {image} is gone; put it back there, or delete the volume"

    def apply(self, order: VolumeOrder) -> None:
        """Create, keep or delete a volume, as ordered; durable on return. Idempotent. Raises Conflict for an
        order that is older than the last, FailedPrecondition if the volume is lost or in use,
        ResourcesExhausted and Unavailable."""
        with self.lock(order.id):
            record = self._volumes.get(order.id)
            if record is not None and order.generation < record.generation:
                raise _outdated(order, record)
            if order.is_deleted:
                self._delete(order)
            elif record is None:
                self._create(order)
            else:
                self._update(record, order)

    def _create(self, order: VolumeOrder) -> None:
        if not order.may_create:
            raise errors.FailedPrecondition(
                f"volume {order.name} is not on this node any more: its file is gone from "
                f"{self._records.folder}; put it back there, or delete the volume"
            )
        if self._records.paths(order.id).folder.exists():
            raise errors.FailedPrecondition(
                f"the record of volume {order.name} cannot be read: see "
                f"{self._records.paths(order.id).folder}"
            )
        record = VolumeRecord(
            order.id,
            order.name,
            order.namespace,
            order.size,
            order.generation,
            self._now(),
            order.receipt,
        )
        draft = self._records.draft(order.id)
        try:
            self._failpoint("create.drafted")
            file_systems.make(draft.image, order.size * self._bytes_per_gb)
            self._failpoint("create.made")
            self._records.publish(draft, record)
        except BaseException:
            self._records.discard(draft)
            raise
        self._failpoint("create.published")
        self._volumes[order.id] = record
        log.info("volume.created", volume=order.id, name=order.name, size_gb=order.size)

    def _update(self, record: VolumeRecord, order: VolumeOrder) -> None:
        after = replace(
            record,
            name=order.name,
            namespace=order.namespace,
            generation=order.generation,
            receipt=order.receipt or record.receipt,
        )
        if after != record:
            self._records.save(after)
            self._volumes[order.id] = after

    def install(self, order: VolumeOrder, image: Path) -> None:
        """Make `image`, a whole and synced file on the file system of the volumes, the data of the volume,
        in place of those it has; durable on return. Raises as `apply` does, and Unavailable while it is in
        use."""
        with self.lock(order.id):
            record = self._volumes.get(order.id)
            if record is not None and order.generation < record.generation:
                raise _outdated(order, record)
            if record is None:
                draft = self._records.draft(order.id)
                os.rename(image, draft.image)
                self._failpoint("install.renamed")
                record = VolumeRecord(
                    order.id, order.name, order.namespace, order.size, order.generation, self._now()
                )
                self._records.publish(draft, record)
            else:
                is_here = self.image(order.id).exists()  # else it was lost, and this brings it back
                if is_here and not file_systems.wait_until_unused(self.image(order.id)):
                    raise errors.Unavailable(f"volume {order.name} is still used by a container of this node")
                os.rename(image, self.image(order.id))
                files.sync_folder(self.folder(order.id))
                self._failpoint("install.renamed")
                record = replace(record, generation=order.generation)
                self._records.save(record)
            self._volumes[order.id] = record
            log.info("volume.installed", volume=order.id, name=order.name, generation=order.generation)

    def _delete(self, order: VolumeOrder) -> None:
        paths = self._records.paths(order.id)
        is_here = order.id in self._volumes and paths.image.exists()
        if is_here and not file_systems.wait_until_unused(paths.image):
            raise errors.FailedPrecondition(
                f"volume {order.name} is mounted by a container of this node; it is removed when that ends"
            )
        self._failpoint("delete.unused")
        self._records.remove(order.id)
        self._failpoint("delete.removed")
        if self._volumes.pop(order.id, None) is not None:
            log.info("volume.deleted", volume=order.id, name=order.name)

    def mount(self, id: VolumeId, *, read_only: bool = False, exclusive: bool = False) -> int:
        """A descriptor of a detached mount for a container; the caller closes it. With `exclusive`, no other
        container may have it. Raises NotFound, Unavailable."""
        with self.lock(id):
            record, image = self.record(id), self.image(id)
            if exclusive and not file_systems.wait_until_unused(image):
                raise errors.Unavailable(
                    f"volume {record.name} is still used by another container of this node; it is mounted "
                    "when that has ended"
                )
            try:
                return file_systems.mount(image, read_only=read_only)
            except FileNotFoundError as error:
                raise errors.Unavailable(f"the file of volume {record.name} is gone: {image}") from error
            except errors.Unavailable as error:
                raise errors.Unavailable(
                    f"volume {record.name}: {error.message}", detail=error.detail
                ) from error

    @contextlib.contextmanager
    def mounted(self, id: VolumeId) -> Iterator[int]:
        """A detached mount of it while the context lasts, whether or not containers have it."""
        mounted = self.mount(id)
        try:
            yield mounted
        finally:
            os.close(mounted)

    def image(self, id: VolumeId) -> Path:
        """The file with its file system. Raises NotFound."""
        self.record(id)
        return self._records.paths(id).image

    def folder(self, id: VolumeId) -> Path:
        """The folder of a volume, which goes with it; other modules have files of their own there. Raises
        NotFound."""
        self.record(id)
        return self._records.paths(id).folder

    def is_used(self, id: VolumeId) -> bool:
        """True if it is mounted. Raises NotFound, OSError."""
        return file_systems.is_used(self.image(id))

    def usage(self, id: VolumeId) -> VolumeUsage:
        """How full it is. Raises NotFound, OSError, Unavailable."""
        with self.lock(id):
            return file_systems.usage(self.image(id))

    def disk_bytes(self) -> int:
        """What all volumes occupy on the disk of the node."""
        total = 0
        for id in self.ids():
            with contextlib.suppress(OSError, errors.NotFound):
                total += os.stat(self.image(id)).st_blocks * _BLOCK
        return total

    @contextlib.contextmanager
    def lock(self, id: VolumeId) -> Iterator[None]:
        """Nobody else creates, deletes, mounts or measures the volume while the context lasts. The thread
        that has the lock may take it again."""
        with self._guard:
            lock = self._locks.setdefault(id, threading.RLock())
        with lock:
            yield


def _outdated(order: VolumeOrder, record: VolumeRecord) -> errors.Conflict:
    return errors.Conflict(
        f"the order for volume {order.name} has generation {order.generation}, and {record.generation} was "
        "ordered before"
    )

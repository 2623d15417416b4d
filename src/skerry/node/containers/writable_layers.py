"""Writable layers of containers and their disk limits, enforced by the kernel.

A layer is a folder with `upper`, which contains the files, and `work`, which the overlay needs beside it;
`skerry.node.containers.overlays` mounts it. A limit is enforced by a project quota where the file system of
the node supports them (`quotas`), else by a disk image of that size (`disk_images`), which is mounted at the
layer while the container runs. Layers of guests share one disk image per contract, whatever the node
supports. Usage is the kernel's own count.

Where the kernel supports neither, `kind` says so, and the caller decides whether that is acceptable. Then the
size has to be measured now and then, and containers over their limit stopped: nothing here runs by itself. A
container can exceed that, by what it writes between two measurements and by unlinked files.
"""

from __future__ import annotations

import enum
import errno
import os
import threading
from collections.abc import Set
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from skerry.model import errors
from skerry.node.containers import disk_images, overlays, tree_size
from skerry.node.containers.disk_image_pool import DiskImagePool
from skerry.node.containers.disk_images import BYTES_PER_INODE, DiskImages
from skerry.node.containers.quotas import ProjectQuotas
from skerry.node.kernel import mount_flags, namespaces, thread_syscalls

log = structlog.get_logger(__name__)

_FILE_SYSTEMS: Final = "filesystems"
_SUFFIX: Final = ".ext4"
_TRIAL: Final = ".quota-trial"
_TRIAL_LIMIT: Final = 256 * 1024
_LEAST_INODES: Final = 64
_CAP_SYS_RESOURCE: Final = 24
_MEASURING_S: Final = 10.0
_REFUSALS: Final = frozenset({errno.EDQUOT, errno.ENOSPC})
# Errors of the kernel for a damaged file system; EBUSY is for one that it made read-only for that.
_DAMAGED: Final = frozenset({errno.EUCLEAN, errno.EIO, errno.EINVAL, errno.EROFS, errno.EBUSY})


class DiskLimitKind(enum.StrEnum):
    """How a disk limit is enforced."""

    QUOTA = "quota"  # the kernel refuses further writes
    FILE_SYSTEM = "filesystem"  # the file system is full
    MEASURED = "measured"  # the size is measured now and then, and the container stopped
    NONE = "none"


class SharedDisk(NamedTuple):
    """A disk image that several layers share, with one limit for all of them."""

    name: str  # of the leased cell
    limit_bytes: int

    def part(self, limit_bytes: int | None) -> int | None:
        """The size of the inner disk image of a layer with that limit; None if it has none, since it may use
        all."""
        return limit_bytes if limit_bytes is not None and limit_bytes < self.limit_bytes else None


class OpenLayer(NamedTuple):
    """A layer that can be mounted as part of an overlay."""

    kind: DiskLimitKind
    is_new: bool = False  # it was empty: earlier content was lost with an earlier boot


class WritableLayers:
    """Writable layers on one file system. All methods block and belong in a thread, except `make` and `open`
    of a layer without a limit."""

    def __init__(
        self,
        quotas: ProjectQuotas | None,
        file_systems: DiskImages | None = None,
        *,
        boot_id: str = "",
        no_images_reason: str = "",
    ) -> None:
        """`no_images_reason` is why there are no disk images, for people."""
        self._quotas = quotas
        self._file_systems = file_systems
        self._spares = None if file_systems is None else DiskImagePool(file_systems)
        self._boot_id = boot_id
        self.no_images_reason = no_images_reason
        # Finding an unused project number and taking it must be atomic.
        self._assigning = threading.Lock()
        # So must checking that a shared disk image is unused and removing it.
        self._sharing = threading.Lock()

    @classmethod
    def on(
        cls, folder: Path, boot_id: str, *, has_userns: bool = True, no_images_reason: str = ""
    ) -> WritableLayers:
        """Layers will be below `folder`, which exists. Probes what works there, except for disk images if it
        is known why there are none.

        Outside a user namespace the owner of a file can move it to another project, so without `has_userns`
        no quota would be effective.
        """
        quotas = ProjectQuotas()
        file_systems = DiskImages(folder / _FILE_SYSTEMS)
        reason = no_images_reason or file_systems.probe_failure()
        if reason:
            file_systems.close()
        return cls(
            quotas if has_userns and _enforces(quotas, folder / _TRIAL) else None,
            None if reason else file_systems,
            boot_id=boot_id,
            no_images_reason=reason,
        )

    @property
    def kind(self) -> DiskLimitKind:
        """How limits are enforced here."""
        if self._quotas is not None:
            return DiskLimitKind.QUOTA
        return DiskLimitKind.MEASURED if self._file_systems is None else DiskLimitKind.FILE_SYSTEM

    @property
    def can_share(self) -> bool:
        """True if layers can share a limit, as those of guests must."""
        return self._file_systems is not None

    def make(self, layer: Path, limit_bytes: int | None, shared: SharedDisk | None = None) -> None:
        """Create the folder `layer` with the limit, as `kind` says, or in `shared`. Idempotent; existing
        content of this boot stays. Raises Unavailable."""
        layer.mkdir(mode=0o700, exist_ok=True)
        if shared is not None:
            with self._sharing:
                self._systems.ensure(self._shared_image(shared.name), shared.limit_bytes)
        elif self._is_file_system(layer, limit_bytes):
            assert limit_bytes is not None
            self._systems.ensure(self._image(layer), limit_bytes)
        else:
            if self._quotas is not None:
                # While it is empty, since only later files inherit the project.
                with self._assigning:
                    self._quotas.assign(layer)
            _make_folders(layer)
            self.limit(layer, limit_bytes)

    def open(self, layer: Path, limit_bytes: int | None, shared: SharedDisk | None = None) -> OpenLayer:
        """Create it if need be, and mount it if it is a disk image, so that `upper` and `work` exist; the
        caller unmounts it, which does nothing if it is not mounted. Raises Unavailable."""
        for image in _images(layer):
            if image != self._image(layer):
                image.unlink()  # after a crash its content cannot be trusted
        if namespaces.is_mounted(layer):
            return OpenLayer(DiskLimitKind.FILE_SYSTEM)
        if self._is_outdated(layer, limit_bytes, shared):
            tree_size.remove(layer)
        if shared is not None:
            try:
                is_new = self._open_shared(layer, limit_bytes, shared)
                _make_folders(layer)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                raise errors.ResourcesExhausted(
                    "the disk of the leased cell is full; delete something on it first"
                ) from error
            return OpenLayer(DiskLimitKind.FILE_SYSTEM, is_new)
        if self._is_file_system(layer, limit_bytes):
            assert limit_bytes is not None
            is_new = not self._image(layer).exists()
            layer.mkdir(mode=0o700, exist_ok=True)
            if not (is_new and self._take_prepared(layer, limit_bytes)):
                self._systems.ensure(self._image(layer), limit_bytes)
                self._systems.mount(self._image(layer), layer)
        else:
            self.make(layer, limit_bytes)
            return OpenLayer(self._kind_of(layer, limit_bytes))
        _make_folders(layer)
        return OpenLayer(DiskLimitKind.FILE_SYSTEM, is_new)

    def _take_prepared(self, layer: Path, limit_bytes: int) -> bool:
        """Mount a disk image of the pool at `layer`; False if there is none, or none that works."""
        assert self._spares is not None
        try:
            return self._spares.take(self._image(layer), limit_bytes, layer)
        except OSError as error:
            log.warning("disk.spare_unusable", layer=str(layer), error=str(error))
            return False

    def refill(self) -> None:
        """Refill the pool of disk images, of the most recently used sizes."""
        if self._spares is not None:
            self._spares.refill()

    def _open_shared(self, layer: Path, limit_bytes: int | None, shared: SharedDisk) -> bool:
        """Mount a folder of the shared disk image at `layer`; a layer with a limit of its own is another disk
        image, in a file in that folder. True if the folder is new."""
        layer.mkdir(mode=0o700, exist_ok=True)
        name, image = layer.parent.name, self._shared_image(shared.name)
        with self._sharing:
            self._systems.ensure(image, shared.limit_bytes)
            self._systems.mount(image, layer)
            is_new = not (layer / name).exists()
            (layer / name).mkdir(mode=0o700, exist_ok=True)
        if (part := shared.part(limit_bytes)) is not None:
            inner = self._image(layer / name / layer.name)
            self._systems.ensure(inner, part)
            self._systems.mount(inner, layer, discards=True)
        else:
            thread_syscalls.mount(str(layer / name), str(layer), "", mount_flags.MS_BIND, "")
        return is_new

    def limit(self, layer: Path, limit_bytes: int | None) -> DiskLimitKind:
        """Apply the limit to a layer in use; returns how it is enforced. The size of a disk image does not
        change."""
        if self._quotas is not None and self._quotas.has_project(layer):
            inodes = None if limit_bytes is None else max(_LEAST_INODES, limit_bytes // BYTES_PER_INODE)
            self._quotas.limit(layer, limit_bytes, inodes)
        return self._kind_of(layer, limit_bytes)

    def _kind_of(self, layer: Path, limit_bytes: int | None) -> DiskLimitKind:
        if namespaces.is_mounted(layer):
            return DiskLimitKind.FILE_SYSTEM  # also without a limit of its own: in a shared one
        if limit_bytes is None:
            return DiskLimitKind.NONE
        # Else it was created when neither was supported.
        has_quota = self._quotas is not None and self._quotas.has_project(layer)
        return DiskLimitKind.QUOTA if has_quota else DiskLimitKind.MEASURED

    def used(self, layer: Path) -> int:
        """Bytes of disk that the layer occupies; 0 if it does not exist, or is in a shared disk image and not
        in use."""
        try:
            image = self._image(layer)
            if image.exists():
                is_mounted = os.path.ismount(layer)
                return disk_images.measure(layer) if is_mounted else disk_images.measure_file(image)
            if self._quotas is not None and self._quotas.has_project(layer):
                return self._quotas.read(layer).used
            size = tree_size.measure(layer / overlays.UPPER, within_s=_MEASURING_S)
        except FileNotFoundError:
            return 0
        if not size.whole:
            log.warning("layer.too_large_to_measure", layer=str(layer), bytes=size.bytes, files=size.files)
        return size.bytes

    def shared_usage(self, name: str) -> int:
        """Bytes of the node's disk that the shared disk image of that name occupies."""
        if self._file_systems is None:
            return 0
        try:
            return disk_images.measure_file(self._shared_image(name))
        except FileNotFoundError:
            return 0

    def discard_unused(self, layer: Path, limit_bytes: int | None, shared: SharedDisk | None = None) -> None:
        """Return deleted blocks of a layer in use to the node's disk, if they are enough."""
        if shared is not None and shared.part(limit_bytes) is not None:
            return  # mounted so that it does this by itself
        image = self._image(layer) if shared is None else self._shared_image(shared.name)
        if image.exists() and os.path.ismount(layer):
            disk_images.discard_unused(image, layer)

    def remove_shared(self, layer: Path, shared: SharedDisk) -> None:
        """Remove the content of `layer`, which is not mounted, from a shared disk image; with the last one
        that is removed too. A damaged one is removed as well. Idempotent."""
        if self._file_systems is None or not self._shared_image(shared.name).exists():
            return
        image, name = self._shared_image(shared.name), layer.parent.name
        layer.mkdir(mode=0o700, exist_ok=True)
        try:
            self._systems.mount(image, layer)
        except OSError as error:
            if error.errno not in _DAMAGED:
                raise  # it may work later, and others have data in it
            log.warning("disk.broken", image=str(image), error=str(error))
            disk_images.remove(image)
            return
        try:
            try:
                tree_size.remove(layer / name)
            except OSError as error:
                log.warning("disk.broken", image=str(image), error=str(error))
            with self._sharing:
                if not set(os.listdir(layer)) - {disk_images.LOST_AND_FOUND, name}:
                    disk_images.remove(image)
        finally:
            thread_syscalls.unmount(str(layer), mount_flags.MNT_DETACH)

    def keep_only(self, names: Set[str]) -> None:
        """Remove shared disk images except those of these names, and those of earlier boots. For what a
        killed agent left: while no layer is open."""
        if self._file_systems is None:
            return
        used_images = {self._shared_image(name) for name in names}
        for image in self._file_systems.folder.glob(f"*{_SUFFIX}*"):
            if image not in used_images:
                disk_images.remove(image)

    def remove(self, layer: Path) -> None:
        """Remove it with all its content. Nothing may be mounted on it. Does nothing if it does not exist."""
        for image in _images(layer):
            disk_images.remove(image)
        if self._quotas is not None and layer.exists() and self._quotas.has_project(layer):
            # Or the next folder with its project number would inherit the limit.
            self._quotas.limit(layer, None, None)
        tree_size.remove(layer)

    def close(self) -> None:
        """Remove everything but layers."""
        if self._spares is not None:
            self._spares.close()
        if self._file_systems is not None:
            self._file_systems.close()

    @property
    def _systems(self) -> DiskImages:
        if self._file_systems is None:
            raise errors.Unavailable(f"this node cannot create disk images: {self.no_images_reason}")
        return self._file_systems

    def _is_file_system(self, layer: Path, limit_bytes: int | None) -> bool:
        """True if the layer is a disk image. One that is in use as a folder stays that: it was created when
        there were no disk images."""
        if limit_bytes is None or self.kind is not DiskLimitKind.FILE_SYSTEM:
            return False
        return not (layer / overlays.UPPER).exists() or os.path.ismount(layer)

    def _is_outdated(self, layer: Path, limit_bytes: int | None, shared: SharedDisk | None) -> bool:
        """True for a folder whose content is lost anyway because of a reboot, and which becomes a disk image
        now. One without a limit is emptied where it is mounted."""
        becomes_one = shared is not None or (
            limit_bytes is not None and self.kind is DiskLimitKind.FILE_SYSTEM
        )
        is_folder = (layer / overlays.UPPER).exists()
        return becomes_one and is_folder and not overlays.is_of_boot(layer, self._boot_id)

    def _image(self, layer: Path) -> Path:
        """The file of the layer, named after the boot that it belongs to."""
        return layer.with_name(f"{layer.name}.{self._boot_id}{_SUFFIX}")

    def _shared_image(self, name: str) -> Path:
        return self._systems.folder / f"{name.replace('/', '_')}.{self._boot_id}{_SUFFIX}"


def _images(layer: Path) -> list[Path]:
    """Of this boot and earlier ones."""
    try:
        names = os.listdir(layer.parent)
    except FileNotFoundError:
        return []
    return [
        layer.with_name(name)
        for name in names
        if name.startswith(f"{layer.name}.") and name.endswith(_SUFFIX)
    ]


def _make_folders(layer: Path) -> None:
    for name in (overlays.UPPER, overlays.WORK):
        (layer / name).mkdir(mode=0o755, exist_ok=True)


def _enforces(quotas: ProjectQuotas, trial: Path) -> bool:
    """True if the kernel enforces a quota on the folder `trial`."""
    tree_size.remove(trial)
    trial.mkdir(mode=0o700)
    try:
        quotas.assign(trial)
        quotas.limit(trial, _TRIAL_LIMIT, _LEAST_INODES)
        try:
            return _write_fails(trial / "file", 4 * _TRIAL_LIMIT)
        finally:
            quotas.limit(trial, None, None)
    except OSError as error:
        log.debug("quotas.absent", folder=str(trial.parent), error=str(error))
        return False
    finally:
        tree_size.remove(trial)


def _write_fails(path: Path, size: int) -> bool:
    """True if writing `size` bytes to `path` fails with a quota error, without privileges.

    Capabilities belong to a thread: the one to exceed quotas is dropped in a thread that does only this.
    """
    found: list[int] = []

    def write() -> None:
        thread_syscalls.drop_capability(_CAP_SYS_RESOURCE)
        try:
            with open(path, "wb") as file:
                file.write(os.urandom(size))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            found.append(error.errno or 0)

    thread = threading.Thread(target=write, name="quota-trial")
    thread.start()
    thread.join()
    return bool(_REFUSALS.intersection(found))

"""Writable layers and what they may grow to, held by the kernel.

A layer is a folder with `upper`, where the files go, and `work`, which the overlay needs beside it;
`skerry.node.containers.overlays` mounts it. One with a limit is held to it by a project quota where the file
system of the node has them (`quotas`), else by being a file system of that size in a file beside it
(`disk_images`), which is mounted there while the container runs. Layers of strangers are together in one file
system for each contract, whatever the node has. What a layer uses is the kernel's own count, for people to
see.

Where the kernel can do neither, `kind` says so, and who makes layers decides whether that is good enough.
Then somebody has to ask for the size now and then and stop what is over: nothing here runs by itself. A
container can outrun that, by what the disk takes between two looks and by what is not in any folder.
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
from skerry.node.kernel import mount_flags, thread_syscalls

log = structlog.get_logger(__name__)

_FILE_SYSTEMS: Final = "filesystems"
_SUFFIX: Final = ".ext4"
_TRIAL: Final = ".quota-trial"
_TRIAL_LIMIT: Final = 256 * 1024
_LEAST_INODES: Final = 64
_CAP_SYS_RESOURCE: Final = 24
_MEASURING_S: Final = 10.0
_REFUSALS: Final = frozenset({errno.EDQUOT, errno.ENOSPC})
# How the kernel refuses a file system that is damaged; EBUSY is for one that it made read-only for that.
_DAMAGED: Final = frozenset({errno.EUCLEAN, errno.EIO, errno.EINVAL, errno.EROFS, errno.EBUSY})


class DiskLimitKind(enum.StrEnum):
    """How a limit is held."""

    QUOTA = "quota"  # the kernel refuses to write more
    FILE_SYSTEM = "filesystem"  # likewise, since there is no more
    MEASURED = "measured"  # somebody has to look now and then, and stop what is over
    NONE = "none"


class SharedDisk(NamedTuple):
    """A file system that several layers are in, and that holds all of them together."""

    name: str  # of the cell that was lent
    limit_bytes: int

    def part(self, limit_bytes: int | None) -> int | None:
        """The size of the file system in this one that a layer with that limit is; None if it is none, since
        it may have all."""
        return limit_bytes if limit_bytes is not None and limit_bytes < self.limit_bytes else None


class OpenLayer(NamedTuple):
    """A layer that can be mounted as part of an overlay."""

    kind: DiskLimitKind
    is_new: bool = False  # nothing was in it: what there was before went with an earlier boot


class WritableLayers:
    """Writable layers on one file system. All methods block and belong in a thread, but `make` and `open` of
    a layer without a limit."""

    def __init__(
        self,
        quotas: ProjectQuotas | None,
        file_systems: DiskImages | None = None,
        *,
        boot_id: str = "",
        why_measured: str = "",
    ) -> None:
        """`why_measured` is why there are no file systems, for people."""
        self._quotas = quotas
        self._file_systems = file_systems
        self._spares = None if file_systems is None else DiskImagePool(file_systems)
        self._boot_id = boot_id
        self.why_measured = why_measured
        # Which number is unused is found out in one step and taken in another.
        self._assigning = threading.Lock()
        # Whether anybody is in a shared file system, and that it goes if not.
        self._sharing = threading.Lock()

    @classmethod
    def on(cls, folder: Path, boot_id: str, *, has_userns: bool = True) -> WritableLayers:
        """Layers will be below `folder`, which is there. Finds out by trying what works in it.

        Outside a user namespace whoever owns a file can move it to another project, so without
        `has_userns` no quota would hold.
        """
        quotas = ProjectQuotas()
        file_systems = DiskImages(folder / _FILE_SYSTEMS)
        reason = file_systems.why_not()
        if reason:
            file_systems.close()
        return cls(
            quotas if has_userns and _holds(quotas, folder / _TRIAL) else None,
            None if reason else file_systems,
            boot_id=boot_id,
            why_measured=reason,
        )

    @property
    def kind(self) -> DiskLimitKind:
        """How limits are held here."""
        if self._quotas is not None:
            return DiskLimitKind.QUOTA
        return DiskLimitKind.MEASURED if self._file_systems is None else DiskLimitKind.FILE_SYSTEM

    @property
    def can_share(self) -> bool:
        """True if layers can be held together, as those of strangers must be."""
        return self._file_systems is not None

    def make(self, layer: Path, limit_bytes: int | None, shared: SharedDisk | None = None) -> None:
        """Make the folder `layer`, held to the limit as `kind` says, or with others to that of `shared`. May
        be repeated on what an earlier call left unfinished; what is in it stays, if it is of this boot.
        Raises Unavailable."""
        layer.mkdir(mode=0o700, exist_ok=True)
        if shared is not None:
            with self._sharing:
                self._systems.ensure(self._shared_image(shared.name), shared.limit_bytes)
        elif self._is_file_system(layer, limit_bytes):
            assert limit_bytes is not None
            self._systems.ensure(self._image(layer), limit_bytes)
        else:
            if self._quotas is not None:
                # Before anything is in it, since only what comes later inherits the project.
                with self._assigning:
                    self._quotas.assign(layer)
            _make_folders(layer)
            self.limit(layer, limit_bytes)

    def open(self, layer: Path, limit_bytes: int | None, shared: SharedDisk | None = None) -> OpenLayer:
        """Make it if need be, and have `upper` and `work` in it, until it is unmounted if that is what it
        takes: unmounting what is no mount does nothing. Raises Unavailable."""
        for image in _images(layer):
            if image != self._image(layer):
                image.unlink()  # after a crash nobody can say what is in it
        if os.path.ismount(layer):
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
                    "the disk that was bought is full; delete something on it first"
                ) from error
            return OpenLayer(DiskLimitKind.FILE_SYSTEM, is_new)
        if self._is_file_system(layer, limit_bytes):
            assert limit_bytes is not None
            is_new = not self._image(layer).exists()
            layer.mkdir(mode=0o700, exist_ok=True)
            if not (is_new and self._take_spare(layer, limit_bytes)):
                self._systems.ensure(self._image(layer), limit_bytes)
                self._systems.mount(self._image(layer), layer)
        else:
            self.make(layer, limit_bytes)
            return OpenLayer(self._kind_of(layer, limit_bytes))
        _make_folders(layer)
        return OpenLayer(DiskLimitKind.FILE_SYSTEM, is_new)

    def _take_spare(self, layer: Path, limit_bytes: int) -> bool:
        """Have a file system that was made ahead at `layer`; False if there is none, or none that works."""
        assert self._spares is not None
        try:
            return self._spares.take(self._image(layer), limit_bytes, layer)
        except OSError as error:
            log.warning("disk.spare_unusable", layer=str(layer), error=str(error))
            return False

    def refill(self) -> None:
        """Make file systems ahead for layers to come, of the sizes that were wanted last."""
        if self._spares is not None:
            self._spares.refill()

    def _open_shared(self, layer: Path, limit_bytes: int | None, shared: SharedDisk) -> bool:
        """Mount a folder of its own in the shared file system at `layer`; one that may have less than all of
        it is a file system again, in a file in that folder. True if the folder is new."""
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
            self._systems.mount(inner, layer, gives_back=True)
        else:
            thread_syscalls.mount(str(layer / name), str(layer), "", mount_flags.MS_BIND, "")
        return is_new

    def limit(self, layer: Path, limit_bytes: int | None) -> DiskLimitKind:
        """See to the limit of a layer that is in use; tells how it is held. A file system stays as large as
        it was made."""
        if self._quotas is not None and self._quotas.has_project(layer):
            inodes = None if limit_bytes is None else max(_LEAST_INODES, limit_bytes // BYTES_PER_INODE)
            self._quotas.limit(layer, limit_bytes, inodes)
        return self._kind_of(layer, limit_bytes)

    def _kind_of(self, layer: Path, limit_bytes: int | None) -> DiskLimitKind:
        if os.path.ismount(layer):
            return DiskLimitKind.FILE_SYSTEM  # also without a limit of its own: in a shared one
        if limit_bytes is None:
            return DiskLimitKind.NONE
        # Else it was made when neither worked.
        is_held = self._quotas is not None and self._quotas.has_project(layer)
        return DiskLimitKind.QUOTA if is_held else DiskLimitKind.MEASURED

    def used(self, layer: Path) -> int:
        """Bytes of disk that the layer takes; 0 if it is not there, or in a shared file system and not in
        use."""
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

    def used_together(self, name: str) -> int:
        """Bytes of the node's disk that everything in the shared file system of that name takes."""
        if self._file_systems is None:
            return 0
        try:
            return disk_images.measure_file(self._shared_image(name))
        except FileNotFoundError:
            return 0

    def give_back(self, layer: Path, limit_bytes: int | None, shared: SharedDisk | None = None) -> None:
        """Return to the node's disk what was deleted in a layer that is in use, if that is worth it."""
        if shared is not None and shared.part(limit_bytes) is not None:
            return  # it is mounted so that it does this by itself
        image = self._image(layer) if shared is None else self._shared_image(shared.name)
        if image.exists() and os.path.ismount(layer):
            disk_images.give_back(image, layer)

    def leave(self, layer: Path, shared: SharedDisk) -> None:
        """Remove what `layer`, which is not mounted, has in a shared file system; with the last one that goes
        too. What cannot be read or changed any more is no hindrance. May be repeated."""
        if self._file_systems is None or not self._shared_image(shared.name).exists():
            return
        image, name = self._shared_image(shared.name), layer.parent.name
        layer.mkdir(mode=0o700, exist_ok=True)
        try:
            self._systems.mount(image, layer)
        except OSError as error:
            if error.errno not in _DAMAGED:
                raise  # it may work later, and others have what they wrote in it
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
        """Remove shared file systems but those of these names, and those of earlier boots. For what a killed
        agent left: while no layer is opened."""
        if self._file_systems is None:
            return
        kept = {self._shared_image(name) for name in names}
        for image in self._file_systems.folder.glob(f"*{_SUFFIX}*"):
            if image not in kept:
                disk_images.remove(image)

    def remove(self, layer: Path) -> None:
        """Remove it with all that is in it, whatever its container made there. Nothing may be mounted on it.
        Not there: nothing done."""
        for image in _images(layer):
            disk_images.remove(image)
        if self._quotas is not None and layer.exists() and self._quotas.has_project(layer):
            # Or the next folder with its number would find a limit.
            self._quotas.limit(layer, None, None)
        tree_size.remove(layer)

    def close(self) -> None:
        """Leave nothing but layers."""
        if self._spares is not None:
            self._spares.close()
        if self._file_systems is not None:
            self._file_systems.close()

    @property
    def _systems(self) -> DiskImages:
        if self._file_systems is None:
            raise errors.Unavailable(f"this node can make no file systems: {self.why_measured}")
        return self._file_systems

    def _is_file_system(self, layer: Path, limit_bytes: int | None) -> bool:
        """Whether the layer is one of its own. One that is in use as a folder stays that: it was made when
        there were none."""
        if limit_bytes is None or self.kind is not DiskLimitKind.FILE_SYSTEM:
            return False
        return not (layer / overlays.UPPER).exists() or os.path.ismount(layer)

    def _is_outdated(self, layer: Path, limit_bytes: int | None, shared: SharedDisk | None) -> bool:
        """Whether it is a folder whose content is lost anyway, since the machine went down, and becomes a
        file system now. One without a limit is emptied where it is mounted."""
        becomes_one = shared is not None or (
            limit_bytes is not None and self.kind is DiskLimitKind.FILE_SYSTEM
        )
        is_folder = (layer / overlays.UPPER).exists()
        return becomes_one and is_folder and not overlays.is_of_boot(layer, self._boot_id)

    def _image(self, layer: Path) -> Path:
        """The file that the layer is in, named after the boot that it belongs to."""
        return layer.with_name(f"{layer.name}.{self._boot_id}{_SUFFIX}")

    def _shared_image(self, name: str) -> Path:
        return self._systems.folder / f"{name.replace('/', '_')}.{self._boot_id}{_SUFFIX}"


def _images(layer: Path) -> list[Path]:
    """Of this boot and earlier ones."""
    return list(layer.parent.glob(f"{layer.name}.*{_SUFFIX}"))


def _make_folders(layer: Path) -> None:
    for name in (overlays.UPPER, overlays.WORK):
        (layer / name).mkdir(mode=0o755, exist_ok=True)


def _holds(quotas: ProjectQuotas, trial: Path) -> bool:
    """True if the kernel keeps somebody from writing more to the folder `trial` than it may."""
    tree_size.remove(trial)
    trial.mkdir(mode=0o700)
    try:
        quotas.assign(trial)
        quotas.limit(trial, _TRIAL_LIMIT, _LEAST_INODES)
        try:
            return _is_refused(trial / "file", 4 * _TRIAL_LIMIT)
        finally:
            quotas.limit(trial, None, None)
    except OSError as error:
        log.debug("quotas.absent", folder=str(trial.parent), error=str(error))
        return False
    finally:
        tree_size.remove(trial)


def _is_refused(path: Path, size: int) -> bool:
    """Whether writing `size` bytes to `path` fails for want of room, for somebody without privileges.

    Capabilities are a thread's own: one that may exceed quotas is given up in a thread that does only this.
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

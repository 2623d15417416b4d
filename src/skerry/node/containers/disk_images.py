"""Disk images: file systems in files, each of exactly the size of a disk limit, enforced by the kernel.

Used by `skerry.node.containers.writable_layers` where the file system of the node has no project quotas. The
file is sparse: it occupies what is written, and never more than its size, metadata and inodes included.
Writes beyond it fail with "No space left on device", for large files, unlinked ones, very many small ones and
preallocation.

Creating one costs a copy of a few hundred kilobytes: mke2fs (e2fsprogs) creates the first of each size, which
is kept as a template. They are ext4 without a journal, since no writable layer survives a reboot (see
docs/adr/0012-volatile-layers.md); for the same reason nothing here syncs, and a file of an earlier boot is
never mounted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import subprocess
import threading
from pathlib import Path
from typing import Final

import structlog

from skerry.model import errors
from skerry.node.containers import loop_devices, runtime_commands, tree_size
from skerry.node.kernel import mount_flags, thread_syscalls

log = structlog.get_logger(__name__)

SMALLEST: Final = 16 * 1024**2
BYTES_PER_INODE: Final = 16 * 1024  # the ratio that mke2fs is given
_LARGEST: Final = 8 * 1024**4  # a file on ext4 may be 16 TB
_STEP: Final = 1024**2  # sizes are multiples of this
_MOST_TEMPLATES: Final = 16
_PROGRAM: Final = "mke2fs"
_MAKING_S: Final = 60.0
# Explicit, so that no configuration file of the machine changes them: no journal, no blocks reserved for
# root,
# and tables that are holes in the file are not written.
_OPTIONS: Final = (
    *("-q", "-F", "-b", "4096", "-I", "256", "-i", str(BYTES_PER_INODE), "-m", "0"),
    "-O",
    "none,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,"
    "extra_isize,metadata_csum",
    *("-E", "lazy_itable_init=1,nodiscard,packed_meta_blocks=1,root_owner=0:0"),
)
# Flushing the device would sync the file to the node's disk. If that is full, write-back fails and the data
# cannot
# be trusted any more: the file system becomes read-only.
_MOUNTED: Final[dict[str, str | None]] = {"nobarrier": None, "noinit_itable": None, "errors": "remount-ro"}
_TRIM: Final = 0xC0185879  # FITRIM
_TRIM_RANGE: Final = struct.Struct("=QQQ")  # start, length, minimum length of a free range
_TRIM_LEAST: Final = 64 * 1024
_SLACK: Final = 64 * 1024**2  # of free space inside the file system that may stay allocated outside
_TEMPLATES: Final = "templates"
_SPARES: Final = "spares"
_TRIAL: Final = "trial"
_BLOCK: Final = 512
LOST_AND_FOUND: Final = "lost+found"


class DiskImages:
    """Creates disk images, with templates in `folder`, which may contain other files too. Methods block, for
    some milliseconds at most except for the first of a size."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own = folder / _TEMPLATES
        self.spares = self._own / _SPARES  # unused ones, removed with the templates
        self._making = threading.Lock()
        self._templates: dict[int, Path] = {}  # the most recently used is the last
        self.close()
        self.spares.mkdir(mode=0o700, parents=True)
        self._own.chmod(0o700)

    def close(self) -> None:
        """Remove the templates; images stay."""
        with contextlib.suppress(OSError):  # mounted only if an agent was killed
            thread_syscalls.unmount(str(self._own / _TRIAL), mount_flags.MNT_DETACH)
        tree_size.remove(self._own)
        self._templates.clear()
        with contextlib.suppress(OSError):  # it contains other files, or does not exist
            self.folder.rmdir()

    def probe_failure(self) -> str:
        """Create and mount one; why that failed, or empty."""
        image, target = self._own / f"{_TRIAL}.image", self._own / _TRIAL
        target.mkdir(mode=0o700)
        try:
            self.ensure(image, SMALLEST)
            self.mount(image, target)
            thread_syscalls.unmount(str(target), mount_flags.MNT_DETACH)
        except (OSError, errors.SkerryError) as error:
            return str(error)
        finally:
            image.unlink(missing_ok=True)
            target.rmdir()
        return ""

    def ensure(self, image: Path, limit_bytes: int) -> None:
        """Create the file `image`, if it does not exist, with an empty file system of that size, or of the
        whole disk if that is less. Atomic. Raises Invalid for less than `SMALLEST`, and Unavailable if it
        cannot be created."""
        if image.exists():
            return
        size = size_of(limit_bytes, image.parent)
        draft = image.with_name(f".{image.name}.new")
        draft.unlink(missing_ok=True)
        try:
            with self._making:
                _copy(self._template(size), draft)
            os.rename(draft, image)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise errors.Unavailable(
                f"the node cannot create a file system of {size // _STEP} MB: {error.strerror or error}",
                detail=repr(error),
            ) from error

    def mount(self, image: Path, target: Path, *, discards: bool = False) -> None:
        """Mount it, in this mount namespace alone; it may be mounted several times. With `discards`,
        deleted blocks return to the node's disk at once, which costs 0.1 ms per deleted file. Raises
        Unavailable if the file is locked, OSError if the kernel refuses."""
        options = _MOUNTED | ({"discard": None} if discards else {})
        try:
            mounted = _mount_detached(image, options)
        except BlockingIOError as error:
            raise errors.Unavailable(
                "the disk image of the container is in use; start it again later",
                detail=str(image),
            ) from error
        try:
            attach(mounted, target)
        finally:
            os.close(mounted)

    def make_detached(self, image: Path, size: int) -> int:
        """Create the file `image` with an empty file system of `size`, as `size_of` returns it; returns the
        descriptor of a detached mount, for `attach`. Raises OSError."""
        with self._making:
            _copy(self._template(size), image)
        return _mount_detached(image, _MOUNTED)

    def _template(self, size: int) -> Path:
        path = self._templates.pop(size, None)
        if path is None:
            path = self._own / f"{size}.template"
            _make(path, size)
            for old_size in list(self._templates)[: 1 - _MOST_TEMPLATES or None]:
                self._templates.pop(old_size).unlink(missing_ok=True)
        self._templates[size] = path
        return path


def size_of(limit_bytes: int, folder: Path) -> int:
    """The size of a file system for that limit, in a file in `folder`. Raises Invalid."""
    if limit_bytes < SMALLEST:
        raise errors.Invalid(f"a file system must have {SMALLEST} bytes at least", field="disk")
    disk = os.statvfs(folder)
    return min(limit_bytes, _LARGEST, max(SMALLEST, disk.f_blocks * disk.f_frsize)) // _STEP * _STEP


def attach(mounted: int, target: Path) -> None:
    """Attach a detached mount at `target`, in this mount namespace alone."""
    thread_syscalls.attach(mounted, str(target))
    thread_syscalls.change_mount(str(target), mount_flags.MS_PRIVATE)


def measure(target: Path) -> int:
    """Bytes in use of the file system at `target`, by the kernel's count."""
    status = os.statvfs(target)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def measure_file(image: Path) -> int:
    """Bytes that it occupies on the disk."""
    return os.stat(image).st_blocks * _BLOCK


def remove(image: Path) -> None:
    """Remove the file and free its blocks at once: it may still be mounted in the mount namespace of another
    program."""
    with contextlib.suppress(FileNotFoundError):
        os.truncate(image, 0)
        image.unlink()


def discard_unused(image: Path, target: Path) -> bool:
    """Return unused blocks of the file system at `target` to the node's disk; False if they are too few.
    Takes about a millisecond per gigabyte that was in use."""
    if measure_file(image) <= measure(target) + _SLACK:
        return False
    folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(folder, _TRIM, bytearray(_TRIM_RANGE.pack(0, 2**64 - 1, _TRIM_LEAST)))
    finally:
        os.close(folder)
    return True


def _mount_detached(image: Path, options: dict[str, str | None]) -> int:
    """A descriptor of the detached mount. Raises BlockingIOError if the file is locked."""
    with loop_devices.attached(image) as device, contextlib.ExitStack() as opened:
        file_system = thread_syscalls.open_file_system("ext4")
        opened.callback(os.close, file_system)
        thread_syscalls.set_option(file_system, "source", device)
        for key, value in options.items():
            thread_syscalls.set_option(file_system, key, value)
        return thread_syscalls.make_file_system(file_system, mount_flags.MOUNT_ATTR_NODEV)


def _make(path: Path, size: int) -> None:
    """Run mke2fs."""
    try:
        with open(path, "wb") as file:
            file.truncate(size)
        done = subprocess.run(
            [_PROGRAM, *_OPTIONS, str(path)],
            env={"PATH": runtime_commands.PATH, "MKE2FS_CONFIG": os.devnull},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_MAKING_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        path.unlink(missing_ok=True)
        raise OSError(errno.ETIMEDOUT, f"{_PROGRAM} took more than {_MAKING_S:g} s") from error
    except FileNotFoundError as error:
        path.unlink(missing_ok=True)
        raise OSError(errno.ENOENT, f"{_PROGRAM} is not installed; install e2fsprogs") from error
    if done.returncode:
        path.unlink(missing_ok=True)
        raise OSError(errno.EIO, f"{_PROGRAM} failed: {runtime_commands.last_failure(done.stderr)}")


def _copy(source: Path, target: Path) -> None:
    """Copy a sparse file with its holes."""
    with open(source, "rb") as old, open(target, "xb", opener=_private) as new:
        size, at = os.fstat(old.fileno()).st_size, 0
        os.truncate(new.fileno(), size)
        while at < size:
            try:
                at = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # the rest is a hole
                    return
                raise
            end = os.lseek(old.fileno(), at, os.SEEK_HOLE)
            while at < end:
                part = os.pread(old.fileno(), min(end - at, _STEP), at)
                at += os.pwrite(new.fileno(), part, at)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)

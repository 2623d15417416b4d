"""File systems in files, each of exactly the size that somebody may write: a wall that the kernel keeps.

Used by `skerry.node.containers.writable_layers` where the file system of the node has no project quotas. The
file is sparse: it takes what is written, and never more than its size, bookkeeping and inodes included.
Whoever writes beyond it gets "No space left on device", however it is tried: by large files, by unlinked
ones, by very many small ones, by reserving.

Making one costs a copy of a few hundred kilobytes: the first of each size is made by mke2fs (e2fsprogs), and
kept as a template. They are ext4 without a journal, since no writable layer outlives a boot of the machine
(see docs/adr/0012-volatile-layers.md); for the same reason nothing here waits for the disk, and a file of an
earlier boot is never mounted.
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
BYTES_PER_INODE: Final = 16 * 1024  # so many bytes come with an inode
_LARGEST: Final = 8 * 1024**4  # a file on ext4 may be 16 TB
_STEP: Final = 1024**2  # sizes are whole numbers of these
_MOST_TEMPLATES: Final = 16
_PROGRAM: Final = "mke2fs"
_MAKING_S: Final = 60.0
# Spelled out, so that no configuration file of the machine changes them: no journal, no blocks reserved for
# root, and tables that the file has as holes are not written.
_OPTIONS: Final = (
    *("-q", "-F", "-b", "4096", "-I", "256", "-i", str(BYTES_PER_INODE), "-m", "0"),
    "-O",
    "none,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,"
    "extra_isize,metadata_csum",
    *("-E", "lazy_itable_init=1,nodiscard,packed_meta_blocks=1,root_owner=0:0"),
)
# Flushing the device would be a sync of the file to the disk of the node. If that is full, writing back
# fails, and what was not written cannot be trusted any more: nothing more is written to it.
_MOUNTED: Final[dict[str, str | None]] = {"nobarrier": None, "noinit_itable": None, "errors": "remount-ro"}
_TRIM: Final = 0xC0185879  # FITRIM
_TRIM_RANGE: Final = struct.Struct("=QQQ")  # from, how many bytes, shortest run of free ones
_TRIM_LEAST: Final = 64 * 1024
_SLACK: Final = 64 * 1024**2  # so much that is free inside may stay taken outside
_TEMPLATES: Final = "templates"
_SPARES: Final = "spares"
_TRIAL: Final = "trial"
_BLOCK: Final = 512
LOST_AND_FOUND: Final = "lost+found"


class DiskImages:
    """Makes them, with templates in `folder`, which may hold others' files too. Every method blocks, for some
    milliseconds at most but for the first of a size."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own = folder / _TEMPLATES
        self.spares = self._own / _SPARES  # for those that nobody has yet; they go with the templates
        self._making = threading.Lock()
        self._templates: dict[int, Path] = {}  # the one used last is the last
        self.close()
        self.spares.mkdir(mode=0o700, parents=True)
        self._own.chmod(0o700)

    def close(self) -> None:
        """Templates go; what was made of them stays."""
        with contextlib.suppress(OSError):  # only an agent that was killed leaves it mounted
            thread_syscalls.unmount(str(self._own / _TRIAL), mount_flags.MNT_DETACH)
        tree_size.remove(self._own)
        self._templates.clear()
        with contextlib.suppress(OSError):  # somebody's files are in it, or it is not there
            self.folder.rmdir()

    def why_not(self) -> str:
        """Make one and mount it; why that failed, or nothing."""
        image, place = self._own / f"{_TRIAL}.image", self._own / _TRIAL
        place.mkdir(mode=0o700)
        try:
            self.ensure(image, SMALLEST)
            self.mount(image, place)
            thread_syscalls.unmount(str(place), mount_flags.MNT_DETACH)
        except (OSError, errors.SkerryError) as error:
            return str(error)
        finally:
            image.unlink(missing_ok=True)
            place.rmdir()
        return ""

    def ensure(self, image: Path, limit_bytes: int) -> None:
        """Make the file `image`, if it is not there, with an empty file system of that size, or of the whole
        disk if that is less. All of it or nothing. Raises Invalid for less than `SMALLEST`, and Unavailable
        if it cannot be made."""
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
                f"the node cannot make a file system of {size // _STEP} MB: {error.strerror or error}",
                detail=repr(error),
            ) from error

    def mount(self, image: Path, target: Path, *, gives_back: bool = False) -> None:
        """Mount it, in this mount namespace alone; what is mounted already can be mounted again, and is the
        same. With `gives_back` what is deleted goes back to the disk at once, which costs deleting 0.1 ms for
        each file. Raises Unavailable if the file is locked, OSError if the kernel refuses."""
        options = _MOUNTED | ({"discard": None} if gives_back else {})
        try:
            mounted = _mount_nowhere(image, options)
        except BlockingIOError as error:
            raise errors.Unavailable(
                "the file that holds what a container wrote is in use by somebody; start it again later",
                detail=str(image),
            ) from error
        try:
            attach(mounted, target)
        finally:
            os.close(mounted)

    def make_spare(self, image: Path, size: int) -> int:
        """Make the file `image` with an empty file system of `size`, as `size_of` gives it, and mount it
        nowhere: the descriptor, for `attach`, with which the mount goes. Raises OSError."""
        with self._making:
            _copy(self._template(size), image)
        return _mount_nowhere(image, _MOUNTED)

    def _template(self, size: int) -> Path:
        path = self._templates.pop(size, None)
        if path is None:
            path = self._own / f"{size}.template"
            _make(path, size)
            for other in list(self._templates)[: 1 - _MOST_TEMPLATES or None]:
                self._templates.pop(other).unlink(missing_ok=True)
        self._templates[size] = path
        return path


def size_of(limit_bytes: int, folder: Path) -> int:
    """How large a file system with that limit is, in a file in `folder`. Raises Invalid."""
    if limit_bytes < SMALLEST:
        raise errors.Invalid(f"a file system must have {SMALLEST} bytes at least", field="disk")
    disk = os.statvfs(folder)
    return min(limit_bytes, _LARGEST, max(SMALLEST, disk.f_blocks * disk.f_frsize)) // _STEP * _STEP


def attach(mounted: int, target: Path) -> None:
    """Put what is mounted nowhere at `target`, in this mount namespace alone."""
    thread_syscalls.attach(mounted, str(target))
    thread_syscalls.change_mount(str(target), mount_flags.MS_PRIVATE)


def measure(target: Path) -> int:
    """Bytes in use of what is mounted at `target`, as the kernel keeps count of them."""
    status = os.statvfs(target)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def measure_file(image: Path) -> int:
    """Bytes that it takes of the disk."""
    return os.stat(image).st_blocks * _BLOCK


def remove(image: Path) -> None:
    """Remove the file, and give back its blocks at once: it may be mounted still where nobody looks, in the
    mount namespace of some other program."""
    with contextlib.suppress(FileNotFoundError):
        os.truncate(image, 0)
        image.unlink()


def give_back(image: Path, target: Path) -> bool:
    """Return to the node's disk what the file system at `target` does not use any more; False if that is too
    little to be worth it. It takes about a millisecond for each gigabyte that was in use."""
    if measure_file(image) <= measure(target) + _SLACK:
        return False
    folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(folder, _TRIM, bytearray(_TRIM_RANGE.pack(0, 2**64 - 1, _TRIM_LEAST)))
    finally:
        os.close(folder)
    return True


def _mount_nowhere(image: Path, options: dict[str, str | None]) -> int:
    """A descriptor of the mount. Raises BlockingIOError if the file is locked."""
    with loop_devices.attached(image) as device, contextlib.ExitStack() as opened:
        file_system = thread_syscalls.open_file_system("ext4")
        opened.callback(os.close, file_system)
        thread_syscalls.set_option(file_system, "source", device)
        for key, value in options.items():
            thread_syscalls.set_option(file_system, key, value)
        return thread_syscalls.make_file_system(file_system, mount_flags.MOUNT_ATTR_NODEV)


def _make(path: Path, size: int) -> None:
    """By mke2fs."""
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
        raise OSError(errno.ENOENT, f"{_PROGRAM} is not there; install e2fsprogs") from error
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

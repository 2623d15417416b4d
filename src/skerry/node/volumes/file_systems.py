"""The file system of a volume: an ext4 of exactly its size, in a file.

Unlike the writable layers of containers (`skerry.node.containers.disk_images`) these outlive a reboot: they
have a journal, write barriers hold, and the blocks of the file are reserved when it is created, so that a
write inside never fails because the disk of the node is full. Owners on disk are those in the containers.

Nothing is mounted in the mount namespace of the node. A mount is a descriptor, which a container's start
attaches in the container; the loop device goes with the last mount, and a killed agent leaves nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import time
from pathlib import Path
from typing import Final

from skerry.kit import files
from skerry.model import errors
from skerry.model.volumes import VolumeUsage
from skerry.node.containers import loop_devices, runtime_commands
from skerry.node.containers.disk_images import BYTES_PER_INODE
from skerry.node.kernel import mount_flags, thread_syscalls

_PROGRAM: Final = "mke2fs"
_CHECKER: Final = "e2fsck"
_MAKING_S: Final = 120.0
_CHECKING_S: Final = 3600.0
# Explicit, so that no configuration file of the machine changes them. Tables that are holes are not written.
_OPTIONS: Final = (
    *("-q", "-F", "-b", "4096", "-I", "256", "-i", str(BYTES_PER_INODE), "-m", "0"),
    "-O",
    "none,has_journal,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,"
    "dir_nlink,extra_isize,metadata_csum",
    *("-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,packed_meta_blocks=1,root_owner=0:0"),
)
# After an error nothing more is written: what is there may be saved.
_MOUNTED: Final[dict[str, str | None]] = {"noinit_itable": None, "errors": "remount-ro"}
_ATTRIBUTES: Final = mount_flags.MOUNT_ATTR_NODEV | mount_flags.MOUNT_ATTR_NOSUID
_LOST_AND_FOUND: Final = "lost+found"
_BUSY_S: Final = 2.0  # in which the device of a container that has just ended is released
_PAUSE_S: Final = 0.02
# Superblock of ext4, at this offset of the file: the fields below, in it.
_SUPERBLOCK: Final = 1024
_BLOCKS: Final = struct.Struct(
    "<4xI4xI8xI"
)  # blocks, free blocks (low halves), log2 of the block size / 1024
_STATE: Final = struct.Struct("<58xH")
_HIGH: Final = struct.Struct("<336xI4xI")  # blocks and free blocks, high halves
_OVERHEAD: Final = struct.Struct("<584xI")  # blocks of its tables and journal
_SUPERBLOCK_BYTES: Final = 1024
_HAS_ERRORS: Final = 2
_CORRECTED: Final = (0, 1)  # exit codes of e2fsck: clean, corrected


def make(image: Path, size: int) -> None:
    """Create the file with an empty file system of `size` bytes, durably. Raises ResourcesExhausted if the
    disk has no room for it, and Unavailable for other failures."""
    try:
        # Not left to the kernel, which takes what there is, for a while, before it refuses.
        if size > files.spare_bytes(image.parent):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with open(os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            _reserve(file.fileno(), size)
        _run(_PROGRAM, *_OPTIONS, str(image), within_s=_MAKING_S)
        mounted = mount(image)
        try:
            # A database refuses a folder that is not empty.
            os.rmdir(f"/proc/self/fd/{mounted}/{_LOST_AND_FOUND}")
        finally:
            os.close(mounted)
        wait_until_unused(image)
        with open(image, "rb") as file:
            os.fsync(file.fileno())
    except OSError as error:
        image.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise errors.ResourcesExhausted(
                f"the disk of the node has no {size // 1024**3} GB left; free some, or create a smaller "
                "volume"
            ) from error
        raise errors.Unavailable(
            f"the node cannot create a file system: {error.strerror or error}", detail=repr(error)
        ) from error
    except errors.SkerryError:
        image.unlink(missing_ok=True)
        raise


def mount(image: Path, *, read_only: bool = False) -> int:
    """A descriptor of a detached mount, in addition to those there are; the caller closes it. Raises
    Unavailable."""
    if not is_used(image):
        _repair(image)
    try:
        with loop_devices.attached(image) as device:
            file_system = thread_syscalls.open_file_system("ext4")
            try:
                thread_syscalls.set_option(file_system, "source", device)
                for key, value in _MOUNTED.items():
                    thread_syscalls.set_option(file_system, key, value)
                attributes = _ATTRIBUTES | (mount_flags.MOUNT_ATTR_RDONLY if read_only else 0)
                return thread_syscalls.make_file_system(file_system, attributes)
            finally:
                os.close(file_system)
    except OSError as error:
        raise errors.Unavailable(
            f"its file system cannot be mounted: {error.strerror or error}; the log of the kernel says why",
            detail=repr(error),
        ) from error


def is_used(image: Path) -> bool:
    """True if it is mounted: its device has the file locked."""
    file = os.open(image, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def wait_until_unused(image: Path, within_s: float = _BUSY_S) -> bool:
    """Wait for the kernel to release it after the last mount is gone; False if it stays in use."""
    deadline = time.monotonic() + within_s
    while is_used(image):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE_S)
    return True


def usage(image: Path) -> VolumeUsage:
    """By the count of the kernel if it is mounted, else by what that wrote down. Raises OSError,
    Unavailable."""
    if is_used(image):
        mounted = mount(image)
        try:
            status = os.fstatvfs(mounted)
        finally:
            os.close(mounted)
        blocks, free, unit = status.f_blocks, status.f_bfree, status.f_frsize
    else:
        superblock = _read_superblock(image)
        low, low_free, shift = _BLOCKS.unpack_from(superblock)
        high, high_free = _HIGH.unpack_from(superblock)
        (overhead,) = _OVERHEAD.unpack_from(superblock)
        blocks, free, unit = (low | high << 32) - overhead, low_free | high_free << 32, 1024 << shift
    return VolumeUsage((blocks - free) * unit, blocks * unit)


def _reserve(file: int, size: int) -> None:
    """Reserve the blocks of the file; where the file system of the node cannot, it is sparse."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.truncate(file, size)


def _repair(image: Path) -> None:
    """Check a file system that the kernel has found an error in; raises Unavailable if that needs a
    person."""
    (state,) = _STATE.unpack_from(_read_superblock(image))
    if state & _HAS_ERRORS:
        _run(_CHECKER, "-p", "-f", str(image), within_s=_CHECKING_S, successes=_CORRECTED)


def _read_superblock(image: Path) -> bytes:
    with open(image, "rb") as file:
        file.seek(_SUPERBLOCK)
        found = file.read(_SUPERBLOCK_BYTES)
    if len(found) < _SUPERBLOCK_BYTES:
        raise errors.Unavailable("its file is not whole any more", detail=str(image))
    return found


def _run(program: str, *arguments: str, within_s: float, successes: tuple[int, ...] = (0,)) -> None:
    try:
        done = subprocess.run(
            [program, *arguments],
            env={"PATH": runtime_commands.PATH, "MKE2FS_CONFIG": os.devnull},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise errors.Unavailable(f"{program} took more than {within_s:g} s") from error
    except FileNotFoundError as error:
        raise errors.Unavailable(f"{program} is not installed; install e2fsprogs") from error
    if done.returncode not in successes:
        last = runtime_commands.last_failure(done.stderr or done.stdout)
        raise errors.Unavailable(f"{program} failed: {last}")

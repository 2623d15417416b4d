"""Files that are whole or absent, private where they must be, and folders held by one process.

A write that returns has reached the disk: the file is synced, renamed into place, and its folder synced. Such
files are small and few, and may use the reserve of a full disk (`skerry.kit.disk_reserve`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import struct
from pathlib import Path

from skerry.kit import disk_reserve as kit_disk_reserve

PRIVATE = 0o600
PUBLIC = 0o644
# So much of a disk is not for what callers send or name: one part in so many, and no more than so many bytes.
_RESERVED_PART = 20
_RESERVED_BYTES = 8 << 30
# Of the kernel: FS_IOC_GETFLAGS, FS_IOC_SETFLAGS and FS_TOPDIR_FL.
_GET_FLAGS, _SET_FLAGS, _IS_TOP = 0x80086601, 0x40086602, 0x00020000
_FLAGS = struct.Struct("=Q")
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{12}")  # the name of a file while it is written


def write_atomically(path: Path, data: bytes, mode: int = PUBLIC) -> None:
    """Replace `path` with `data`. A reader sees the old file or the new one, also after a power cut."""
    kit_disk_reserve.spend(lambda: _write_atomically(path, data, mode))


def _write_atomically(path: Path, data: bytes, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # the umask must not change the mode of the caller
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def write_whole(path: str | Path, data: bytes, *, flags: int = os.O_TRUNC, mode: int = PRIVATE) -> None:
    """Write a file by one call, without a sync. Raises OSError, also if the disk takes only a part."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, mode)
    try:
        if mode != PRIVATE:
            os.fchmod(descriptor, mode)  # the umask must not change the mode of the caller
        written = os.write(descriptor, data)
    finally:
        os.close(descriptor)
    if written != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process was writing, in `folder` and the folders directly in it, while nobody else
    writes there."""
    for place in (folder, *(one for one in _entries(folder) if one.is_dir(follow_symlinks=False))):
        for entry in _entries(place):
            if _UNFINISHED.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):  # a failing disk, which is found soon enough
                    os.unlink(entry.path)


def _entries(folder: os.PathLike[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(folder: Path) -> None:
    """Make all files on the file system of `folder` durable, thousands in one call. Raises OSError."""
    import ctypes  # most of those who import this module never need it

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


def spread_folders(folder: Path) -> None:
    """Tell the file system that the folders in `folder` have nothing to do with each other, as `chattr +T`
    does. ext4 then spreads them over the disk. Otherwise their files are created where those of others were
    just deleted, and without a journal it does not reuse their inodes for a minute, but looks at each."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = bytearray(8)
        fcntl.ioctl(descriptor, _GET_FLAGS, flags)
        (before,) = _FLAGS.unpack(flags)
        if not before & _IS_TOP:
            fcntl.ioctl(descriptor, _SET_FLAGS, _FLAGS.pack(before | _IS_TOP))
    except OSError:
        pass  # another file system
    finally:
        os.close(descriptor)


def private_folder(path: Path) -> Path:
    """Make `path` (and its parents) if needed and keep others out of it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


class FolderLocked(RuntimeError):
    """Another live process holds the folder; `pid` is what it wrote of itself, 0 if it wrote nothing yet."""

    def __init__(self, folder: Path, pid: int) -> None:
        super().__init__(f"{folder} is held by process {pid}")
        self.folder = folder
        self.pid = pid


class FolderLock:
    """One live process per folder. The kernel drops the lock when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._descriptor: int | None = None

    def acquire(self) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PUBLIC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise FolderLocked(self._path.parent, int(text) if text.isdigit() else 0) from None
        self.adopt(descriptor)

    def adopt(self, descriptor: int) -> None:
        """Hold the folder by a descriptor of the locked file, which another process has passed on or shares,
        and write down which process this is."""
        os.ftruncate(descriptor, 0)
        with contextlib.suppress(OSError):  # a full disk: it is held all the same
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    @property
    def descriptor(self) -> int:
        """Of the locked file, while this holds it: who gets a copy holds the lock, too."""
        assert self._descriptor is not None, "the folder is not held"
        return self._descriptor

    def leave(self) -> None:
        """Close the file: another process that has a copy of the descriptor goes on holding the folder."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def release(self) -> None:
        """Give the folder up. The file stays: removing it would race with a process that just opened it."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def disk_reserve(all_bytes: int) -> int:
    """The bytes to leave free on a file system of that size, so that the machine keeps working."""
    return min(all_bytes // _RESERVED_PART, _RESERVED_BYTES)


def spare_bytes(folder: Path) -> int:
    """How much may be written to the file system of `folder` before only the reserve is left."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize - disk_reserve(status.f_blocks * status.f_frsize)

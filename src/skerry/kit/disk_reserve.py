"""A reserve of disk space for writes that must not fail because a disk is full: ends, stops and deletions.

A process has one data folder, so it has one reserve: a file of preallocated blocks there. `spend` does a
short write, and releases a portion of the file whenever the disk is full; other writes just fail. Released
space is allocated again when there is space (`refill`, called by `skerry.kit.disk_monitor`). While the
reserve is short, requests that add something are refused (`shortage`): the rest is for deletions.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

FILE_NAME: Final = "reserve"
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_PORTIONS: Final = 16  # others may use released space, so it is not released all at once
_LEAST_PORTION: Final = 64 * 1024
_MARGIN: Final = 4  # allocated again if a quarter of the size is left free after that


class DiskReserve:
    """The file; its methods may be called from any thread."""

    def __init__(self, folder: Path, size: int) -> None:
        """A `size` of 0 means none. Nothing is allocated before `refill`."""
        self.folder = folder
        self._path = folder / FILE_NAME
        self._portion = max(size // _PORTIONS, _LEAST_PORTION)
        self._lock = threading.Lock()
        self.size = size
        self.held = self._path.stat().st_size if self._path.exists() else 0

    @property
    def is_short(self) -> bool:
        return self.held < self.size

    def release(self, size: int | None = None) -> bool:
        """Release a portion, or `size`; False if nothing is left."""
        with self._lock:
            if not self.held:
                return False
            left = max(0, self.held - (self._portion if size is None else size))
            try:
                os.truncate(self._path, left)
            except FileNotFoundError:  # a user has removed it, and so released all
                left = 0
            self.held = left
            return True

    def refill(self) -> None:
        """Allocate what is missing, if the disk has space for more than that."""
        with self._lock:
            if self.held and not self._path.exists():
                self.held = 0
            missing = self.size - self.held
            if missing < 0:  # the setting was lowered
                os.truncate(self._path, self.size)
                self.held = self.size
            if missing <= 0 or free_bytes(self.folder) < missing + self.size // _MARGIN:
                return
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self.size)
                self.held = self.size
            except OSError:
                os.ftruncate(descriptor, self.held)  # another process was quicker
            finally:
                os.close(descriptor)


_NONE: Final = DiskReserve(Path(os.devnull), 0)
_current = _NONE


@contextlib.contextmanager
def installed(reserve: DiskReserve) -> Iterator[DiskReserve]:
    """Install `reserve` as this process's."""
    global _current
    _current = reserve
    try:
        yield reserve
    finally:
        _current = _NONE


def current() -> DiskReserve:
    """The one of this process; without one, one of size 0."""
    return _current


def spend(work: Callable[[], T]) -> T:
    """Do `work`, a short write; while the disk is full, with space from the reserve."""
    while True:
        try:
            return work()
        except OSError as error:
            if error.errno not in FULL or not _current.release():
                raise


def release() -> bool:
    """Release a portion for a write that failed; False if nothing is left."""
    return _current.release()


def shortage() -> str:
    """Why nothing new may be added to the disk; empty if it may be."""
    if not _current.is_short:
        return ""
    return f"the disk of {_current.folder} is full; remove something, or give it more space"


def free_bytes(folder: Path) -> int:
    """What this process may write to the disk of `folder`: root may have what a file system keeps for it."""
    status = os.statvfs(folder)
    return (status.f_bavail if os.geteuid() else status.f_bfree) * status.f_frsize

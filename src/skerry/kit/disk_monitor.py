"""Checks every few seconds whether the disk of a data folder takes writes, with a sentence if not.

`DiskMonitor` also refills the reserve (`skerry.kit.disk_reserve`) when there is space again. It neither
removes anything nor decides what to refuse: `problem` is for `/readyz`, for the node's facts and for people.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from typing import Final

import structlog

from skerry.kit import disk_reserve, files, metrics
from skerry.kit.disk_reserve import DiskReserve

log = structlog.get_logger(__name__)

EVERY_S: Final = 2.0
START_BYTES: Final = 8 << 20  # what a process needs to start: keys, a store, records
PROBE: Final = ".write-test"  # in the folder, for a moment
_PROBE_BYTES: Final = 64 * 1024
_MEGABYTE: Final = 1 << 20
_MESSAGES: Final = {
    errno.EDQUOT: "the disk quota for {folder} is used up; raise it, or remove files there",
    errno.EROFS: "the disk of {folder} is mounted read-only; the kernel's log may say why",
    errno.EIO: "the disk of {folder} fails (input/output error); check the kernel's log, and replace it",
}

WRITABLE = metrics.gauge("skerry_disk_writable", "1 if the disk of the data folder takes writes")
FREE = metrics.gauge("skerry_disk_free_bytes", "Free space on the disk of the data folder")
SIZE = metrics.gauge("skerry_disk_size_bytes", "Size of the disk of the data folder")


def explain(error: OSError, folder: Path) -> str:
    """What is wrong with the disk of `folder`, and what to do."""
    if error.errno == errno.ENOSPC:
        return full(folder)
    words = _MESSAGES.get(error.errno or 0, "files in {folder} cannot be written: {why}")
    return words.format(folder=folder, why=error.strerror)


def full(folder: Path) -> str:
    """That its disk is full, and of what."""
    status = os.statvfs(_existing(folder))
    if status.f_files and not status.f_ffree:
        return f"the disk of {folder} is full: no inodes are left; remove files from it"
    left = free_bytes(folder) / _MEGABYTE
    return (
        f"the disk of {folder} is full: {left:.1f} MB are left; remove files from it, or give it more space"
    )


def free_bytes(folder: Path) -> int:
    """What this process may write to the disk of `folder`, which need not be there yet."""
    return disk_reserve.free_bytes(_existing(folder))


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def refuses(error: OSError) -> bool:
    """True if the error is the disk's, and not the program's."""
    return error.errno == errno.ENOSPC or error.errno in _MESSAGES


class DiskMonitor:
    """Checks the disk of `folder`; `problem` is empty while it takes writes."""

    def __init__(self, folder: Path, kept: DiskReserve) -> None:
        self._folder = folder
        self._reserve = kept
        self.problem = ""
        self.free_share = 1.0  # of the disk, at the last check
        WRITABLE.set(1)

    @property
    def condition(self) -> str:
        """`problem` without numbers that change from check to check."""
        return f"the disk of {self._folder} takes no writes" if self.problem else ""

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.check()
            await asyncio.sleep(EVERY_S)

    async def check(self) -> str:
        """The problem now; empty if there is none."""
        problem = await asyncio.to_thread(self._find_problem)
        if bool(problem) != bool(self.problem):
            log.warning("disk.refuses", reason=problem) if problem else log.info("disk.accepts")
            WRITABLE.set(not problem)
        self.problem = problem
        return problem

    def _find_problem(self) -> str:
        status = os.statvfs(_existing(self._folder))
        FREE.set(status.f_bavail * status.f_frsize)
        SIZE.set(status.f_blocks * status.f_frsize)
        self.free_share = status.f_bavail / max(1, status.f_blocks)
        try:
            self._reserve.refill()
            _probe(self._folder)
        except OSError as error:
            return explain(error, self._folder)
        if not self._reserve.is_short:
            return ""
        size = self._reserve.size // _MEGABYTE
        return f"{full(self._folder)} ({size} MB are to be kept in reserve: disk_reserve_mb)"


def _probe(folder: Path) -> None:
    """Write a little, which usually is removed before it reaches the disk."""
    path = folder / PROBE
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, files.PRIVATE)
    try:
        if os.write(descriptor, bytes(_PROBE_BYTES)) != _PROBE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            path.unlink()

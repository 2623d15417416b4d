"""Disks that misbehave."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def disk_full(limit_bytes: int = 65536) -> Iterator[None]:
    """No file of this process may grow beyond `limit_bytes`: writes fail as they do on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class SmallDisk:
    """A real file system of a few megabytes, which a test fills and empties."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ballast = root / "ballast"

    def fill(self) -> None:
        """Not one more block can be written. What a process had allocated before it can still overwrite."""
        with open(self._ballast, "ab", buffering=0) as file:
            for size in (1 << 20, 1 << 16, 1 << 12, 1 << 10):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass
            with contextlib.suppress(OSError):
                os.fsync(file.fileno())

    def empty(self) -> None:
        """There is room again."""
        self._ballast.unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        status = os.statvfs(self.root)
        return status.f_bfree * status.f_frsize


@contextmanager
def small_disk(folder: Path, megabytes: int = 64) -> Iterator[SmallDisk]:
    """An ext4 of that size on a loop device, mounted below `folder`. Needs root."""
    image, root = folder / "disk.img", folder / "disk"
    root.mkdir()
    with open(image, "wb") as file:
        file.truncate(megabytes << 20)
    # No blocks that only root may have: Skerry is root, and would not see the disk full.
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, root], check=True)
    try:
        yield SmallDisk(root)
    finally:
        subprocess.run(["umount", root], check=True)
        image.unlink()

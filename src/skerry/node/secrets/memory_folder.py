"""A folder in memory, for values that must not reach a disk: a tmpfs that only root may enter.

    /run/skerry-secrets/KEY/      KEY is different for every Skerry of a machine
      values/                     values as they came, by a hash of their names
      mounts/NAME/                files of one container or worker, as it sees them

It is mounted when it is first needed, and unmounted by `close` when nothing is left in it. It outlives the
agent, so the next one can restart containers while the server is away, and is gone after a reboot. With
`noswap`, where the kernel has it, its pages are never swapped out.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Final

import structlog

from skerry.model import errors
from skerry.node.kernel import mount_flags, thread_syscalls

log = structlog.get_logger(__name__)

FOLDER: Final = Path("/run/skerry-secrets")
SIZE_MB: Final = 256
_FLAGS: Final = mount_flags.MS_NOSUID | mount_flags.MS_NODEV | mount_flags.MS_NOEXEC


class MemoryFolder:
    """One such folder. All calls block for a short time, and may run in any thread."""

    def __init__(self, path: Path, *, mounts: bool = True) -> None:
        """Without `mounts`, an ordinary folder, for tests that are not root."""
        self._path = path
        self._mounts = mounts
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """The folder, mounted. Raises `Unavailable` if it cannot be."""
        with self._lock:
            if not self._is_there():
                self._mount()
        return self._path

    def child(self, name: str) -> Path:
        """A folder in it, which exists."""
        path = self.path / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def existing(self, name: str) -> Path | None:
        """The same if it exists; nothing is mounted for that."""
        path = self._path / name
        return path if self._is_there() and path.is_dir() else None

    def close(self) -> None:
        """Unmount it, if nothing is left in it."""
        with self._lock:
            if not self._is_there():
                return
            if any(entry for child in self._path.iterdir() for entry in child.iterdir()):
                return
            self._unmount()

    def _is_there(self) -> bool:
        return os.path.ismount(self._path) if self._mounts else self._path.is_dir()

    def _mount(self) -> None:
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.parent.chmod(0o700)
            if not self._mounts:
                return
            options = f"mode=0700,size={SIZE_MB}m"
            try:
                self._mount_with(f"{options},noswap")
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._mount_with(options)  # Linux before 6.4 does not know it
            thread_syscalls.change_mount(str(self._path), mount_flags.MS_PRIVATE)
        except OSError as error:
            raise errors.Unavailable(
                f"this node has no memory for secrets: {error.strerror}", detail=repr(error)
            ) from error
        log.info("secrets.mounted", path=str(self._path))

    def _mount_with(self, options: str) -> None:
        thread_syscalls.mount("skerry-secrets", str(self._path), "tmpfs", _FLAGS, options)

    def _unmount(self) -> None:
        with contextlib.suppress(OSError):  # it is used after all: the next agent unmounts it
            if self._mounts:
                thread_syscalls.unmount(str(self._path))
            else:
                shutil.rmtree(self._path)
            self._path.rmdir()

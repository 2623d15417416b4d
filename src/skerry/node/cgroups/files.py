"""The few things one does with cgroupfs, as an interface: a fake with the kernel's rules can stand in for it.

Plain files in a temporary folder would not do as a fake: in cgroupfs making a folder makes its files, writes
are checked, and folders are removed with their files in them. Errors are the kernel's own, as OSError; what
they mean is for the callers to say.
"""

from __future__ import annotations

import errno
import os
from typing import Protocol

_READ = 64 * 1024


class CgroupFiles(Protocol):
    """A cgroup file system; paths are absolute."""

    def mkdir(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def read(self, path: str) -> str: ...

    def write(self, path: str, text: str) -> None: ...

    def list(self, path: str) -> list[str]:
        """Names of the groups right below `path`."""
        ...

    def exists(self, path: str) -> bool: ...

    def open_folder(self, path: str) -> int:
        """A descriptor of the group itself."""
        ...

    def open_to_write(self, path: str) -> int:
        """A descriptor of a file for somebody else to write to."""
        ...

    def open_to_watch(self, path: str) -> int | None:
        """A descriptor that polls as urgent when the file changes; None where nothing tells of changes."""
        ...


class KernelCgroupFiles:
    """The real thing."""

    def mkdir(self, path: str) -> None:
        os.mkdir(path, 0o755)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def read(self, path: str) -> str:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while part := os.read(descriptor, _READ):
                parts.append(part)
        except OSError as error:
            raise _gone(error, path) from error
        finally:
            os.close(descriptor)
        return b"".join(parts).decode()

    def write(self, path: str, text: str) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        except OSError as error:
            raise _gone(error, path) from error
        finally:
            os.close(descriptor)

    def list(self, path: str) -> list[str]:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def open_folder(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_to_write(self, path: str) -> int:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def open_to_watch(self, path: str) -> int | None:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _gone(error: OSError, path: str) -> OSError:
    """A group that went away between open and use reads like one that is not there."""
    return (
        FileNotFoundError(errno.ENOENT, "the group is gone", path) if error.errno == errno.ENODEV else error
    )

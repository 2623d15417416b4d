"""Operations on cgroupfs, as an interface, so that a fake with the kernel's rules can replace it.

Files in a temporary folder would not do: in cgroupfs mkdir creates files, writes are validated, and rmdir
removes a folder with its files. Errors are the kernel's own, as OSError; callers interpret them.
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
        """Names of the groups directly below `path`."""
        ...

    def exists(self, path: str) -> bool: ...

    def open_folder(self, path: str) -> int:
        """A descriptor of the group's folder."""
        ...

    def open_to_write(self, path: str) -> int:
        """A descriptor for another process to write to."""
        ...

    def open_to_watch(self, path: str) -> int | None:
        """A descriptor that polls as urgent when the file changes; None where there are no notifications."""
        ...


class KernelCgroupFiles:
    """The real cgroupfs."""

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
            raise _missing_if_removed(error, path) from error
        finally:
            os.close(descriptor)
        return b"".join(parts).decode()

    def write(self, path: str, text: str) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        except OSError as error:
            raise _missing_if_removed(error, path) from error
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


def _missing_if_removed(error: OSError, path: str) -> OSError:
    """A group that was removed between open and use reads like a missing one."""
    return (
        FileNotFoundError(errno.ENOENT, "the group is gone", path) if error.errno == errno.ENODEV else error
    )

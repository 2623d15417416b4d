"""Project quotas: a limit of the kernel on everything in a folder, on ext4 and XFS.

A folder gets a project number, which everything created in it inherits and nothing can be renamed out of, and
the file system limits the project to a number of blocks and of inodes: more fails with EDQUOT or ENOSPC, also
for unlinked files and preallocated blocks. Numbers are stored only in the folders themselves, so nothing has
to be restored after a restart. They are derived from the folder's inode number, in a range of our own, since
other programs (Docker, kubelet) count theirs from small numbers up.

Used by `skerry.node.containers.writable_layers`, which has alternatives where this does not work: on other
file systems, on these without the mount option `prjquota`, and before Linux 5.14.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from skerry.node.kernel import thread_syscalls

# struct fsxattr: flags, extent size, extents, project, copy-on-write extent size, padding.
_ATTRIBUTES: Final = struct.Struct("=IIIII8x")
_GET_ATTRIBUTES: Final = 0x801C581F  # FS_IOC_FSGETXATTR
_SET_ATTRIBUTES: Final = 0x401C5820
_INHERITED: Final = 0x200  # FS_XFLAG_PROJINHERIT

# struct fs_disk_quota: version, kind, which fields, number; limits and use of blocks and inodes as below; the
# rest is timers and warnings that projects do not use.
_QUOTA: Final = struct.Struct("=bbHI6Q56x")
_VERSION: Final = 1
_KIND_PROJECT: Final = 2  # FS_PROJ_QUOTA
_LIMITS: Final = 0b1111  # FS_DQ_ISOFT | FS_DQ_IHARD | FS_DQ_BSOFT | FS_DQ_BHARD
_BLOCK: Final = 512
_PROJECTS: Final = 2  # PRJQUOTA
_GET_QUOTA: Final = (ord("X") << 8 | 3) << 8 | _PROJECTS  # Q_XGETQUOTA, which ext4 supports as well
_SET_LIMITS: Final = (ord("X") << 8 | 4) << 8 | _PROJECTS  # Q_XSETQLIM

_RANGE: Final = 1 << 30
_TRIES: Final = 64


class QuotaSyscalls(Protocol):
    """System calls; tests replace them."""

    def control_file(self, descriptor: int, request: int, data: bytearray) -> None: ...

    def control_quota(self, descriptor: int, command: int, number: int, data: bytearray) -> None: ...


class KernelQuotaSyscalls:
    """The real system calls."""

    def control_file(self, descriptor: int, request: int, data: bytearray) -> None:
        fcntl.ioctl(descriptor, request, data)

    def control_quota(self, descriptor: int, command: int, number: int, data: bytearray) -> None:
        thread_syscalls.control_quota(descriptor, command, number, data)


class ProjectQuota(NamedTuple):
    """Limit (0: none) and usage of a project, in bytes."""

    limit: int
    used: int


class ProjectQuotas:
    """Quotas on folders. Every method raises OSError where the file system or the kernel has none."""

    def __init__(self, calls: QuotaSyscalls | None = None) -> None:
        self._calls: QuotaSyscalls = calls or KernelQuotaSyscalls()

    def assign(self, folder: Path) -> int:
        """Give the empty `folder` a project of its own, if it has none, which everything in it will
        inherit."""
        with _opened(folder) as descriptor:
            flags, extent, extents, project, copied = self._attributes(descriptor)
            if self._is_in_range(project):
                return project
            project = self._unused(descriptor)
            changed = bytearray(_ATTRIBUTES.pack(flags | _INHERITED, extent, extents, project, copied))
            self._calls.control_file(descriptor, _SET_ATTRIBUTES, changed)
            return project

    def limit(self, folder: Path, limit_bytes: int | None, inodes: int | None) -> None:
        """Limit the project of `folder` to so many bytes and inodes; None is no limit."""
        with _opened(folder) as descriptor:
            blocks = 0 if limit_bytes is None else max(1, limit_bytes // _BLOCK)  # 0 would be no limit
            files = 0 if inodes is None else max(1, inodes)
            project = self._project(descriptor)
            limits = (blocks, blocks, files, files)
            quota = _QUOTA.pack(_VERSION, _KIND_PROJECT, _LIMITS, project, *limits, *(0,) * 2)
            self._calls.control_quota(descriptor, _SET_LIMITS, project, bytearray(quota))

    def read(self, folder: Path) -> ProjectQuota:
        """Limit and usage of the project of `folder`."""
        with _opened(folder) as descriptor:
            return self._read(descriptor, self._project(descriptor)) or ProjectQuota(0, 0)

    def has_project(self, folder: Path) -> bool:
        """True if `assign` was called on it."""
        with _opened(folder) as descriptor:
            return self._is_in_range(self._attributes(descriptor)[3])

    def _project(self, descriptor: int) -> int:
        project = self._attributes(descriptor)[3]
        if not self._is_in_range(project):
            raise FileNotFoundError("the folder has no project")
        return project

    @staticmethod
    def _is_in_range(project: int) -> bool:
        return _RANGE <= project < 2 * _RANGE

    def _unused(self, descriptor: int) -> int:
        """A number without usage. On large XFS two inodes may have the same; then the next one is tried."""
        first = os.fstat(descriptor).st_ino
        for offset in range(_TRIES):
            project = _RANGE + (first + offset) % _RANGE
            if self._read(descriptor, project) in (None, ProjectQuota(0, 0)):
                return project
        raise FileExistsError("no project number is free")

    def _attributes(self, descriptor: int) -> tuple[int, ...]:
        data = bytearray(_ATTRIBUTES.size)
        self._calls.control_file(descriptor, _GET_ATTRIBUTES, data)
        return _ATTRIBUTES.unpack(data)

    def _read(self, descriptor: int, project: int) -> ProjectQuota | None:
        data = bytearray(_QUOTA.size)
        try:
            self._calls.control_quota(descriptor, _GET_QUOTA, project, data)
        except FileNotFoundError:
            return None  # XFS: no usage
        *_, hard, _soft, _inodes_hard, _inodes_soft, blocks, _inodes = _QUOTA.unpack(data)
        return ProjectQuota(hard * _BLOCK, blocks * _BLOCK)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

"""Project quotas: a limit of the kernel's on everything that lies in a folder, on ext4 and XFS.

A folder gets a project number, which everything made in it inherits and nothing can be renamed out of, and
the file system holds the project to a number of blocks and of inodes: more fails with EDQUOT or ENOSPC, also
for files that have no name any more and for blocks that are only reserved. Numbers are kept nowhere but in
the folders themselves, so nothing has to be found again after a restart. They come from the number of the
folder's inode, in a range of our own, since other programs on the machine (Docker, kubelet) count theirs from
small numbers up.

Used by `skerry.node.containers.writable_layers`, which has other means where none of this works: on other
file systems, on these if they are not mounted with `prjquota`, and before Linux 5.14.
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

# struct fs_disk_quota: version, kind, which fields, number; limits and use of blocks and inodes as below;
# the rest is timers and warnings that have no meaning for projects.
_QUOTA: Final = struct.Struct("=bbHI6Q56x")
_VERSION: Final = 1
_KIND_PROJECT: Final = 2  # FS_PROJ_QUOTA
_LIMITS: Final = 0b1111  # FS_DQ_ISOFT | FS_DQ_IHARD | FS_DQ_BSOFT | FS_DQ_BHARD
_BLOCK: Final = 512
_PROJECTS: Final = 2  # PRJQUOTA
_GET_QUOTA: Final = (ord("X") << 8 | 3) << 8 | _PROJECTS  # Q_XGETQUOTA, which ext4 answers as well
_SET_LIMITS: Final = (ord("X") << 8 | 4) << 8 | _PROJECTS  # Q_XSETQLIM

_RANGE: Final = 1 << 30
_TRIES: Final = 64


class QuotaSyscalls(Protocol):
    """What is asked of the kernel; tests answer in its place."""

    def control_file(self, descriptor: int, request: int, data: bytearray) -> None: ...

    def control_quota(self, descriptor: int, command: int, number: int, data: bytearray) -> None: ...


class KernelQuotaSyscalls:
    """The kernel itself."""

    def control_file(self, descriptor: int, request: int, data: bytearray) -> None:
        fcntl.ioctl(descriptor, request, data)

    def control_quota(self, descriptor: int, command: int, number: int, data: bytearray) -> None:
        thread_syscalls.control_quota(descriptor, command, number, data)


class ProjectQuota(NamedTuple):
    """Limit (0: none) and use of a project, in bytes."""

    limit: int
    used: int


class ProjectQuotas:
    """Quotas on folders. Every method raises OSError where the file system or the kernel cannot."""

    def __init__(self, calls: QuotaSyscalls | None = None) -> None:
        self._calls: QuotaSyscalls = calls or KernelQuotaSyscalls()

    def assign(self, folder: Path) -> int:
        """Give the empty `folder` a project of its own, if it has none, for everything to be made in it."""
        with _opened(folder) as descriptor:
            flags, extent, extents, project, copied = self._attributes(descriptor)
            if self._is_ours(project):
                return project
            project = self._unused(descriptor)
            changed = bytearray(_ATTRIBUTES.pack(flags | _INHERITED, extent, extents, project, copied))
            self._calls.control_file(descriptor, _SET_ATTRIBUTES, changed)
            return project

    def limit(self, folder: Path, limit_bytes: int | None, inodes: int | None) -> None:
        """Hold the project of `folder` to so many bytes and files of any kind; None is no limit."""
        with _opened(folder) as descriptor:
            blocks = 0 if limit_bytes is None else max(1, limit_bytes // _BLOCK)  # 0 would be no limit
            files = 0 if inodes is None else max(1, inodes)
            project = self._project(descriptor)
            limits = (blocks, blocks, files, files)
            asked = _QUOTA.pack(_VERSION, _KIND_PROJECT, _LIMITS, project, *limits, *(0,) * 2)
            self._calls.control_quota(descriptor, _SET_LIMITS, project, bytearray(asked))

    def read(self, folder: Path) -> ProjectQuota:
        """Limit and use of the project of `folder`."""
        with _opened(folder) as descriptor:
            return self._read(descriptor, self._project(descriptor)) or ProjectQuota(0, 0)

    def has_project(self, folder: Path) -> bool:
        """True if `assign` has been here."""
        with _opened(folder) as descriptor:
            return self._is_ours(self._attributes(descriptor)[3])

    def _project(self, descriptor: int) -> int:
        project = self._attributes(descriptor)[3]
        if not self._is_ours(project):
            raise FileNotFoundError("the folder has no project")
        return project

    @staticmethod
    def _is_ours(project: int) -> bool:
        return _RANGE <= project < 2 * _RANGE

    def _unused(self, descriptor: int) -> int:
        """A number that nothing is counted for. On large XFS two inodes may lead to one; then the next is."""
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
            return None  # how XFS says that nothing is counted for it
        *_, hard, _soft, _inodes_hard, _inodes_soft, blocks, _inodes = _QUOTA.unpack(data)
        return ProjectQuota(hard * _BLOCK, blocks * _BLOCK)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

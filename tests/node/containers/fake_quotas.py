"""A file system with project quotas, as the kernel shows it to programs: the same numbers, the same layouts.

The layouts are written down here a second time, field by field as in `linux/fs.h` and `linux/dqblk_xfs.h`,
so that a mistake in the program's own would show.
"""

from __future__ import annotations

import ctypes
import errno
import os


class Attributes(ctypes.Structure):
    """struct fsxattr"""

    _fields_ = [
        ("xflags", ctypes.c_uint32),
        ("extsize", ctypes.c_uint32),
        ("nextents", ctypes.c_uint32),
        ("projid", ctypes.c_uint32),
        ("cowextsize", ctypes.c_uint32),
        ("pad", ctypes.c_ubyte * 8),
    ]


class DiskQuota(ctypes.Structure):
    """struct fs_disk_quota"""

    _fields_ = [
        ("version", ctypes.c_int8),
        ("flags", ctypes.c_int8),
        ("fieldmask", ctypes.c_uint16),
        ("id", ctypes.c_uint32),
        ("blk_hardlimit", ctypes.c_uint64),
        ("blk_softlimit", ctypes.c_uint64),
        ("ino_hardlimit", ctypes.c_uint64),
        ("ino_softlimit", ctypes.c_uint64),
        ("bcount", ctypes.c_uint64),
        ("icount", ctypes.c_uint64),
        ("itimer", ctypes.c_int32),
        ("btimer", ctypes.c_int32),
        ("iwarns", ctypes.c_uint16),
        ("bwarns", ctypes.c_uint16),
        ("timers_high", ctypes.c_int8 * 4),
        ("rtb_hardlimit", ctypes.c_uint64),
        ("rtb_softlimit", ctypes.c_uint64),
        ("rtbcount", ctypes.c_uint64),
        ("rtbtimer", ctypes.c_int32),
        ("rtbwarns", ctypes.c_uint16),
        ("padding3", ctypes.c_int16),
        ("padding4", ctypes.c_char * 8),
    ]


class FakeQuotas:
    """Keeps attributes by inode and quotas by project. `says_nothing` is how XFS treats unknown projects."""

    def __init__(self, *, says_nothing: bool = False) -> None:
        self.attributes: dict[int, Attributes] = {}
        self.quotas: dict[int, DiskQuota] = {}
        self.says_nothing = says_nothing

    def control_file(self, descriptor: int, request: int, data: bytearray) -> None:
        assert len(data) == ctypes.sizeof(Attributes) == 28
        inode = os.fstat(descriptor).st_ino
        match request:
            case 0x801C581F:  # FS_IOC_FSGETXATTR
                data[:] = bytes(self.attributes.get(inode, Attributes(xflags=0x80, extsize=7)))
            case 0x401C5820:  # FS_IOC_FSSETXATTR
                self.attributes[inode] = Attributes.from_buffer_copy(data)
            case _:
                raise OSError(errno.ENOTTY, "not a request of files")

    def control_quota(self, descriptor: int, command: int, number: int, data: bytearray) -> None:
        os.fstat(descriptor)  # it is open
        assert len(data) == ctypes.sizeof(DiskQuota) == 112
        kind, command = command & 0xFF, command >> 8
        assert kind == 2, "quotas of projects"
        match command:
            case 0x5803:  # Q_XGETQUOTA
                if number not in self.quotas and self.says_nothing:
                    raise FileNotFoundError(errno.ENOENT, "no such project")
                data[:] = bytes(self.quotas.get(number, DiskQuota(version=1, flags=2, id=number)))
            case 0x5804:  # Q_XSETQLIM
                requested = DiskQuota.from_buffer_copy(data)
                assert (requested.version, requested.flags, requested.id) == (1, 2, number)
                stored = self.quotas.setdefault(number, DiskQuota(version=1, flags=2, id=number))
                if requested.fieldmask & 1 << 2:
                    stored.blk_softlimit = requested.blk_softlimit
                if requested.fieldmask & 1 << 3:
                    stored.blk_hardlimit = requested.blk_hardlimit
                if requested.fieldmask & 1 << 0:
                    stored.ino_softlimit = requested.ino_softlimit
                if requested.fieldmask & 1 << 1:
                    stored.ino_hardlimit = requested.ino_hardlimit
                assert not requested.fieldmask & ~0b1111
            case _:
                raise OSError(errno.EINVAL, "no such command")

"""Constants of the kernel for mounts.

Used by `skerry.node.kernel.syscalls` (single-threaded), `skerry.node.kernel.thread_syscalls` (the agent) and
their callers. The system calls have the same number on every architecture.
"""

from __future__ import annotations

from typing import Final

OPEN_TREE: Final = 428
MOVE_MOUNT: Final = 429
MOUNT_SETATTR: Final = 442

MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REMOUNT: Final = 0x20
MS_BIND: Final = 0x1000
MS_RECURSIVE: Final = 0x4000
MS_PRIVATE: Final = 1 << 18
MNT_DETACH: Final = 0x2
UMOUNT_NOFOLLOW: Final = 0x8

MOUNT_ATTR_RDONLY: Final = 0x1
MOUNT_ATTR_NOSUID: Final = 0x2
MOUNT_ATTR_NODEV: Final = 0x4
MOUNT_ATTR_NOEXEC: Final = 0x8
MOUNT_ATTR_IDMAP: Final = 0x100000

AT_FDCWD: Final = -100
AT_RECURSIVE: Final = 0x8000
AT_EMPTY_PATH: Final = 0x1000
OPEN_TREE_CLONE: Final = 0x1
MOVE_MOUNT_F_EMPTY_PATH: Final = 0x4

"""What each cell has of its own in its root: /tmp, terminals, shared memory, /proc and /sys.

Runs in a copy of the root that `skerry.node.launcher.child.cell_root` makes. Nothing in a cell may unmount,
so what is covered stays covered.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from skerry.node.kernel import syscalls
from skerry.node.kernel.syscalls import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REMOUNT
from skerry.node.launcher.child import cell_root

_WRITABLE: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - of the cell's own
# Root without a single capability may still write to these, as the owner of the files.
_READ_ONLY: Final = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
# Of the host and not of the cell, and nobody's business there.
_MASKED: Final = (
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmcore",
    "/sys/firmware",
    "/sys/fs/cgroup",
)


def set_up(tmp_mb: int) -> None:
    """Mount them, in the namespaces that they are to tell of."""
    for path in _WRITABLE:
        syscalls.mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, f"size={tmp_mb}m,mode=1777")
    syscalls.mount(
        "devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"
    )
    syscalls.mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    syscalls.mount("sysfs", "/sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for path in _READ_ONLY:
        if os.path.exists(path):
            syscalls.mount(path, path, "", MS_BIND)
            syscalls.mount("", path, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for path in _MASKED:
        try:
            is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
        except FileNotFoundError:
            continue
        syscalls.mount(cell_root.EMPTY if is_folder else "/dev/null", path, "", MS_BIND)
    os.chdir("/")

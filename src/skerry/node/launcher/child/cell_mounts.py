"""Private mounts of each cell: /tmp, terminals, shared memory, /proc and /sys.

Runs in a copy of the root that `skerry.node.launcher.child.cell_root` creates. Processes in a cell cannot
unmount, so what is masked stays masked.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from skerry.node.kernel import syscalls
from skerry.node.kernel.host_paths import MASKED_PATHS, READ_ONLY_PATHS
from skerry.node.kernel.mount_flags import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REMOUNT
from skerry.node.launcher.child import cell_root

_WRITABLE: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - of the cell's own
_MASKED: Final = (*MASKED_PATHS, "/sys/fs/cgroup")


def set_up(tmp_mb: int) -> None:
    """Mount them, in the namespaces that they show."""
    for path in _WRITABLE:
        syscalls.mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, f"size={tmp_mb}m,mode=1777")
    syscalls.mount(
        "devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"
    )
    syscalls.mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    try:
        syscalls.mount("sysfs", "/sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except syscalls.StepFailed as failed:
        # Of a network that is not this user's: that of the machine is there already, and read-only.
        if failed.errno != errno.EPERM or not os.listdir("/sys"):
            raise
    for path in READ_ONLY_PATHS:
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

"""Private mounts of each cell: /tmp, terminals, shared memory, /proc and /sys.

Runs in a copy of the root that `skerry.node.launcher.child.cell_root` creates. Processes in a cell cannot
unmount, so what is masked stays masked.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final, NamedTuple

from skerry.node.kernel import syscalls
from skerry.node.kernel.host_paths import MASKED_PATHS, READ_ONLY_PATHS
from skerry.node.kernel.mount_flags import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REMOUNT
from skerry.node.launcher.child import cell_root
from skerry.node.launcher.child.syscall_scripts import SyscallScript

_WRITABLE: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - of the cell's own
_MASKED: Final = (*MASKED_PATHS, "/sys/fs/cgroup")


class HostPaths(NamedTuple):
    """What of this machine's /proc and /sys is covered in a cell."""

    read_only: tuple[str, ...]
    masked: tuple[tuple[str, str], ...]  # with what masks them

    @classmethod
    def find(cls) -> HostPaths:
        """Those that exist. They are the same in the /proc and /sys of every cell."""
        masked = []
        for path in _MASKED:
            try:
                is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
            except FileNotFoundError:
                continue
            masked.append((path, cell_root.EMPTY if is_folder else "/dev/null"))
        return cls(tuple(path for path in READ_ONLY_PATHS if os.path.exists(path)), tuple(masked))


def set_up(tmp_mb: int) -> None:
    """Mount them, in the namespaces that they show."""
    file_systems = SyscallScript()
    add_file_systems(file_systems, tmp_mb)
    file_systems.perform()
    devices = SyscallScript()
    add_sysfs(devices)
    try:
        devices.perform()
    except syscalls.StepFailed as failed:
        # Of a network that is not this user's: that of the machine is there already, and read-only.
        if failed.errno != errno.EPERM or not os.listdir("/sys"):
            raise
    covers = SyscallScript()
    cover(covers, HostPaths.find())
    covers.perform()


def add_file_systems(calls: SyscallScript, tmp_mb: int) -> None:
    for path in _WRITABLE:
        _mount(calls, "tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, f"size={tmp_mb}m,mode=1777")
    options = "newinstance,ptmxmode=0666,mode=0620"
    _mount(calls, "devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options)
    _mount(calls, "proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def add_sysfs(calls: SyscallScript) -> None:
    _mount(calls, "sysfs", "/sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def cover(calls: SyscallScript, paths: HostPaths) -> None:
    """After the file systems."""
    sealed = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    for path in paths.read_only:
        _mount(calls, path, path, "", MS_BIND)
        _mount(calls, "", path, "", sealed)
    for path, source in paths.masked:
        _mount(calls, source, path, "", MS_BIND)
    calls.call("enter root", "chdir", b"/")


def _mount(
    calls: SyscallScript, source: str, target: str, kind: str, flags: int = 0, options: str = ""
) -> None:
    texts = source.encode(), target.encode(), kind.encode()
    calls.call(f"mount {target}", "mount", *texts, flags, options.encode())

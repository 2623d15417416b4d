"""What a cell sees of the file system: the host's, read-only, with a /tmp, /dev and /proc of its own.

Runs in a new mount namespace. Its first step cuts the namespace off from the host's, so that nothing done
later can reach back; nothing is ever done to mounts before that. The host's tree is changed where it stands
instead of being bound elsewhere and pivoted to: nothing in a cell may unmount, so what is covered stays
covered.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import Final

from skerry.node.launcher import kernel
from skerry.node.launcher.kernel import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REMOUNT

_DEVICES: Final = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}
_LINKS: Final = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")  # how mountinfo writes spaces and the like
# Somebody removed the mount point meanwhile, and with it the kernel took the mount out of every namespace.
_GONE: Final = (errno.ENOENT, errno.EINVAL)
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


# In a /home of its own: the places where `kernel.move_mount` may put something later.
_HOMES: Final = ("function", "runtime")
_RESOLVER: Final = "/etc/resolv.conf"  # likewise


def set_up(hidden: list[str], tmp_mb: int, *, own_network: bool, own_home: bool = False) -> None:
    """Make the view of a cell. `hidden` are paths that exist; each is covered by nothing at all."""
    resolver = os.path.realpath(_RESOLVER)
    kernel.set_mount(
        "/",
        kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV,
        recursive=True,
        private=True,
    )
    # Before /tmp and the like are covered, since a hidden path may be in one; and the deepest first, since
    # one may be in another.
    covered = sorted({os.path.realpath(path) for path in hidden}, key=len, reverse=True)
    _let_go(covered)
    for path in covered:
        _cover(path)
    for path in ("/tmp", "/var/tmp"):  # noqa: S108 - these are to be made private
        if os.path.isdir(path):
            _own_folder(path, tmp_mb)
    _own_devices(tmp_mb)
    kernel.mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if own_network:
        # The host's /sys shows the host's interfaces, and in /run its services listen.
        kernel.mount("sysfs", "/sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
        if own_home and resolver.startswith("/run/"):
            _own_run(resolver)
        else:
            _cover("/run")
    if own_home:
        _cover("/root")
        _own_home()
    for path in _READ_ONLY:
        if os.path.exists(path):
            kernel.mount(path, path, "", MS_BIND)
            kernel.mount("", path, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for path in _MASKED:
        if os.path.lexists(path):
            _cover(path)
    os.chdir("/")


def _let_go(folders: list[str]) -> None:
    """Unmount what is mounted below: a cell that only hid it would keep it in use for as long as it runs."""
    with open("/proc/self/mountinfo", "rb") as file:
        points = [_ESCAPE.sub(_unescaped, line.split(b" ", 5)[4]) for line in file]
    for point in reversed(points):
        if any(point.startswith(os.fsencode(folder) + b"/") for folder in folders):
            try:
                kernel.unmount(os.fsdecode(point), kernel.MNT_DETACH)
            except kernel.StepFailed as failed:
                if failed.errno not in _GONE:
                    raise


def _unescaped(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8)])


def _cover(path: str) -> None:
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        raise kernel.StepFailed(error.errno or 0, f"hide {path}") from error
    if is_folder:
        kernel.mount("none", path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=0,mode=555")
    else:
        kernel.mount("/dev/null", path, "", MS_BIND)


def _own_folder(path: str, size_mb: int) -> None:
    kernel.mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size_mb}m,mode=1777")


def _own_home() -> None:
    kernel.mount("tmpfs", "/home", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=64k,mode=755")
    for name in _HOMES:
        os.mkdir(f"/home/{name}", 0o755)
    kernel.set_mount("/home", kernel.MOUNT_ATTR_RDONLY, recursive=False)


def _own_run(file: str) -> None:
    """Nothing in /run but `file`, empty: what it is to say is mounted over it later."""
    kernel.mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=64k,mode=755")
    os.makedirs(os.path.dirname(file), 0o755, exist_ok=True)
    os.close(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    kernel.set_mount("/run", kernel.MOUNT_ATTR_RDONLY, recursive=False)


def _own_devices(shared_mb: int) -> None:
    kernel.mount("dev", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,mode=755")
    for name, numbers in _DEVICES.items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(*numbers))
    for name, target in _LINKS.items():
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/pts")
    os.mkdir("/dev/shm")  # noqa: S108 - of the cell's own
    kernel.mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    _own_folder("/dev/shm", shared_mb)  # noqa: S108 - of the cell's own
    kernel.set_mount("/dev", kernel.MOUNT_ATTR_RDONLY, recursive=False)

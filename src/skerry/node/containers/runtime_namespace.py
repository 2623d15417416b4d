"""The mount namespace in which runtimes start containers: the system's own mounts, and no others.

A runtime reads the list of mounts several times, copies it for the container and removes it again there. On a
node with a hundred containers, or a machine with as many mounts of other programs, that is a fifth of the
time of a start. So a runtime begins in a copy of this namespace, where nothing is mounted but the system, the
folders that it needs, and the root of its container. The node itself stays in the machine's namespace, and
never mounts that root: it disappears with the last process of the container.

What is not needed is unmounted here, so that an administrator can eject a disk. So are hierarchies of cgroups
v1 that a container has no use for: a runtime creates a group in each, and mounts each in the container.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from skerry.model.cells import RuntimeMounts
from skerry.node.containers.overlays import mount_points
from skerry.node.kernel import mount_flags, namespaces, thread_syscalls
from skerry.node.user_namespaces import UserNamespace

log = structlog.get_logger(__name__)

_MOUNTINFO: Final = Path("/proc/thread-self/mountinfo")
_OWN: Final = "/proc/thread-self/ns/mnt"
# With what is mounted in them.
_KERNEL: Final = ("/proc", "/sys", "/dev")
_CGROUPS: Final = Path("/sys/fs/cgroup")
# Of their hierarchies: where limits are set, devices are allowed and processes are tracked, and those that
# runtimes of languages need to find out their limits.
_HIERARCHIES: Final = frozenset(("cpu", "cpuacct", "cpuset", "devices", "memory", "pids", "unified"))
# Where programs, their libraries and their configuration are.
_SYSTEM: Final = ("/bin", "/etc", "/gnu/store", "/lib", "/lib64", "/nix/store", "/sbin", "/usr", "/usr/local")


class RuntimeView(NamedTuple):
    """What a runtime sees of the node: all of it by default."""

    rootfs: Path
    mounts: RuntimeMounts | None = None
    # The path of a namespace: where there are no mounts, none is mounted on a file.
    path_of: Callable[[str], str] = str


class RuntimeNamespace:
    """One such namespace, which exists until it is closed and the last container in a copy has ended."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def open(cls, folders: Iterable[Path]) -> RuntimeNamespace | None:
        """One with the mounts on which `folders` are; None where that is impossible. Blocks for some
        milliseconds."""
        needed = [each.resolve() for each in (*map(Path, _SYSTEM), *folders)]
        try:
            return cls(namespaces.in_own_thread(lambda: _make(needed)))
        except OSError as error:
            log.info("containers.no_runtime_namespace", error=str(error))
            return None

    @contextlib.contextmanager
    def view(self, root: int, folder: Path, users: UserNamespace | None) -> Iterator[RuntimeView]:
        """With the detached mount that is open as `root` as the root of a container: at `folder`, or where
        the root of `users` can reach it. While the runtime starts the container."""
        if users is None:
            folder.mkdir(mode=0o755, exist_ok=True)
        else:
            folder = Path(users.rootfs)
            os.chown(users.root, 0, users.first_id)
            Path(users.root).chmod(0o710)
        mounts = RuntimeMounts(_path_of(self._descriptor), _path_of(root), str(folder))
        with contextlib.ExitStack() as opened:

            def path_of(namespace: str) -> str:
                descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, descriptor)
                return _path_of(descriptor)

            yield RuntimeView(folder, mounts, path_of)

    def close(self) -> None:
        os.close(self._descriptor)


def _path_of(descriptor: int) -> str:
    """By which other processes reach what is open here."""
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def _make(needed: Sequence[Path]) -> int:
    """In a thread of its own, which moves to the new namespace."""
    namespaces.enter_new_mount_namespace()
    # First: what is unmounted here must stay mounted elsewhere.
    thread_syscalls.change_mount("/", mount_flags.MS_PRIVATE | mount_flags.MS_RECURSIVE)
    for point in superfluous(mount_points(_MOUNTINFO.read_bytes()), needed):
        with contextlib.suppress(OSError):  # it was below another, or is hidden by one
            thread_syscalls.unmount(str(point), mount_flags.MNT_DETACH)
    return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


def superfluous(points: Sequence[Path], needed: Sequence[Path]) -> list[Path]:
    """Of mount points those on which nothing that is `needed` lies, the latest first."""
    below = {above for each in needed for above in (each, *each.parents)}
    return [point for point in reversed(points) if point not in below and not _is_of_kernel(point)]


def _is_of_kernel(point: Path) -> bool:
    if point.parent == _CGROUPS:
        return not _HIERARCHIES.isdisjoint(point.name.split(","))
    return any(point.is_relative_to(folder) for folder in _KERNEL)

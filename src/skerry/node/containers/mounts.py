"""Mounts of a container beside its root: volumes, paths of the node, tmpfs.

Used by `skerry.node.containers.startup`. Volumes and paths are opened as detached mounts, which get the
owners of the container's user namespace (as its layers do, see `skerry.node.containers.overlays`) and are
attached, while the runtime starts, where only the runtime reaches them. The runtime binds them in the
container and creates missing folders there; a mount is never inside another (`skerry.model.mounts`), so no
running program can exchange one of these folders. On disk owners are those in the container, whatever ids it
has on the node.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from msgspec.structs import replace

from skerry.model import errors
from skerry.model.ids import VolumeId
from skerry.model.mounts import Mount, MountKind, check_mounts
from skerry.node.containers import rootfs_files
from skerry.node.kernel import mount_flags, thread_syscalls
from skerry.node.user_namespaces import UserNamespace

_STAGED: Final = "mounts"  # folder in which they are while the runtime starts
_TMPFS: Final = ("nosuid", "nodev", "noexec", "mode=1777")
_BIND: Final = ("bind", "rprivate", "nosuid", "nodev")


class VolumeSource(Protocol):
    """The part of `skerry.node.volumes.volumes.NodeVolumes` that is needed here."""

    async def ready(self, id: VolumeId) -> None:
        """Wait while the volume is being created. Raises Unavailable if there is none."""
        ...

    def mount(self, id: VolumeId, *, read_only: bool, exclusive: bool) -> int:
        """A descriptor of a detached mount. Blocks. Raises Unavailable, NotFound."""
        ...


class OpenMount(NamedTuple):
    """A mount of a container, opened."""

    mount: Mount
    descriptor: int


class OpenMounts:
    """The mounts of one start; `close` releases what was opened."""

    def __init__(self, mounts: Sequence[Mount]) -> None:
        self._mounts = mounts
        self._opened: list[OpenMount] = []

    def open(self, volumes: VolumeSource | None) -> None:
        """Open volumes and paths of the node. Blocks. Raises Unavailable, FailedPrecondition, Forbidden."""
        for mount in self._mounts:
            match mount.kind:
                case MountKind.VOLUME:
                    self._opened.append(OpenMount(mount, _open_volume(mount, volumes)))
                case MountKind.HOST:
                    self._opened.append(OpenMount(mount, _open_path(mount)))
                case MountKind.TEMPLATE:
                    raise errors.FailedPrecondition("a volume template is for services only")
                case MountKind.TMPFS:
                    pass

    def close(self) -> None:
        while self._opened:
            os.close(self._opened.pop().descriptor)

    def give_empty_ones_to(self, uid: int, gid: int) -> None:
        """Volumes that nothing was ever written to become those of the user of the container."""
        for mount, descriptor in self._opened:
            if uid == 0 or mount.read_only or not mount.is_volume:
                continue
            folder = f"/proc/self/fd/{descriptor}"
            if os.stat(folder).st_uid == 0 and not os.listdir(folder):
                os.chown(folder, uid, gid)

    @contextlib.contextmanager
    def attached(self, users: UserNamespace | None, folder: Path) -> Iterator[list[dict[str, Any]]]:
        """The mounts for the runtime's configuration, which are reachable for it during the context: below
        `users.root`, or in `folder`."""
        staged = Path(folder if users is None else users.root) / _STAGED
        targets: list[Path] = []
        try:
            if self._opened:
                self._stage(staged, targets, users)
            sources = {opened.mount: path for opened, path in zip(self._opened, targets, strict=True)}
            yield [_entry(mount, sources.get(mount)) for mount in self._mounts]
        finally:
            # The mounts in the container stay. Below `users.root`, all of it is unmounted after the start.
            if users is None:
                unstage(folder)

    def _stage(self, staged: Path, targets: list[Path], users: UserNamespace | None) -> None:
        staged.mkdir(mode=0o755, exist_ok=True)
        for number, (mount, descriptor) in enumerate(self._opened):
            target = staged / str(number)
            if users is not None:
                _map_owners(mount, descriptor, users)
            # A mount is as its root is: a folder, or one file of the node.
            if os.path.isdir(f"/proc/self/fd/{descriptor}"):
                target.mkdir(mode=0o755, exist_ok=True)
            else:
                target.touch(mode=0o644)
            thread_syscalls.attach(descriptor, str(target))
            thread_syscalls.change_mount(str(target), mount_flags.MS_PRIVATE)
            targets.append(target)


def check_links(mounts: Sequence[Mount], rootfs: Path) -> None:
    """Raise FailedPrecondition if links in the image lead a mount to where none may be: over /dev, the
    runtime would take the device nodes that it masks files with from a volume; in another mount, a running
    program could exchange folders."""
    try:
        check_mounts(
            [replace(mount, path=rootfs_files.resolve(rootfs, mount.path)) for mount in mounts],
        )
    except errors.Invalid as error:
        raise errors.FailedPrecondition(
            f"a link in the image leads a mount elsewhere: {error.message}"
        ) from error


def unstage(folder: Path) -> None:
    """Unmount what a start of a container without a user namespace left in its folder."""
    staged = folder / _STAGED
    if not staged.exists():
        return
    for target in staged.iterdir():
        with contextlib.suppress(OSError):  # not mounted
            thread_syscalls.unmount(str(target), mount_flags.MNT_DETACH)
        if target.is_dir():
            target.rmdir()
        else:
            target.unlink()
    staged.rmdir()


def _open_volume(mount: Mount, volumes: VolumeSource | None) -> int:
    if volumes is None or not mount.volume:
        raise errors.Unavailable(f"volume {mount.source} is not on this node")
    return volumes.mount(mount.volume, read_only=mount.read_only, exclusive=mount.is_exclusive)


def _open_path(mount: Mount) -> int:
    if not mount.is_granted:
        raise errors.Forbidden("only an admin may mount a path of a node in a container")
    try:
        return thread_syscalls.clone_mount(mount.source)
    except OSError as error:
        raise errors.FailedPrecondition(
            f"the path {mount.source} of this node cannot be mounted: {error.strerror}; create it there"
        ) from error


def _map_owners(mount: Mount, descriptor: int, users: UserNamespace) -> None:
    namespace = os.open(users.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        thread_syscalls.map_owners(descriptor, namespace)
    except OSError as error:
        raise errors.FailedPrecondition(
            f"the file system of {mount.source} has no id-mapped mounts ({error.strerror}), which a "
            "container in a user namespace needs; mount a path on ext4, XFS or Btrfs, or have an admin run "
            "it with userns host",
            detail=repr(error),
        ) from error
    finally:
        os.close(namespace)


def _entry(mount: Mount, source: Path | None) -> dict[str, Any]:
    """As the configuration of a runtime has it."""
    if mount.kind is MountKind.TMPFS:
        size = (f"size={mount.size}m",) if mount.size else ()
        return {
            "destination": mount.path,
            "type": "tmpfs",
            "source": "tmpfs",
            "options": [*_TMPFS, *size],
        }
    assert source is not None, "everything else was opened"
    return {
        "destination": mount.path,
        "type": "bind",
        "source": str(source),
        "options": [*_BIND, "ro" if mount.read_only else "rw"],
    }

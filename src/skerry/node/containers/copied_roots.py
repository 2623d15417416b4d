"""Roots of containers where overlayfs cannot be mounted: by fuse-overlayfs, or as copies of their images.

Used in a user namespace of an ordinary user (`skerry.model.enforcement.RootFilesystem`). Either way the
result is a mount at the same path, so that everything else treats it as an overlay.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from skerry.model import errors
from skerry.node.containers import tree_size
from skerry.node.containers.overlays import UPPER, WORK, Overlays
from skerry.node.kernel import mount_flags, thread_syscalls
from skerry.node.layers.unpacker.layer_writer import USER_OPAQUE_XATTR
from skerry.node.user_namespaces import UserNamespace

_SYSTEM: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_MOUNT_S: Final = 30.0
_COPY: Final = "copy"  # a folder of the layer: being copied
_SPECIAL: Final = frozenset(":,\\")  # in the options of fuse-overlayfs
_OVERLAY_XATTRS: Final = "user.overlay."


class FuseOverlays(Overlays):
    """Mounts by the program fuse-overlayfs, which serves each until that is unmounted, also without the
    agent."""

    is_quick = can_detach = False

    def _mount(
        self, target: Path, stack: list[Path], layer: Path | None, users: UserNamespace | None
    ) -> None:
        paths = [*stack, target, *((layer,) if layer is not None else ())]
        if unusual := [str(path) for path in paths if _SPECIAL.intersection(str(path))]:
            raise errors.FailedPrecondition(
                f"fuse-overlayfs takes no path with ':', ',' or a backslash, such as {unusual[0]}; use "
                "another data folder"
            )
        options = [f"lowerdir={':'.join(map(str, stack))}"]
        if layer is not None:
            options += [f"upperdir={layer / UPPER}", f"workdir={layer / WORK}"]
        done = subprocess.run(
            ("fuse-overlayfs", "-o", ",".join(options), str(target)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": _SYSTEM, "LC_ALL": "C"},
            cwd="/",
            timeout=_MOUNT_S,
            check=False,
        )
        if done.returncode:
            output = " ".join(done.stderr.decode(errors="replace").split())[:200]
            raise errors.Internal(f"fuse-overlayfs cannot mount the container's layers: {output}")


class CopiedRoots(Overlays):
    """Copies the layers into the writable one, at its first mount, and mounts that."""

    is_quick = can_detach = False

    def _mount(
        self, target: Path, stack: list[Path], layer: Path | None, users: UserNamespace | None
    ) -> None:
        if layer is None:
            raise errors.FailedPrecondition("a copy of an image needs a writable layer")
        if not os.listdir(layer / UPPER):
            try:
                _copy_stack(stack[::-1], layer / _COPY)
                # The copy is complete, also if this process is killed.
                os.rename(layer / _COPY, layer / UPPER)
            except OSError as error:
                raise errors.Unavailable(
                    f"the image cannot be copied for the container: {error.strerror}", detail=repr(error)
                ) from error
        thread_syscalls.mount(str(layer / UPPER), str(target), "", mount_flags.MS_BIND, "")


def _copy_stack(layers: Sequence[Path], target: Path) -> None:
    """Copy layers in overlayfs format, the lowest first, to the new folder `target`."""
    tree_size.remove(target)
    target.mkdir(mode=0o700)
    for layer in layers:
        _copy_folder(layer, target, {})


def _copy_folder(source: Path, target: Path, links: dict[tuple[int, int], Path]) -> None:
    """Apply the folder `source` of a layer to `target`, which is a folder. No link is followed."""
    with os.scandir(source) as entries:
        for entry in entries:
            _copy_entry(entry, target / entry.name, links)
    _copy_metadata(source, target)


def _copy_entry(entry: os.DirEntry[str], target: Path, links: dict[tuple[int, int], Path]) -> None:
    status = entry.stat(follow_symlinks=False)
    is_folder = stat.S_ISDIR(status.st_mode)
    if is_folder and _is_folder(target) and not _is_opaque(entry.path):
        _copy_folder(Path(entry.path), target, links)
        return
    _remove(target)
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        return  # a whiteout, which has removed what was below
    if is_folder:
        target.mkdir(mode=0o700)
        _copy_folder(Path(entry.path), target, links)
        return
    key = (status.st_dev, status.st_ino)
    if status.st_nlink > 1 and key in links and os.path.lexists(links[key]):
        os.link(links[key], target, follow_symlinks=False)
        return
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(entry.path), target)
    elif stat.S_ISREG(status.st_mode):
        shutil.copyfile(entry.path, target, follow_symlinks=False)
    elif stat.S_ISFIFO(status.st_mode):
        os.mkfifo(target)
    else:
        return  # a device, which only root of the machine creates
    _copy_metadata(Path(entry.path), target)
    links[key] = target


def _copy_metadata(source: Path, target: Path) -> None:
    """In this order: a change of owner clears special bits and capabilities, any change sets the time."""
    status = source.lstat()
    os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(target, stat.S_IMODE(status.st_mode))
        for name in os.listxattr(source, follow_symlinks=False):
            if not name.startswith(_OVERLAY_XATTRS):
                os.setxattr(target, name, os.getxattr(source, name, follow_symlinks=False))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _is_opaque(folder: str) -> bool:
    try:
        return os.getxattr(folder, USER_OPAQUE_XATTR) == b"y"
    except OSError:
        return False


def _remove(path: Path) -> None:
    if _is_folder(path):
        tree_size.remove(path)
    else:
        path.unlink(missing_ok=True)

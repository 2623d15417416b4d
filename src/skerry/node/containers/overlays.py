"""The root of a container: the image's layers with a writable one on top, as an overlay mount.

Called by `skerry.node.containers.containers`; the writable layers are made by
`skerry.node.containers.writable_layers`.

Mounts are `volatile`: what a container writes reaches the disk when the kernel gets to it, a sync in the
container costs nothing, and neither does unmounting, which would else write out everything that is unwritten
on the whole file system. For that a writable layer belongs to one boot of the machine, like the cell that it
is in: after a crash nobody could tell what of it had reached the disk, so it is thrown away at the next
mount, and the container begins anew from its image. The death of the agent does no harm.

Below the image lies a skeleton with the few folders and files that a runtime mounts things on. So images need
not have them, and nothing has to be made in a container that may not be written to.

For a container in a user namespace every layer, the writable one too, is taken by a mount that shows 0 on
disk as root of the namespace: layers are shared by containers whose ids on the node differ, and what one
writes is owned on disk as it would be without. The kernel's own work in the writable layer is done as that
root too: the node's own has no number on such a mount, and could make nothing there.

Device nodes that came with an image cannot be opened: the mounts are nodev, and the group of the container
allows no device but the harmless ones, which the runtime puts in its /dev.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import structlog

from skerry.model import errors
from skerry.node.containers import tree_size
from skerry.node.kernel import mount_flags, thread_syscalls
from skerry.node.user_namespaces import UserNamespace

log = structlog.get_logger(__name__)

UPPER: Final = "upper"
WORK: Final = "work"
_BOOT: Final = "boot"  # a file of the layer: which boot it belongs to
_MOST_LAYERS: Final = 500  # the kernel's own limit
_LONGEST_VALUE: Final = 255  # of one option, in the newer way to mount
_OPTIONS_BYTES: Final = 4095  # of all options, in the older one
_SKELETON_FOLDERS: Final = ("dev", "etc", "proc", "sys")
_SKELETON_FILES: Final = ("etc/hostname", "etc/hosts", "etc/resolv.conf")
_MOUNTINFO: Final = Path("/proc/self/mountinfo")
# Without these a layer could only be read together with what the kernel's defaults were when it was written.
# Folders of the image can be renamed as on any file system (redirect_dir), where Docker's cannot.
_WRITABLE: Final[dict[str, str | None]] = {
    "redirect_dir": "on",
    "metacopy": "off",
    "index": "off",
    "volatile": None,
}
_READ_ONLY: Final[dict[str, str | None]] = {"redirect_dir": "nofollow", "metacopy": "off"}
_BUSY_S: Final = 1.0
_PAUSE_S: Final = 0.01


class Overlays:
    """Overlay mounts below one folder. Every method blocks, mostly for less than a millisecond, and is safe
    to repeat."""

    def __init__(
        self, folder: Path, boot_id: str, *, appends_layers: bool = True, busy_s: float = _BUSY_S
    ) -> None:
        self._folder = folder
        self._boot_id = boot_id
        self._skeleton = folder / "skeleton"
        self._making_skeleton = threading.Lock()
        self._appends_layers = appends_layers  # until the kernel turns out not to know how
        self._busy_s = busy_s

    def mount(
        self,
        target: Path,
        lowers: Sequence[Path],
        *,
        layer: Path | None,
        users: UserNamespace | None = None,
    ) -> bool:
        """Mount at `target` what `lowers` (the lowest first) make up, writable in `layer` if that is given.

        `layer` is a folder made by `WritableLayers.make`. Owners are shown as those in `users` see them; what
        that takes is given back by `reachable`, or with the namespace. True if what was written to the layer
        before was thrown away, since the machine went down meanwhile. Mounting what is mounted changes
        nothing. Raises FailedPrecondition for more layers than the kernel takes and for file systems that
        cannot show other owners, and Internal if it will not mount them.
        """
        if os.path.ismount(target):
            return False
        if len(lowers) >= _MOST_LAYERS:
            raise errors.FailedPrecondition(
                f"an image of {len(lowers)} layers has too many; build it with at most {_MOST_LAYERS - 1}"
            )
        target.mkdir(mode=0o755, exist_ok=True)
        self._make_skeleton()
        # The kernel wants the highest first.
        stack = [*reversed(lowers), self._skeleton]
        thrown_away = layer is not None and self._prepare(layer, stack[0])
        try:
            self._mount(target, stack, layer, users)
            thread_syscalls.change_mount(str(target), mount_flags.MS_PRIVATE)
        except OSError as error:
            raise errors.Internal(
                f"the kernel cannot put the container's layers together: {error.strerror}; its log says why",
                detail=f"overlay at {target} with {len(lowers)} layers: {error}",
            ) from error
        return thrown_away

    @contextlib.contextmanager
    def reachable(self, target: Path, users: UserNamespace | None) -> Iterator[Path]:
        """Where a runtime that has become root of `users` finds what was just mounted at `target`, which lies
        in a folder of the node's root alone. For as long as it starts."""
        if users is None:
            yield target
            return
        rootfs = Path(users.rootfs)
        rootfs.mkdir()
        mounted = thread_syscalls.clone_mount(str(target))
        try:
            thread_syscalls.attach(mounted, str(rootfs))
        finally:
            os.close(mounted)
        try:
            yield rootfs
        finally:
            thread_syscalls.unmount(
                users.root, mount_flags.MNT_DETACH
            )  # and with it what `mount` needed there

    def unmount(self, target: Path) -> None:
        """Unmount `target`, however often it is mounted; it is gone when this returns. Not mounted, or not
        there: nothing done."""
        deadline = time.monotonic() + self._busy_s
        flags = 0
        while True:
            try:
                thread_syscalls.unmount(str(target), flags)
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.ENOENT):
                    return
                if error.errno != errno.EBUSY:
                    raise
                if time.monotonic() < deadline:
                    time.sleep(_PAUSE_S)  # what had it open may be about to end
                else:
                    # It goes from sight at once, and from the kernel with its last user, whoever that is.
                    log.warning("overlay.busy", target=str(target))
                    flags = mount_flags.MNT_DETACH

    def mounted(self) -> list[Path]:
        """Every mount below the folder, the latest first; for what a killed agent left."""
        points = mount_points(_MOUNTINFO.read_bytes())
        return [point for point in reversed(points) if point.is_relative_to(self._folder)]

    def _make_skeleton(self) -> None:
        with self._making_skeleton:
            if self._skeleton.exists():
                return
            # Under another name first: what is there is whole, also if this process is killed.
            unfinished = self._folder / ".skeleton"
            tree_size.remove(unfinished)
            for name in ("", *_SKELETON_FOLDERS):
                (unfinished / name).mkdir()
                (unfinished / name).chmod(0o755)
            for name in _SKELETON_FILES:
                (unfinished / name).touch()
                (unfinished / name).chmod(0o644)
            os.rename(unfinished, self._skeleton)

    def _prepare(self, layer: Path, top: Path) -> bool:
        """Make `layer` fit to be mounted over `top` in this boot; True if something in it had to go."""
        marker, upper, work = layer / _BOOT, layer / UPPER, layer / WORK
        if is_of_boot(layer, self._boot_id):
            # The mark of an earlier volatile mount, which would have the kernel refuse. It is there against
            # layers that lived through a crash of the machine, and this one did not.
            tree_size.remove(work / WORK)
            return False
        thrown_away = bool(os.listdir(upper))
        if thrown_away or os.listdir(work):  # not so for a layer that was just made
            for folder in (upper, work):
                tree_size.remove(folder)
                folder.mkdir(mode=0o755)
        # What is on top decides what the root itself is like.
        like = os.stat(top)
        os.chown(upper, like.st_uid, like.st_gid)
        os.chmod(upper, like.st_mode & 0o7777)
        marker.write_text(self._boot_id)
        return thrown_away

    def _mount(
        self, target: Path, stack: list[Path], layer: Path | None, users: UserNamespace | None
    ) -> None:
        options = _READ_ONLY if layer is None else _WRITABLE
        with contextlib.ExitStack() as opened:
            if users is not None:
                stack, layer = _with_owners_of(users, stack, layer, opened)
                opened.enter_context(thread_syscalls.making_files_as(users.first_id))
            if self._appends_layers:
                try:
                    _mount_by_parts(target, stack, layer, options, opened)
                    return
                except OSError as error:
                    if error.errno not in (errno.ENOSYS, errno.EINVAL):
                        raise
            _mount_at_once(target, stack, layer, options, opened)
        # Before Linux 6.7 layers cannot be added one by one, and some versions say so only at the end.
        self._appends_layers = False


def _with_owners_of(
    users: UserNamespace, stack: list[Path], layer: Path | None, opened: contextlib.ExitStack
) -> tuple[list[Path], Path | None]:
    """The same folders by mounts that show their owners as `users` has them.

    The mounts are below `users.root`, since before Linux 6.15 no overlay is made of mounts that are nowhere,
    on a file system in memory, so that all of them go with that at once: the kernel takes as long for one
    unmount as for many.
    """
    namespace = os.open(users.path, os.O_RDONLY | os.O_CLOEXEC)
    opened.callback(os.close, namespace)
    _mount_in_memory(users.root)
    numbers = itertools.count()

    @functools.cache
    def shown(path: Path) -> Path:
        mounted = thread_syscalls.clone_mount(str(path))
        try:
            thread_syscalls.map_owners(mounted, namespace)
            place = Path(users.root, str(next(numbers)))
            place.mkdir(mode=0o700)
            thread_syscalls.attach(mounted, str(place))
        finally:
            os.close(mounted)
        return place

    together = Counter(path.parent for path in stack)
    try:
        lowers = [
            shown(path.parent) / path.name if together[path.parent] > 1 else shown(path) for path in stack
        ]
        return lowers, None if layer is None else shown(layer)
    except OSError as error:
        raise errors.FailedPrecondition(
            f"a file system of its layers cannot show other owners ({error.strerror}), which a container in "
            "a user namespace needs; keep Skerry's data, and roots of your own, on ext4, XFS or Btrfs, or "
            "have an admin run the container with userns host",
            detail=repr(error),
        ) from error


def _mount_in_memory(target: str) -> None:
    file_system = thread_syscalls.open_file_system("tmpfs")
    try:
        thread_syscalls.set_option(file_system, "mode", "755")
        mounted = thread_syscalls.make_file_system(file_system, mount_flags.MOUNT_ATTR_NODEV)
    finally:
        os.close(file_system)
    try:
        thread_syscalls.attach(mounted, target)
    finally:
        os.close(mounted)


def _mount_by_parts(
    target: Path,
    stack: list[Path],
    layer: Path | None,
    options: dict[str, str | None],
    opened: contextlib.ExitStack,
) -> None:
    """By the newer way, where layers come one by one, with names that may hold all but a backslash."""
    file_system = thread_syscalls.open_file_system("overlay")
    opened.callback(os.close, file_system)

    def name(path: Path) -> str:
        text = str(path)
        fits = len(os.fsencode(text)) <= _LONGEST_VALUE and "\\" not in text
        return text if fits else _short_name(path, opened)

    for path in stack:
        thread_syscalls.set_option(file_system, "lowerdir+", name(path))
    if layer is not None:
        thread_syscalls.set_option(file_system, "upperdir", name(layer / UPPER))
        thread_syscalls.set_option(file_system, "workdir", name(layer / WORK))
    for key, value in options.items():
        thread_syscalls.set_option(file_system, key, value)
    attributes = mount_flags.MOUNT_ATTR_NODEV | (mount_flags.MOUNT_ATTR_RDONLY if layer is None else 0)
    mounted = thread_syscalls.make_file_system(file_system, attributes)
    opened.callback(os.close, mounted)
    thread_syscalls.attach(mounted, str(target))


def _mount_at_once(
    target: Path,
    stack: list[Path],
    layer: Path | None,
    options: dict[str, str | None],
    opened: contextlib.ExitStack,
) -> None:
    """By the older way, where one page holds all options, so that names must be short; and with names of
    descriptors none can hold a `:`, a `,` or a backslash, which would mean something."""
    parts = {"lowerdir": ":".join(_short_name(path, opened) for path in stack)}
    if layer is not None:
        parts |= {
            "upperdir": _short_name(layer / UPPER, opened),
            "workdir": _short_name(layer / WORK, opened),
        }
    text = ",".join(key if value is None else f"{key}={value}" for key, value in {**parts, **options}.items())
    if len(text) > _OPTIONS_BYTES:
        raise errors.FailedPrecondition(
            f"this kernel cannot mount {len(stack) - 1} layers at once; build the image with fewer, or use "
            "Linux 6.7 or later"
        )
    flags = mount_flags.MS_NODEV | (mount_flags.MS_RDONLY if layer is None else 0)
    thread_syscalls.mount("overlay", str(target), "overlay", flags, text)


def _short_name(path: Path, opened: contextlib.ExitStack) -> str:
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    opened.callback(os.close, descriptor)
    return f"/proc/self/fd/{descriptor}"


def is_of_boot(layer: Path, boot_id: str) -> bool:
    """Whether `layer` was mounted in that boot, and so may be mounted again as it is."""
    return _read(layer / _BOOT) == boot_id


def mount_points(mountinfo: bytes) -> list[Path]:
    """Where things are mounted, in the order of mounting. The kernel writes odd bytes as octal numbers."""
    return [Path(os.fsdecode(_unescape(line.split(b" ")[4]))) for line in mountinfo.splitlines()]


def _unescape(field: bytes) -> bytes:
    first, *others = field.split(b"\\")
    return first + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in others)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""

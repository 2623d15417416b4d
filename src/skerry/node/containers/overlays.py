"""The root of a container: the image's layers with a writable one on top, as an overlay mount.

Called by `skerry.node.containers.containers`; `skerry.node.containers.writable_layers` creates the writable
layers.

Mounts are `volatile`: a sync in the container costs nothing, and neither does unmounting, which would
otherwise write back the whole file system. So a writable layer belongs to one boot of the machine, like its
cell: after a crash it is unknown what had reached the disk, so it is discarded at the next mount, and the
container begins anew from its image. The death of the agent does no harm.

Below the image lies a skeleton with the few folders and files that a runtime mounts things on. So images need
not have them, and nothing has to be created in a read-only container.

For a container in a user namespace every layer, the writable one too, is an id-mapped mount, in which 0 on
disk is root of the namespace: layers are shared by containers whose ids on the node differ, and files on disk
have the same owners as without. The kernel's own work in the writable layer is done as that root too: the
node's root has no id in such a mount, and could create nothing there.

Device nodes in an image cannot be opened: the mounts are nodev, and the cgroup of the container allows only
the harmless devices, which the runtime puts in its /dev.
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
from typing import Final, NamedTuple

import structlog

from skerry.model import errors
from skerry.node.containers import tree_size
from skerry.node.kernel import mount_flags, namespaces, thread_syscalls
from skerry.node.user_namespaces import UserNamespace

log = structlog.get_logger(__name__)

UPPER: Final = "upper"
WORK: Final = "work"
_BOOT: Final = "boot"  # a file of the layer: the boot it belongs to
_MOST_LAYERS: Final = 500  # the kernel's limit
_LONGEST_VALUE: Final = 255  # of one option, in the new mount API
_OPTIONS_BYTES: Final = 4095  # of all options, in the old one
_SKELETON_FOLDERS: Final = ("dev", "etc", "proc", "sys")
_SKELETON_FILES: Final = ("etc/hostname", "etc/hosts", "etc/resolv.conf")
_MOUNTINFO: Final = Path("/proc/self/mountinfo")
_ROOT: Final = Path("/")
# Explicit, so that a layer does not depend on the kernel's defaults when it was written. Folders of the image
# can
# be renamed as on any file system (redirect_dir), which Docker does not allow.
_WRITABLE: Final[dict[str, str | None]] = {
    "redirect_dir": "on",
    "metacopy": "off",
    "index": "off",
    "volatile": None,
}
_READ_ONLY: Final[dict[str, str | None]] = {"redirect_dir": "nofollow", "metacopy": "off"}
# In a user namespace of an ordinary user: the kernel's own attributes are user.*, and none moves a folder of
# the image. Programs that rename one get an error, after which they copy it, as in Docker.
_PRIVATE: Final[dict[str, str | None]] = {"userxattr": None, "redirect_dir": "nofollow"}
_UNSUPPORTED: Final = (errno.ENOSYS, errno.EINVAL, errno.EBADF)
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BUSY_S: Final = 1.0
_PAUSE_S: Final = 0.01

_Folder = Path | int  # by its path or a descriptor


class OpenRoot(NamedTuple):
    """The root of a container; owned by whoever has it."""

    path: Path  # by which this process reaches it
    was_emptied: bool  # as `Overlays.mount` returns it
    mounted: int | None = None  # a descriptor of the mount, if that is at no path; else it is at `path`
    layers: tuple[int, ...] = ()  # descriptors of those that it needed

    def close(self) -> None:
        """A mount stays where it is; those that are nowhere disappear, for each of which the kernel waits: up
        to half a millisecond, for a thread."""
        for descriptor in self.layers if self.mounted is None else (self.mounted, *self.layers):
            os.close(descriptor)


class Overlays:
    """Overlay mounts below one folder. Methods block, mostly for less than a millisecond, and are
    idempotent."""

    is_quick = True  # False: `mount` may take long, and belongs in a thread
    can_detach = True  # False: `open` mounts as `mount` does

    def __init__(
        self,
        folder: Path,
        boot_id: str,
        *,
        appends_layers: bool = True,
        busy_s: float = _BUSY_S,
        is_private: bool = False,
    ) -> None:
        """`is_private`: this process is in a user namespace of an ordinary user."""
        self._folder = folder
        self._is_private = is_private
        self._boot_id = boot_id
        self._skeleton = folder / "skeleton"
        self._making_skeleton = threading.Lock()
        self._appends_layers = appends_layers  # until the kernel turns out not to support it
        self._takes_descriptors = True  # likewise
        self._busy_s = busy_s

    def mount(
        self,
        target: Path,
        lowers: Sequence[Path],
        *,
        layer: Path | None,
        users: UserNamespace | None = None,
    ) -> bool:
        """Mount `lowers` (the lowest first) at `target`, writable in `layer` if that is given.

        `layer` is a folder made by `WritableLayers.make`. Owners are mapped to `users`; `reachable` releases
        the mounts for that, or the removal of the namespace does. True if the content of the layer was
        discarded, since the machine was restarted meanwhile. Idempotent. Raises FailedPrecondition for more
        layers than the kernel supports and for file systems without id-mapped mounts, and Internal if the
        mount fails.
        """
        if namespaces.is_mounted(target):
            return False
        target.mkdir(mode=0o755, exist_ok=True)
        stack, was_emptied = self._stack(lowers, layer)
        with _translated_errors(layer, len(lowers)):
            self._mount(target, stack, layer, users)
            thread_syscalls.change_mount(str(target), mount_flags.MS_PRIVATE)
        return was_emptied

    def open(
        self,
        target: Path,
        lowers: Sequence[Path],
        *,
        layer: Path | None,
        users: UserNamespace | None = None,
    ) -> OpenRoot:
        """The same, but mounted nowhere, if the kernel can do that; else at `target`."""
        if not (self.can_detach and self._appends_layers):
            return OpenRoot(target, self.mount(target, lowers, layer=layer, users=users))
        stack, was_emptied = self._stack(lowers, layer)
        with _translated_errors(layer, len(lowers)):
            opened = self._open(stack, layer, users)
        if opened is None:
            return OpenRoot(target, self.mount(target, lowers, layer=layer, users=users) or was_emptied)
        mounted, *layers = opened
        return OpenRoot(Path(f"/proc/self/fd/{mounted}"), was_emptied, mounted, tuple(layers))

    def _stack(self, lowers: Sequence[Path], layer: Path | None) -> tuple[list[Path], bool]:
        """The layers as the kernel expects them, the highest first; True if the content of the writable one
        was discarded."""
        if len(lowers) >= _MOST_LAYERS:
            raise errors.FailedPrecondition(
                f"an image of {len(lowers)} layers has too many; build it with at most {_MOST_LAYERS - 1}"
            )
        self._make_skeleton()
        stack = [*reversed(lowers), self._skeleton]
        return stack, layer is not None and self._prepare(layer, stack[0])

    @contextlib.contextmanager
    def reachable(self, target: Path, users: UserNamespace | None) -> Iterator[Path]:
        """The path at which a runtime that has become root of `users` reaches `target`, which lies in a
        folder that only the node's root may enter. While the runtime starts."""
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
            thread_syscalls.unmount(users.root, mount_flags.MNT_DETACH)  # and with it the mounts of `mount`

    def unmount(self, target: Path) -> None:
        """Unmount `target`, all mounts on it; unmounted on return. Does nothing if it is not mounted, or does
        not exist."""
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
                    time.sleep(_PAUSE_S)  # processes that had it open may be about to end
                else:
                    # It disappears at once, and the kernel frees it with its last user.
                    log.warning("overlay.busy", target=str(target))
                    flags = mount_flags.MNT_DETACH

    def mounted(self) -> list[Path]:
        """Every mount below the folder, the latest first; for what a killed agent left."""
        return mount_points(_MOUNTINFO.read_bytes(), below=self._folder)[::-1]

    def has_mounts(self, *folders: Path) -> bool:
        """True if something is mounted at one of `folders` or below it."""
        mountinfo = _MOUNTINFO.read_bytes()
        return any(mount_points(mountinfo, below=folder) for folder in folders)

    def _make_skeleton(self) -> None:
        with self._making_skeleton:
            if self._skeleton.exists():
                return
            # Under a temporary name first: the skeleton is complete, also if this process is killed.
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
        """Prepare `layer` to be mounted over `top` in this boot; True if its content was discarded."""
        marker, upper, work = layer / _BOOT, layer / UPPER, layer / WORK
        if is_of_boot(layer, self._boot_id):
            # The mark of an earlier volatile mount, because of which the kernel would refuse. It protects
            # against
            # layers that survived a crash of the machine, and this one did not.
            tree_size.remove(work / WORK)
            return False
        is_discarded = bool(os.listdir(upper))
        if is_discarded or os.listdir(work):  # not for a new layer
            for folder in (upper, work):
                tree_size.remove(folder)
                folder.mkdir(mode=0o755)
        # The root's attributes are those of the top layer.
        like = os.stat(top)
        os.chown(upper, like.st_uid, like.st_gid)
        os.chmod(upper, like.st_mode & 0o7777)
        marker.write_text(self._boot_id)
        return is_discarded

    def _mount(
        self, target: Path, stack: list[Path], layer: Path | None, users: UserNamespace | None
    ) -> None:
        options = self._options(layer)
        with contextlib.ExitStack() as opened:
            if users is not None:
                stack, layer = _with_owners_of(users, stack, layer, opened)
                opened.enter_context(thread_syscalls.making_files_as(users.first_id))
            if self._appends_layers:
                try:
                    mounted = _make_by_parts(stack, layer, options, opened)
                    opened.callback(os.close, mounted)
                    thread_syscalls.attach(mounted, str(target))
                    return
                except OSError as error:
                    if error.errno not in _UNSUPPORTED:
                        raise
            _mount_at_once(target, stack, layer, options, opened)
        # Before Linux 6.7 layers cannot be added one by one, and some versions report that only at the end.
        self._appends_layers = False

    def _open(self, stack: list[Path], layer: Path | None, users: UserNamespace | None) -> list[int] | None:
        """Descriptors of the mount, and of those of its layers; None if the kernel cannot mount what is at no
        path."""
        options = self._options(layer)
        mounted: list[int] = []
        try:
            with contextlib.ExitStack() as opened:
                if users is None:
                    return [_make_by_parts(stack, layer, options, opened)]
                if self._takes_descriptors:
                    layers = _open_with_owners_of(users, stack, layer, opened, mounted)
                    opened.enter_context(thread_syscalls.making_files_as(users.first_id))
                    return [_make_by_parts(*layers, options, opened), *mounted]
        except OSError as error:
            for each in mounted:
                os.close(each)
            if error.errno not in _UNSUPPORTED:
                raise
            self._takes_descriptors = False
        return None

    def _options(self, layer: Path | None) -> dict[str, str | None]:
        return (_READ_ONLY if layer is None else _WRITABLE) | (_PRIVATE if self._is_private else {})


@contextlib.contextmanager
def _translated_errors(layer: Path | None, layers: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.Internal(
            f"the kernel cannot mount the container's layers: {error.strerror}; its log says why",
            detail=f"overlay with {layers} layers, writable in {layer}: {error}",
        ) from error


def _open_with_owners_of(
    users: UserNamespace,
    stack: list[Path],
    layer: Path | None,
    opened: contextlib.ExitStack,
    mounted: list[int],
) -> tuple[list[_Folder], _Folder | None]:
    """The same folders, by descriptors of detached id-mapped mounts with the owners of `users`: since Linux
    6.15. Those mounts are added to `mounted`."""
    namespace = os.open(users.path, os.O_RDONLY | os.O_CLOEXEC)
    opened.callback(os.close, namespace)

    @functools.cache
    def id_mapped(path: Path) -> int:
        mounted.append(thread_syscalls.clone_mount(str(path)))
        thread_syscalls.map_owners(mounted[-1], namespace)
        return mounted[-1]

    def open_below(path: Path) -> int:
        descriptor = os.open(path.name, _FOLDER, dir_fd=id_mapped(path.parent))
        opened.callback(os.close, descriptor)
        return descriptor

    together = Counter(path.parent for path in stack)
    lowers: list[_Folder] = [
        open_below(path) if together[path.parent] > 1 else id_mapped(path) for path in stack
    ]
    return lowers, None if layer is None else id_mapped(layer)


def _with_owners_of(
    users: UserNamespace, stack: list[Path], layer: Path | None, opened: contextlib.ExitStack
) -> tuple[list[Path], Path | None]:
    """The same folders by id-mapped mounts with the owners of `users`.

    The mounts are below `users.root`, since before Linux 6.15 an overlay cannot use detached mounts, on a
    tmpfs, so that unmounting that removes all of them: one unmount takes the kernel as long as many.
    """
    namespace = os.open(users.path, os.O_RDONLY | os.O_CLOEXEC)
    opened.callback(os.close, namespace)
    _mount_in_memory(users.root)
    numbers = itertools.count()

    @functools.cache
    def id_mapped(path: Path) -> Path:
        mounted = thread_syscalls.clone_mount(str(path))
        try:
            thread_syscalls.map_owners(mounted, namespace)
            target = Path(users.root, str(next(numbers)))
            target.mkdir(mode=0o700)
            thread_syscalls.attach(mounted, str(target))
        finally:
            os.close(mounted)
        return target

    together = Counter(path.parent for path in stack)
    try:
        lowers = [
            id_mapped(path.parent) / path.name if together[path.parent] > 1 else id_mapped(path)
            for path in stack
        ]
        return lowers, None if layer is None else id_mapped(layer)
    except OSError as error:
        raise errors.FailedPrecondition(
            f"a file system of its layers has no id-mapped mounts ({error.strerror}), which a container in "
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


def _make_by_parts(
    stack: Sequence[_Folder],
    layer: _Folder | None,
    options: dict[str, str | None],
    opened: contextlib.ExitStack,
) -> int:
    """A detached mount, with the new mount API, in which layers are added one by one, and paths may contain
    all but a backslash."""
    file_system = thread_syscalls.open_file_system("overlay")
    opened.callback(os.close, file_system)

    def add(key: str, folder: _Folder) -> None:
        if isinstance(folder, int):
            thread_syscalls.set_descriptor(file_system, key, folder)
            return
        text = str(folder)
        fits = len(os.fsencode(text)) <= _LONGEST_VALUE and "\\" not in text
        thread_syscalls.set_option(file_system, key, text if fits else _short_name(folder, opened))

    def below(folder: _Folder, name: str) -> _Folder:
        if isinstance(folder, Path):
            return folder / name
        descriptor = os.open(name, _FOLDER, dir_fd=folder)
        opened.callback(os.close, descriptor)
        return descriptor

    for folder in stack:
        add("lowerdir+", folder)
    if layer is not None:
        add("upperdir", below(layer, UPPER))
        add("workdir", below(layer, WORK))
    for key, value in options.items():
        thread_syscalls.set_option(file_system, key, value)
    attributes = mount_flags.MOUNT_ATTR_NODEV | (mount_flags.MOUNT_ATTR_RDONLY if layer is None else 0)
    return thread_syscalls.make_file_system(file_system, attributes)


def _mount_at_once(
    target: Path,
    stack: list[Path],
    layer: Path | None,
    options: dict[str, str | None],
    opened: contextlib.ExitStack,
) -> None:
    """With the old mount call, whose options must fit one page, so that paths must be short; paths of
    descriptors contain no `:`, `,` or backslash, which are special."""
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


def mount_points(mountinfo: bytes, below: Path = _ROOT) -> list[Path]:
    """Mount points in the folder `below`, and it, in the order of mounting."""
    points = [_unescape(line.split(b" ")[4]) for line in mountinfo.splitlines()]
    top = os.fsencode(below)
    inside = top.rstrip(b"/") + b"/"
    return [Path(os.fsdecode(point)) for point in points if point == top or point.startswith(inside)]


def _unescape(field: bytes) -> bytes:
    """The kernel escapes special bytes as octal numbers."""
    first, *escaped = field.split(b"\\")
    return first + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in escaped)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""

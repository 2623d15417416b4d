"""The root folder of cells: the few files of the host that programs need, as a tree of mounts created once.

The launcher creates a `CellRoot` at its start: a mount namespace with /usr and its libraries, a small /etc, a
/dev and empty folders, all of it read-only, and none of the host's other mounts. Each init enters it and
continues in a copy; `skerry.node.launcher.child.cell_mounts` adds the cell's private mounts there. The copies
do not propagate: later mounts of the host appear in none of them, and none of them keeps other mounts of the
host busy.

Only the listed files of /etc are visible: no passwords, no keys, no configuration of services.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable
from typing import Final, NamedTuple

from skerry.node.kernel import mount_flags, syscalls
from skerry.node.kernel.mount_flags import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RECURSIVE

EMPTY: Final = "/var/empty"  # to mask others with
_PROGRAMS: Final = re.compile(r"bin|sbin|lib(\d+|x32)?")  # folders or links at the top, beside /usr
_FOLDERS: Final = (
    *("dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "usr", "var"),
    *(EMPTY.removeprefix("/"), "var/tmp"),
)
_LINKS: Final = {"etc/mtab": "../proc/self/mounts", "var/run": "../run"}
# Private folders of a cell: nothing of the host is visible there.
PRIVATE: Final = ("/dev", "/proc", "/sys", "/tmp", EMPTY, "/var/tmp")  # noqa: S108 - these are the cell's
# And these as a whole: parts of them are needed.
PARTLY_PRIVATE: Final = ("/", "/etc", "/home", "/var")
_SYSTEM: Final = ("/proc", "/sys")
# A folder of the host that is not needed, on which the new root is built.
_SITE: Final = "/proc"

_RESOLVER: Final = "/etc/resolv.conf"
_TEXTS: Final = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n"
    "protocols: files\nservices: files\n",
}
# Copied when the launcher starts, if world-readable.
_COPIES: Final = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
    _RESOLVER,
)
# Bind-mounted, so that changes are visible: alternatives and trusted CAs.
_BOUND: Final = (
    "/etc/alternatives",
    "/etc/ca-certificates/extracted",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/ssl/certs",
)
_DEVICES: Final = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}
_DEVICE_LINKS: Final = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_SEALED: Final = mount_flags.MOUNT_ATTR_RDONLY | mount_flags.MOUNT_ATTR_NOSUID | mount_flags.MOUNT_ATTR_NODEV
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")  # escapes of spaces and the like in mountinfo
# The mount point was removed meanwhile, and with it the kernel unmounted it in every namespace.
_UNMOUNTED_ERRNOS: Final = (errno.ENOENT, errno.EINVAL)


class HostView(NamedTuple):
    """What cells have of the host, besides the default root. Absolute paths."""

    paths: tuple[str, ...] = ()  # visible, at the same path; missing ones are skipped
    hidden: tuple[str, ...] = ()  # masked in every cell, also inside visible folders
    mount_points: tuple[str, ...] = ()  # empty folders, for later mounts in single cells
    users: int = 1 << 32  # ids from 0 on that cells may have; 1: all have the node's own
    is_whole: bool = False  # nothing isolates cells: they are processes among the others of the host


class CellRoot:
    """The mount namespace of the root, as the launcher has it."""

    def __init__(self, view: HostView) -> None:
        """Create it, and return to our own namespace. Raises StepFailed; the process is unusable then."""
        home = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        host = _own_namespace()
        syscalls.unshare(syscalls.CLONE_NEWNS)
        self._namespace = _own_namespace()
        self._resolver = _content(_RESOLVER)
        try:
            self._files = _make(view)
        except OSError as error:
            step = getattr(error, "step", f"make {error.filename}")
            raise syscalls.StepFailed(error.errno or errno.EIO, f"the root of cells: {step}") from error
        os.umask(0o077)
        syscalls.enter_namespace(host, syscalls.CLONE_NEWNS)
        os.fchdir(home)
        os.chroot(".")  # entering has set the root to that of the namespace, and ours may be another
        os.close(host)
        os.close(home)

    def refresh(self) -> None:
        """Update the resolver configuration of all cells to the host's. The other files stay as they were
        copied."""
        content = _content(_RESOLVER)
        if content == self._resolver:
            return
        self._resolver = content
        # In place: mounts over it in cells would disappear with the file.
        flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(f".{_RESOLVER}", flags, dir_fd=self._files)
        except OSError:
            return  # an admin made the host's own visible, by a link
        with open(file, "wb") as opened:
            opened.write(content)

    def enter(self) -> None:
        """In an init: enter a copy of it."""
        syscalls.enter_namespace(self._namespace, syscalls.CLONE_NEWNS)
        syscalls.unshare(syscalls.CLONE_NEWNS)


def _make(view: HostView) -> int:
    """In a new namespace, in which only the new root is left; returns a descriptor through which its own
    files can still be written."""
    os.umask(0o022)
    hidden = [os.path.realpath(path) for path in view.hidden]
    syscalls.set_mount("/", 0, recursive=True, private=True)
    _unmount_below(hidden)
    # Elsewhere than in the first one, the kernel lets a cell mount its own over these only while they are to
    # be seen; and neither makes device nodes nor uses them in file systems of its own.
    is_first = is_in_first_user_namespace()
    bound = [] if is_first else [syscalls.detached_mount(path, 0, recursive=True) for path in _SYSTEM]
    syscalls.mount("root", _SITE, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=16m,mode=755")
    os.chdir(_SITE)
    for folder in _FOLDERS:
        os.mkdir(folder)
    for name, target in _LINKS.items():
        os.symlink(target, name)
    _bind_host_paths(view.paths)
    for path, text in _TEXTS.items():
        if not os.path.lexists(path):  # else an admin made the host's visible
            _write(path, text.encode())
    for path in _COPIES:
        _copy(path)
    if not os.path.lexists(f".{_RESOLVER}"):
        _write(f".{_RESOLVER}", b"")
    for mount_point in view.mount_points:
        os.makedirs(f".{mount_point}", exist_ok=True)
    for path in hidden:
        _cover(path)
    for path, detached in zip(_SYSTEM, bound, strict=False):
        syscalls.move_mount(detached, f".{path}")
        os.close(detached)
    files = syscalls.detached_mount(".", 0)
    syscalls.set_mount(".", _SEALED, recursive=True, private=True)
    _make_devices(are_made=is_first)
    syscalls.pivot_root(".", ".")  # the old one is on top of the new one then
    syscalls.unmount(".", mount_flags.MNT_DETACH)
    os.chdir("/")
    return files


def _bind_host_paths(paths: Iterable[str]) -> None:
    top = [f"/{name}" for name in sorted(os.listdir("/")) if _PROGRAMS.fullmatch(name)]
    bound: list[str] = []
    # Nested ones come after their parents.
    for path in ("/usr", *top, *sorted((*_BOUND, *paths), key=len)):
        if not os.path.exists(path):
            continue
        real = os.path.realpath(path)
        if not any(is_within(real, each) for each in bound):
            _bind(real)
            bound.append(real)
        if path != real and not os.path.lexists(f".{path}"):
            os.makedirs(os.path.dirname(f".{path}"), exist_ok=True)
            os.symlink(real, f".{path}")


def is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _bind(path: str) -> None:
    """Bind-mount `path`, which is no link, at the same path."""
    target = f".{path}"
    if stat.S_ISDIR(os.stat(path).st_mode):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _write(target, b"")
    syscalls.mount(path, target, "", MS_BIND | MS_RECURSIVE)


def _copy(path: str) -> None:
    """As a link if it leads into /usr, since some programs read a name from the link's target."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if os.path.lexists(f".{path}") or not stat.S_ISREG(mode) or not mode & stat.S_IROTH:
        return
    os.makedirs(os.path.dirname(f".{path}"), exist_ok=True)
    if os.path.islink(path) and is_within(os.path.realpath(path), "/usr"):
        os.symlink(os.path.realpath(path), f".{path}")
    else:
        _write(f".{path}", _content(path))


def _cover(path: str) -> None:
    target = f".{path}"
    if os.path.lexists(target):
        cover = f".{EMPTY}" if stat.S_ISDIR(os.stat(target).st_mode) else "/dev/null"
        syscalls.mount(cover, target, "", MS_BIND)


def _unmount_below(folders: list[str]) -> None:
    """Unmount the mounts below: a cell that only masked them would keep them busy while it runs."""
    with open("/proc/self/mountinfo", "rb") as file:
        points = [_ESCAPE.sub(_unescaped, line.split(b" ", 5)[4]) for line in file]
    for point in reversed(points):
        if any(point.startswith(os.fsencode(folder) + b"/") for folder in folders):
            try:
                syscalls.unmount(os.fsdecode(point), mount_flags.MNT_DETACH)
            except syscalls.StepFailed as failed:
                if failed.errno not in _UNMOUNTED_ERRNOS:
                    raise


def _unescaped(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8)])


def _make_devices(*, are_made: bool) -> None:
    os.umask(0)
    syscalls.mount("dev", "dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,mode=755")
    for name, numbers in _DEVICES.items():
        if are_made:
            os.mknod(f"dev/{name}", stat.S_IFCHR | 0o666, os.makedev(*numbers))
        else:
            _write(f"dev/{name}", b"")
            syscalls.mount(f"/dev/{name}", f"dev/{name}", "", MS_BIND)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"dev/{name}")
    os.mkdir("dev/pts", 0o755)
    os.mkdir("dev/shm", 0o755)
    syscalls.set_mount("dev", mount_flags.MOUNT_ATTR_RDONLY, recursive=False)


def is_in_first_user_namespace() -> bool:
    """True if root here is root of the machine."""
    with open("/proc/self/uid_map", "rb") as file:
        return file.read().split() == [b"0", b"0", b"4294967295"]


def _own_namespace() -> int:
    return os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


def _content(path: str) -> bytes:
    """Empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)

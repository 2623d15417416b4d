"""System calls for files and mounts of containers, by ctypes; a failure is an OSError with the path.

Unlike `skerry.node.kernel.syscalls` this is for the agent, which has threads: nothing here depends on or
changes state that threads share, such as the working folder, and the interpreter lock is released during
calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from typing import Final

from skerry.node.kernel.mount_flags import (
    AT_EMPTY_PATH,
    AT_FDCWD,
    MOUNT_ATTR_IDMAP,
    MOUNT_SETATTR,
    MOVE_MOUNT,
    MOVE_MOUNT_F_EMPTY_PATH,
    OPEN_TREE,
    OPEN_TREE_CLONE,
    UMOUNT_NOFOLLOW,
)

# The same number on every architecture.
_FSOPEN: Final = 430
_FSCONFIG: Final = 431
_FSMOUNT: Final = 432
_OPENAT2: Final = 437
_QUOTACTL_FD: Final = 443

RESOLVE_NO_XDEV: Final = 0x01
RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08
RESOLVE_IN_ROOT: Final = 0x10


_FSOPEN_CLOEXEC: Final = 0x1
_FSMOUNT_CLOEXEC: Final = 0x1
_FSCONFIG_SET_FLAG: Final = 0
_FSCONFIG_SET_STRING: Final = 1
_FSCONFIG_SET_FD: Final = 5
_FSCONFIG_CMD_CREATE: Final = 6

_libc = ctypes.CDLL(None, use_errno=True)
_long = ctypes.c_long
_text = ctypes.c_char_p
_libc.syscall.restype = _long
_libc.mount.argtypes = [_text, _text, _text, ctypes.c_ulong, _text]
_libc.umount2.argtypes = [_text, ctypes.c_int]
_TRIES: Final = 100  # a process in the container may rename things for ever
_CAPABILITY_HEADER: Final = struct.pack("=Ii", 0x20080522, 0)  # version 3, of this thread
_OPEN_HOW: Final = struct.Struct("=QQQ")  # flags, mode, resolve
_MOUNT_ATTRIBUTES: Final = struct.Struct("=QQQQ")  # set, cleared, propagation, user namespace


def _failed(path: str | bytes | os.PathLike[str] | None = None) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), None if path is None else os.fsdecode(path))


def open_at(folder: int, path: str | bytes, flags: int, *, resolve: int) -> int:
    """Open `path`, relative to the open `folder`, with the flags `resolve`."""
    how = _OPEN_HOW.pack(flags | os.O_CLOEXEC, 0, resolve)
    for _ in range(_TRIES):
        descriptor: int = _libc.syscall(
            _long(_OPENAT2), _long(folder), _text(os.fsencode(path)), how, _long(len(how))
        )
        if descriptor >= 0:
            return descriptor
        # EAGAIN: something was renamed meanwhile, which might have mattered.
        if ctypes.get_errno() != errno.EAGAIN:
            break
    raise _failed(path)


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    if _libc.mount(source.encode(), os.fsencode(target), kind.encode(), flags, options.encode()):
        raise _failed(target)


def change_mount(target: str, flags: int) -> None:
    """Change the propagation of the mount `target`, for example to MS_PRIVATE."""
    mount("", target, "", flags, "")


def unmount(target: str, flags: int = 0) -> None:
    if _libc.umount2(os.fsencode(target), flags | UMOUNT_NOFOLLOW):
        raise _failed(target)


def open_file_system(kind: str) -> int:
    """A descriptor of a file system context (fsopen)."""
    descriptor: int = _libc.syscall(_long(_FSOPEN), _text(kind.encode()), _long(_FSOPEN_CLOEXEC))
    if descriptor < 0:
        raise _failed()
    return descriptor


def set_option(file_system: int, key: str, value: str | None = None) -> None:
    """Set an option of the context; without a value the key is a flag."""
    command = _FSCONFIG_SET_FLAG if value is None else _FSCONFIG_SET_STRING
    text = None if value is None else os.fsencode(value)
    if _libc.syscall(
        _long(_FSCONFIG), _long(file_system), _long(command), _text(key.encode()), _text(text), _long(0)
    ):
        raise _failed(key if value is None else f"{key}={value}")


def set_descriptor(file_system: int, key: str, descriptor: int) -> None:
    """Set an option of the context to what is open as `descriptor`."""
    if _libc.syscall(
        _long(_FSCONFIG),
        _long(file_system),
        _long(_FSCONFIG_SET_FD),
        _text(key.encode()),
        None,
        _long(descriptor),
    ):
        raise _failed(key)


def make_file_system(file_system: int, attributes: int) -> int:
    """Create the file system; returns a descriptor of a detached mount with `attributes`."""
    if _libc.syscall(_long(_FSCONFIG), _long(file_system), _long(_FSCONFIG_CMD_CREATE), None, None, _long(0)):
        raise _failed()
    descriptor: int = _libc.syscall(
        _long(_FSMOUNT), _long(file_system), _long(_FSMOUNT_CLOEXEC), _long(attributes)
    )
    if descriptor < 0:
        raise _failed()
    return descriptor


def attach(mounted: int, target: str) -> None:
    """Attach a detached mount at `target`."""
    if _libc.syscall(
        _long(MOVE_MOUNT),
        _long(mounted),
        _text(b""),
        _long(AT_FDCWD),
        _text(os.fsencode(target)),
        _long(MOVE_MOUNT_F_EMPTY_PATH),
    ):
        raise _failed(target)


def clone_mount(path: str) -> int:
    """A detached copy of the mount at `path`, without the mounts below, as a descriptor."""
    descriptor: int = _libc.syscall(
        _long(OPEN_TREE),
        _long(AT_FDCWD),
        _text(os.fsencode(path)),
        _long(OPEN_TREE_CLONE | os.O_CLOEXEC),
    )
    if descriptor < 0:
        raise _failed(path)
    return descriptor


def map_owners(mounted: int, namespace: int) -> None:
    """Map owners of a detached mount: id 0 on the file system becomes id 0 of the open user `namespace`, and
    so on."""
    attributes = _MOUNT_ATTRIBUTES.pack(MOUNT_ATTR_IDMAP, 0, 0, namespace)
    if _libc.syscall(
        _long(MOUNT_SETATTR),
        _long(mounted),
        _text(b""),
        _long(AT_EMPTY_PATH),
        attributes,
        _long(len(attributes)),
    ):
        raise _failed()


@contextlib.contextmanager
def making_files_as(user: int) -> Iterator[None]:
    """Files that this thread creates belong to `user` and the group of that number; its privileges stay."""
    capabilities = _capabilities()
    _libc.setfsgid(user)
    _libc.setfsuid(user)  # this drops capabilities for files, which are restored after
    try:
        if _libc.capset(_CAPABILITY_HEADER, capabilities):
            raise _failed()
        yield
    finally:
        _libc.setfsuid(0)
        _libc.setfsgid(0)


def control_quota(folder: int, command: int, number: int, data: bytearray) -> None:
    """A quota command on the file system of the open `folder`; `data` is input and output."""
    space = (ctypes.c_char * len(data)).from_buffer(data)
    if _libc.syscall(_long(_QUOTACTL_FD), _long(folder), _long(command), _long(number), space):
        raise _failed()


def drop_capability(number: int) -> None:
    """Drop a capability of this thread alone."""
    data = _capabilities()
    word, bit = divmod(number, 32)
    data[3 * word] &= ~(1 << bit)
    if _libc.capset(_CAPABILITY_HEADER, data):
        raise _failed()


def _capabilities() -> ctypes.Array[ctypes.c_uint32]:
    """Of this thread: effective, permitted, inheritable; low words first, then high words."""
    data = (ctypes.c_uint32 * 6)()
    if _libc.capget(_CAPABILITY_HEADER, data):
        raise _failed()
    return data

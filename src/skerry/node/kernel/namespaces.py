"""Namespaces and network links, by system calls: create a network namespace, bind-mount it, remove it.

Unlike `skerry.node.kernel.syscalls` this is called in threads of the agent, so the interpreter lock is
released during each call.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

_CLONE_NEWNS: Final = 0x20000
_CLONE_NEWNET: Final = 0x40000000
_MS_BIND: Final = 0x1000
_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8
_SIOCGIFHWADDR: Final = 0x8927

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]

T = TypeVar("T")


def mac_of_link(name: str) -> str:
    """The MAC address of a link in the calling thread's network namespace."""
    request = struct.pack("256s", name.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        reply = fcntl.ioctl(any_socket, _SIOCGIFHWADDR, request)
    return reply[18:24].hex(":")


def in_own_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread that is not reused, since it may end up in another namespace."""
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            failure.append(error)

    thread = threading.Thread(target=run, name="namespace")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def enter_new_namespace() -> None:
    """Move the calling thread, and nothing else, to a new network namespace."""
    if _libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot create a network namespace")


def enter_new_mount_namespace() -> None:
    """Move the calling thread, and nothing else, to a copy of the mount namespace. Its working folder is its
    own from then on."""
    if _libc.unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "cannot create a mount namespace")


def enter_namespace(descriptor: int) -> None:
    """Move the calling thread, and nothing else, to the network namespace open as `descriptor`."""
    if _libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def bind_namespace(path: Path, namespace: str = "/proc/thread-self/ns/net") -> None:
    """Bind-mount a namespace, by default the calling thread's network namespace, on the existing file
    `path`, so that it outlives its processes."""
    if _libc.mount(os.fsencode(namespace), os.fsencode(path), None, _MS_BIND, None):
        raise OSError(ctypes.get_errno(), "cannot mount a namespace", str(path))


def is_mounted(path: Path) -> bool:
    """True if something is mounted on `path`."""
    try:
        return path.lstat().st_dev != path.parent.lstat().st_dev
    except FileNotFoundError:
        return False


def remove_mount_file(path: Path) -> None:
    """Unmount everything from `path`, and remove the file. Does nothing if there is neither."""
    unmount_all(path)
    path.unlink(missing_ok=True)


def unmount_all(path: Path) -> None:
    """Unmount everything from `path`."""
    while is_mounted(path):
        if _libc.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW):
            raise OSError(ctypes.get_errno(), "cannot unmount", str(path))

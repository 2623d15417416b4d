"""Namespaces and links, by system calls: making one for a network, keeping one by a mount, letting it go.

Unlike `skerry.node.kernel.syscalls` this is called in threads of the agent, so the interpreter lock is
given up during each call.
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
    """The hardware address of a link in the calling thread's network namespace."""
    request = struct.pack("256s", name.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        answer = fcntl.ioctl(any_socket, _SIOCGIFHWADDR, request)
    return answer[18:24].hex(":")


def in_own_thread(work: Callable[[], T]) -> T:
    """Do `work` in a thread that nobody uses afterwards, since it may end up in another namespace."""
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            failure.append(error)

    thread = threading.Thread(target=run, name="network-namespace")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def enter_new_namespace() -> None:
    """Move the calling thread, and nothing else, to a fresh network namespace."""
    if _libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot make a network namespace")


def enter_namespace(descriptor: int) -> None:
    """Move the calling thread, and nothing else, to the network namespace that `descriptor` is open on."""
    if _libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def keep_namespace(place: Path, namespace: str = "/proc/thread-self/ns/net") -> None:
    """Let a namespace, the calling thread's network namespace unless another is given, live on under the file
    `place`, which must exist."""
    if _libc.mount(os.fsencode(namespace), os.fsencode(place), None, _MS_BIND, None):
        raise OSError(ctypes.get_errno(), "cannot keep a namespace", str(place))


def is_kept(place: Path) -> bool:
    """True if something is mounted on `place`."""
    try:
        return place.lstat().st_dev != place.parent.lstat().st_dev
    except FileNotFoundError:
        return False


def let_go(place: Path) -> None:
    """Take away whatever is mounted on `place`, and the file. It is no error if there is neither."""
    unmount_all(place)
    place.unlink(missing_ok=True)


def unmount_all(place: Path) -> None:
    """Take away whatever is mounted on `place`, however much that is."""
    while is_kept(place):
        if _libc.umount2(os.fsencode(place), _MNT_DETACH | _UMOUNT_NOFOLLOW):
            raise OSError(ctypes.get_errno(), "cannot unmount", str(place))

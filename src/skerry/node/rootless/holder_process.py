"""The process that holds the user namespace of a node, with a mount and a network namespace.

Started by `skerry.node.rootless.holder`; it creates the namespaces, waits, and does nothing else: the agent,
its launcher and all cells enter what it holds, and find it again after the agent was killed. It ends by
SIGTERM, which the last agent sends when nothing else is left in the namespace.

The mount namespace has its own /run, with links to what the machine has there: the agent's files of one boot
are as private as those of root, and no other user meets them. Mounts of the machine appear, ours do not
appear there.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
from typing import Final, NoReturn

from skerry.node.kernel import mount_flags, syscalls

RUN: Final = "/run"
_HOST: Final = f"{RUN}/.host"
MARKER: Final = f"{RUN}/skerry-namespace"
NEW_NAMESPACE: Final = b"n"  # the user namespace is there, and has no ids yet
READY: Final = b"r"
# Programs create files in these, also where the machine has such a folder already.
_OWN: Final = ("lock", "netns", "runc", "wireguard")
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1


def main(channel: str, marker: str) -> NoReturn:
    """Create the namespaces in step with the process at the other end of the socket `channel`; `marker` is
    written into them."""
    agent = socket.socket(fileno=int(channel))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for ignored in (signal.SIGHUP, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    syscalls.set_name(b"skerry-holder")
    try:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        agent.sendall(NEW_NAMESPACE)
        if not agent.recv(1):  # the ids are mapped now
            os._exit(1)
        syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET)
        _make_run()
        with open(MARKER, "x") as file:
            file.write(marker.replace('"holder":0', f'"holder":{os.getpid()}', 1))
        _raise_loopback()
    except OSError as error:
        agent.sendall(f"{getattr(error, 'step', '') or error.filename}: {error.strerror}".encode())
        os._exit(1)
    agent.sendall(READY)
    agent.close()
    os.chdir("/")
    signal.sigwait({signal.SIGTERM})
    os._exit(0)


def _make_run() -> None:
    """Our own /run. What the machine has there stays reachable by links."""
    host = syscalls.detached_mount(RUN, 0, recursive=True)
    syscalls.mount("skerry", RUN, "tmpfs", mount_flags.MS_NOSUID | mount_flags.MS_NODEV, "size=64m,mode=755")
    os.mkdir(_HOST, 0o755)
    syscalls.move_mount(host, _HOST)
    os.close(host)
    for name in os.listdir(_HOST):
        if name not in _OWN and not name.startswith("skerry"):  # those are of a Skerry of root
            os.symlink(f".host/{name}", f"{RUN}/{name}")
    for own in _OWN:
        os.mkdir(f"{RUN}/{own}", 0o755)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))

"""Sockets of another process of the same user, reached by its pidfd, and listeners that take their place.

For a process that cannot pass its sockets on itself (`skerry.daemon.socket_takeover`). Duplicating them needs
the permission to trace that process, which root has.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import select
import signal
import socket
import struct
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from skerry.kit import unix_addresses

_PIDFD_GETFD: Final = 438  # the number of the system call, on every architecture
_SO_ATTACH_REUSEPORT_CBPF: Final = 51
_SO_DETACH_REUSEPORT_BPF: Final = 68
_BPF_RETURN: Final = 0x06  # BPF_RET | BPF_K
_BACKLOG: Final = 1024
_TCP_INFO: Final = struct.Struct("=8B13I")
_TCP_ESTABLISHED: Final = 1

_libc = ctypes.CDLL(None, use_errno=True)


class ForeignProcess:
    """A running process; OSError if there is none. Another that gets its pid later is not taken for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def close(self) -> None:
        os.close(self._pidfd)

    @property
    def uid(self) -> int:
        return os.stat(f"/proc/{self.pid}").st_uid

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Whether it has ended, or does within that time."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def has_lock(self, path: Path) -> bool:
        """Whether it holds the `flock` of the file."""
        wanted = os.stat(path)
        for number in self._descriptors():
            with contextlib.suppress(OSError):  # closed meanwhile
                found = os.stat(f"/proc/{self.pid}/fd/{number}")
                if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                    details = Path(f"/proc/{self.pid}/fdinfo/{number}").read_text()
                    # Only what was read while it lived is about this process, not about its pid.
                    if "FLOCK" in details and not self.has_ended():
                        return True
        return False

    def shares_network(self) -> bool:
        """Whether it is in the network namespace of this process."""
        return os.stat(f"/proc/{self.pid}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino

    def sockets(self) -> Iterator[socket.socket]:
        """Duplicates of its sockets, one after the other, which belong to the caller. PermissionError if this
        process may not trace it."""
        for number in self._descriptors():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if not os.readlink(f"/proc/{self.pid}/fd/{number}").startswith("socket:"):
                    continue
                if (duplicate := self._duplicate(number)) is not None:
                    yield duplicate

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def _descriptors(self) -> list[int]:
        return [int(name) for name in os.listdir(f"/proc/{self.pid}/fd")]

    def _duplicate(self, number: int) -> socket.socket | None:
        descriptor = _libc.syscall(_PIDFD_GETFD, self._pidfd, number, 0)
        if descriptor < 0:
            error = ctypes.get_errno()
            if error == errno.EBADF:  # closed meanwhile
                return None
            raise OSError(error, os.strerror(error))
        try:
            return socket.socket(fileno=descriptor)
        except OSError:  # the number was given to another file meanwhile
            os.close(descriptor)
            return None


class _TcpInfo(NamedTuple):
    """What the kernel says of a TCP socket, as far as it is used here."""

    state: int
    unacknowledged: int  # of a listener: the connections in its queue
    last_sent_ms: int  # ago
    last_received_ms: int


def is_listening(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def queue_length(listening: socket.socket) -> int:
    """How many connections of a TCP listener wait for being accepted."""
    return _tcp_info(listening).unacknowledged


def awaits_answer(connection: socket.socket) -> bool:
    """Whether the owner of a connection, which has ended, had read a request and not begun to answer. True
    also if the connection is closed."""
    info = _tcp_info(connection)
    unread = array.array("i", [0])
    fcntl.ioctl(connection, termios.FIONREAD, unread)
    if info.state != _TCP_ESTABLISHED:
        return True
    return not unread[0] and info.last_received_ms < info.last_sent_ms


def replace_tcp(former: socket.socket) -> socket.socket:
    """A listener at the address of `former`, which is another of this user: it gets every connection that is
    made from now on. What is in the queue of `former` stays there. OSError if that is impossible."""
    sock = socket.socket(former.family, socket.SOCK_STREAM)
    try:
        former.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for the connections of `former`
        if former.family == socket.AF_INET6:
            v6_only = former.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6_only)
        sock.bind(former.getsockname())
        sock.listen(_BACKLOG)
        # The kernel shares connections out between the two, unless a program chooses: the second of them.
        program = ctypes.create_string_buffer(struct.pack("=HBBI", _BPF_RETURN, 0, 0, 1))
        reference = struct.pack("@HP", 1, ctypes.addressof(program))
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, reference)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        former.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
        raise
    return sock


def end_sharing(sock: socket.socket) -> None:
    """The former listener is closed: what `replace_tcp` returned is an ordinary one from now on."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_REUSEPORT_BPF, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)


def replace_unix(path: Path) -> socket.socket:
    """A listener in place of the one at `path`, with its permissions: it gets every connection that is made
    from now on. OSError if there is none."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    temporary = path.with_name(f".{secrets.token_hex(4)}")
    try:
        former = path.lstat()
        with unix_addresses.address_of(temporary) as address:
            sock.bind(address)
        os.chmod(temporary, 0o600)
        os.chown(temporary, former.st_uid, former.st_gid)
        os.chmod(temporary, former.st_mode & 0o777)
        sock.listen(_BACKLOG)
        os.replace(temporary, path)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        temporary.unlink(missing_ok=True)
        raise
    return sock


def _tcp_info(sock: socket.socket) -> _TcpInfo:
    found = _TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
    return _TcpInfo(found[0], found[12], found[17], found[19])

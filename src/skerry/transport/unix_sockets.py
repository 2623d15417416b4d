"""Unix sockets in the file system: binding one, taking the place of a dead one, removing our own.

Used by `skerry.transport.grpc.server` and `skerry.transport.http.server`. A socket on which a process
answers, or a file that is no socket, is never removed. The file's mode decides which users may connect;
access is by TLS with a client certificate (gRPC), or by the user at the other end and by tokens (HTTP).
"""

from __future__ import annotations

import errno
import grp
import os
import socket
import stat
from pathlib import Path
from typing import Final

import msgspec

from skerry.kit import listening_sockets, namespace_marker, unix_addresses
from skerry.model import errors
from skerry.model.settings import GrpcSettings

_BACKLOG: Final = 1024
_GROUP_CONNECTS: Final = 0o060


class SocketPermissions(msgspec.Struct, frozen=True):
    """Who may connect to a socket."""

    mode: int
    group: int = -1  # as it is


_OWNER_ONLY: Final = SocketPermissions(0o600)


def permissions_of(settings: GrpcSettings) -> SocketPermissions:
    """The permissions of the settings; raises `Invalid` for an unknown group."""
    mode, name = int(settings.socket_mode, 8), settings.socket_group
    if not name:
        return SocketPermissions(mode)
    try:
        group = int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise errors.Invalid(
            f"there is no group {name!r} on this machine; add it, or set grpc.socket_group to another",
            field="grpc.socket_group",
        ) from None
    return SocketPermissions(mode | _GROUP_CONNECTS, group)


def group_permissions(name: str) -> SocketPermissions:
    """For our own user, root, and the members of a group, if there is one of that name or number that we may
    give files to."""
    if not name:
        return _OWNER_ONLY
    try:
        group = int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        return _OWNER_ONLY
    if not namespace_marker.is_machine_root() and group not in os.getgroups():
        return _OWNER_ONLY
    return SocketPermissions(0o660, group)


def bind(
    path: Path, permissions: SocketPermissions = _OWNER_ONLY, *, option: str = "--socket"
) -> socket.socket:
    """A listening socket at `path`, whose folder is created if needed; `FailedPrecondition` if that fails,
    with the `option` for another path."""
    name = f"{option} {path}"
    if (inherited := _inherited(name, path, permissions)) is not None:
        return inherited
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not remove_stale(path):
            raise errors.FailedPrecondition(
                f"{path} is taken: another process serves on it, or it is no socket; "
                f"stop that process, or choose another path with {option}"
            )
        with unix_addresses.address_of(path) as address:
            sock.bind(address)
        # No process can connect before it listens, and by then it has its permissions.
        _set_permissions(path, permissions)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise errors.FailedPrecondition(
            f"cannot listen on {path}: {error.strerror or error}; choose another path with {option}"
        ) from error
    except BaseException:
        sock.close()
        raise
    listening_sockets.current().register(name, sock)
    return sock


def _set_permissions(path: Path, permissions: SocketPermissions) -> None:
    path.chmod(0o600)
    os.chown(path, -1, permissions.group)
    path.chmod(permissions.mode)


def _inherited(name: str, path: Path, permissions: SocketPermissions) -> socket.socket | None:
    """The listening socket that the process before had at `path`, unless its file was removed."""
    sock = listening_sockets.current().adopt(name)
    if sock is None:
        return None
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            _set_permissions(path, permissions)
            return sock
    except OSError:
        pass
    sock.close()
    return None


def remove_stale(path: Path) -> bool:
    """Remove the socket at `path` if no process serves on it; False if it has to stay.

    For sockets of killed processes, and our own once it is closed, unless another process has taken it over.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
    except FileNotFoundError:
        return True
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe,
        unix_addresses.address_of(path) as address,
    ):
        answer = probe.connect_ex(address)
    if answer == errno.ECONNREFUSED:
        path.unlink(missing_ok=True)
    return answer in (errno.ECONNREFUSED, errno.ENOENT)

"""Unix sockets in the file system: binding one, taking the place of a dead one, removing our own.

Used by `skerry.wire.grpc.server`. A socket that somebody answers on, or a file that is no socket, is never
removed. The mode is Aurae's: anybody may connect, because TLS with a client certificate decides who gets in.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Final

from skerry.model import errors

_MODE: Final = 0o766
_BACKLOG: Final = 1024


class UnixSocket:
    """A listening socket and its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sock = _bind(path)
        made = path.stat()
        self._identity = (made.st_dev, made.st_ino)

    def remove(self) -> None:
        """Remove the file, unless somebody else has put another there since."""
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return
        if (found.st_dev, found.st_ino) == self._identity:
            self.path.unlink(missing_ok=True)


def _bind(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _clear_stale(path)
        sock.bind(str(path))
        path.chmod(_MODE)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise errors.Refused(
            f"cannot listen on {path}: {error.strerror or error}; choose another path with --socket"
        ) from error
    except BaseException:
        sock.close()
        raise
    return sock


def _clear_stale(path: Path) -> None:
    """Remove what a process that was killed left behind."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise errors.Refused(f"{path} is there and is no socket; choose another path with --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        answer = probe.connect_ex(str(path))
    if answer == errno.ECONNREFUSED:
        os.unlink(path)
    elif answer != errno.ENOENT:
        raise errors.Refused(
            f"another process serves on {path} already; stop it, or choose another path with --socket"
        )

"""Unix sockets in the file system: binding one, taking the place of a dead one, removing our own.

Used by `skerry.wire.grpc.server`. A socket that somebody answers on, or a file that is no socket, is never
removed. The mode is Aurae's: anybody may connect, because TLS with a client certificate decides who gets in.
"""

from __future__ import annotations

import errno
import socket
import stat
from pathlib import Path
from typing import Final

from skerry.model import errors

_MODE: Final = 0o766
_BACKLOG: Final = 1024


def bind(path: Path) -> socket.socket:
    """A listening socket at `path`, whose folder is made if need be; `Refused` says why there is none."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not remove_stale(path):
            raise errors.Refused(
                f"{path} is taken: another process serves on it, or it is no socket; "
                "stop that process, or choose another path with --socket"
            )
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


def remove_stale(path: Path) -> bool:
    """Remove the socket at `path` if nobody serves on it; False if it has to stay.

    So goes what a killed process left behind, and our own once it is closed, unless another has taken over.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
    except FileNotFoundError:
        return True
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        answer = probe.connect_ex(str(path))
    if answer == errno.ECONNREFUSED:
        path.unlink(missing_ok=True)
    return answer in (errno.ECONNREFUSED, errno.ENOENT)

"""Sockets to listen on, bound before anything is served, with errors that say what to do."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from skerry.model import errors


def split(text: str, flag: str) -> tuple[str, int]:
    """`HOST:PORT` taken apart; `[::1]:80` for IPv6."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise errors.Invalid(f"{flag}: '{text}' is no HOST:PORT; one looks like 127.0.0.1:1323 or [::1]:1323")
    return host, int(port)


def bind(text: str, flag: str) -> socket.socket:
    """A TCP socket bound to `HOST:PORT`, not yet accepting."""
    host, port = split(text, flag)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise errors.Invalid(
            f"{flag}: the host '{host}' is not known here. Use an address of this machine."
        ) from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(1024)
    except OSError as error:
        bound.close()
        raise _explained(error, text, flag) from None
    bound.setblocking(False)
    return bound


def _explained(error: OSError, text: str, flag: str) -> errors.SkerryError:
    if error.errno == errno.EADDRINUSE:
        return errors.AlreadyExists(
            f"{flag}: {text} is in use by another program. Choose another port, or 0 for any free one."
        )
    if error.errno == errno.EACCES:
        return errors.Forbidden(f"{flag}: {text} needs root; choose a port above 1023.")
    if error.errno == errno.EADDRNOTAVAIL:
        return errors.Invalid(f"{flag}: {text} is no address of this machine.")
    return errors.Unavailable(f"{flag}: cannot listen on {text}: {error.strerror}")


def shown(bound: socket.socket) -> str:
    """`HOST:PORT` that a client would dial."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unix_socket(named: str, folder: Path) -> Path:
    """Where the node runtime's socket goes: as told, else where Aurae clients look, else the data folder."""
    if named:
        return Path(named).absolute()
    return Path("/var/run/aurae/aurae.sock") if os.geteuid() == 0 else folder / "aurae.sock"

"""Addresses of unix sockets at paths of any length: the kernel takes 107 bytes, and a folder may be deeper.

A longer path is reached through a descriptor of its folder. `skerry.transport.unix_sockets` binds with it and
the command line connects with it, so it loads nothing but the standard library.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 107  # of `sun_path`, without its last zero


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """`path` as `bind` and `connect` take it, within this block; OSError if its folder does not exist."""
    if len(os.fsencode(path)) <= MAX_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path, timeout_s: float | None) -> socket.socket:
    """A stream to the listener at `path`, with `timeout_s`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        with address_of(path) as address:
            sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock

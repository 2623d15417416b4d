"""Reads files in the root of a container, whose content is untrusted.

Links are resolved as inside the container: absolute ones, and `..`, stay in its root. Nothing here blocks on
a pipe or opens a device.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from skerry.model import errors
from skerry.node.kernel import thread_syscalls

_MAX_LINKS: Final = 40  # as the kernel


def resolve(root: Path, path: str) -> str:
    """`path` in `root` without links; what does not exist stays as it is. Raises FailedPrecondition for a
    circle."""
    found: list[str] = []
    ahead, links = path.split("/")[::-1], 0
    while ahead:
        part = ahead.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del found[-1:]
            continue
        try:
            target = os.readlink(os.path.join(root, *found, part))
        except OSError:  # no link, or not there
            found.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise errors.FailedPrecondition(f"{path} of the image is a circle of links")
        if target.startswith("/"):
            found.clear()
        ahead += target.split("/")[::-1]
    return "/" + "/".join(found)


def read_file(root: Path, path: str, limit: int) -> bytes | None:
    """Content of the file `path` in `root`; None if there is no such file. Raises TooLarge over `limit`."""
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        descriptor = thread_syscalls.open_at(
            folder,
            path,
            os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY,
            resolve=thread_syscalls.RESOLVE_IN_ROOT | thread_syscalls.RESOLVE_NO_MAGICLINKS,
        )
    except OSError:
        # Missing, a dangling or circular link, a device: all the same to the container.
        return None
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    with open(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise errors.TooLarge(f"{path} in the image is larger than {limit} bytes; make it smaller")
    return data

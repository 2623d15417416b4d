"""Reading in the root of a container, which somebody else filled and which is hostile.

Links are followed as the container would follow them: an absolute one, and `..`, begin or end at its root
and never at the node's. Nothing here waits for a pipe or opens a device.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from skerry.model import errors
from skerry.node.kernel import thread_syscalls


def read_file(root: Path, path: str, limit: int) -> bytes | None:
    """What is in the file `path` of `root`; None if there is no such file. Raises TooLarge over `limit`."""
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        descriptor = thread_syscalls.open_at(
            folder,
            path,
            os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY,
            resolve=thread_syscalls.RESOLVE_IN_ROOT | thread_syscalls.RESOLVE_NO_MAGICLINKS,
        )
    except OSError:
        # Not there, a link to nowhere or in a circle, a device: all the same to the container.
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

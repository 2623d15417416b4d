"""Moves output from the pipes of an executable to its rings on disk (`skerry.node.logs.rings`).

Disks fill up and break, which must not stop an init: output that cannot be stored is read and dropped, so
that no program ever blocks on its output.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import time
from typing import Final

from skerry.node.logs.rings import RingWriter

_CHUNK: Final = 64 * 1024
# Even a pipe of the largest size is empty after this many chunks.
_MOST_CHUNKS: Final = 17


def has_data(pipe: int) -> bool:
    """True if there is something to read, and not only the end."""
    return bool(struct.unpack("=i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


class OutputPump:
    """Moves one stream of an executable from a pipe to a ring."""

    __slots__ = ("_ring", "has_ended", "pipe")

    def __init__(self, pipe: int, folder: int, stream: str, log_bytes: int) -> None:
        self.pipe = pipe
        self.has_ended = False
        try:
            self._ring: RingWriter | None = RingWriter(folder, stream, max_bytes=log_bytes, is_new=True)
        except (OSError, ValueError):
            self._ring = None  # output is read and dropped

    def move(self) -> bool:
        """Move a chunk; False if there was none."""
        try:
            data = os.read(self.pipe, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        now = time.time_ns()
        if data:
            if self._ring is not None:
                self._ring.write(data, now)
            return True
        if self._ring is not None:
            self._ring.end(now)
        self.has_ended = True
        return False

    def drain(self) -> None:
        """Move what is in the pipe now, but not what may be added for ever."""
        for _ in range(_MOST_CHUNKS):
            if not self.move():
                return

    def close(self) -> None:
        """Leave the stream without an end."""
        if self._ring is not None and not self.has_ended:
            self._ring.close()

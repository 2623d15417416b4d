"""Output on its way from the pipes of an executable to its rings on disk (`skerry.node.logs.rings`).

Disks fill and break, and an init must not: what cannot be kept is read and dropped, so that no program ever
waits for somebody to take its output.
"""

from __future__ import annotations

import os
import time
from typing import Final

from skerry.node.logs.rings import RingWriter

_CHUNK: Final = 64 * 1024
# A pipe that its owner made as large as the kernel lets it is empty after this many chunks.
_MOST_CHUNKS: Final = 17


class OutputPump:
    """One stream of an executable on its way from a pipe to a ring."""

    __slots__ = ("_ring", "has_ended", "pipe")

    def __init__(self, pipe: int, folder: int, stream: str, log_bytes: int) -> None:
        self.pipe = pipe
        self.has_ended = False
        try:
            self._ring: RingWriter | None = RingWriter(folder, stream, max_bytes=log_bytes, is_new=True)
        except (OSError, ValueError):
            self._ring = None  # what comes is read and dropped

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
        """Move what is in the pipe now, and not what somebody may add for ever."""
        for _ in range(_MOST_CHUNKS):
            if not self.move():
                return

"""How long threads of this process ran, and how long they waited for a processor, by the kernel's count.

`skerry.kit.loop_monitor` uses it to tell what a thread did itself from what other programs on the machine did
to it. A kernel without these counts reports no waiting.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_THREADS: Final = Path("/proc/self/task")
_LENGTH: Final = 128


class ThreadTimes(NamedTuple):
    """Seconds since a thread began; or, of two moments, in between."""

    ran_s: float = 0.0
    waited_s: float = 0.0  # it could run, and had no processor

    def since(self, earlier: ThreadTimes) -> ThreadTimes:
        return ThreadTimes(self.ran_s - earlier.ran_s, self.waited_s - earlier.waited_s)


class ThreadClock:
    """The times of the thread that makes it; to be read by that thread, and closed."""

    def __init__(self, thread: int) -> None:
        self._file = -1
        with suppress(OSError):
            self._file = os.open(_THREADS / str(thread) / "schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> ThreadTimes:
        if self._file < 0:
            return ThreadTimes(ran_s=time.thread_time())
        return _parse(os.pread(self._file, _LENGTH, 0))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_all() -> Mapping[int, ThreadTimes]:
    """Of every thread of this process, by its number in the kernel; empty where the kernel does not count."""
    found: dict[int, ThreadTimes] = {}
    with suppress(OSError):
        for thread in os.listdir(_THREADS):
            with suppress(OSError):  # it has just ended
                found[int(thread)] = _parse((_THREADS / thread / "schedstat").read_bytes())
    return found


def _parse(text: bytes) -> ThreadTimes:
    ran, waited, _ = text.split()
    return ThreadTimes(int(ran) / 1e9, int(waited) / 1e9)

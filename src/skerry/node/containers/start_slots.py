"""Limits how many containers are started at the same time.

A start is mostly work of the processors: many more at once than there are processors only take turns, and all
end late. But each also waits for the kernel now and then. So in a burst two more runtimes work at a time than
there are processors, in the order of requests (`skerry.node.containers.startup`). Cells and addresses of the
next few are created meanwhile (`skerry.node.containers.containers`), and those of the others later: the first
runtimes would wait for them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

_WAITING: Final = 2  # beyond one for each processor: for the disk, for a lock of the kernel, for the agent
_LONGEST_S: Final = 1.0  # after which a start that hangs no longer delays others


class StartSlots:
    """A number of slots. One is released when its start is over, or after a while."""

    def __init__(self, count: int | None = None, *, longest_s: float = _LONGEST_S) -> None:
        self._slots = asyncio.Semaphore(count or _processors() + _WAITING)
        self._longest_s = longest_s

    async def take(self) -> Callable[[], None]:
        """Wait for a slot; returns what releases it, which may be called several times."""
        await self._slots.acquire()
        is_released = False

        def release() -> None:
            nonlocal is_released
            timer.cancel()
            if not is_released:
                is_released = True
                self._slots.release()

        timer = asyncio.get_running_loop().call_later(self._longest_s, release)
        return release

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        release = await self.take()
        try:
            yield
        finally:
            release()


def _processors() -> int:
    return len(os.sched_getaffinity(0))

"""Limits how many containers are started at the same time.

A start is mostly work of the processors: more at once than there are processors only take turns, and all end
late. So in a burst as many runtimes work at a time as there are processors, in the order of requests. Cells
and addresses of the next are created meanwhile. Used by `skerry.node.containers.startup`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_FEWEST: Final = 2  # a start also waits, for the disk and for the kernel
_LONGEST_S: Final = 1.0  # after which a start that hangs no longer delays others


class StartSlots:
    """A number of slots. One is released when its start is over, or after a while."""

    def __init__(self, count: int | None = None, *, longest_s: float = _LONGEST_S) -> None:
        self._slots = asyncio.Semaphore(count or max(_FEWEST, len(os.sched_getaffinity(0))))
        self._longest_s = longest_s

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        await self._slots.acquire()
        is_released = False

        def release() -> None:
            nonlocal is_released
            if not is_released:
                is_released = True
                self._slots.release()

        timer = asyncio.get_running_loop().call_later(self._longest_s, release)
        try:
            yield
        finally:
            timer.cancel()
            release()

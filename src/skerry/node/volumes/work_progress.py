"""Blocking work in a thread that can be ended from outside, and how far it is.

The work calls `advance` after each part, which raises when the work is to end. `run` waits for the thread
also after a cancel, so that the files of the work may be removed or used again right after.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from skerry.kit.tasks import wait_for_end

P = ParamSpec("P")
T = TypeVar("T")


class WorkStopped(Exception):
    """The work was asked to end before it was done."""


class WorkProgress:
    """Counts bytes. Written by one thread, read by others."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0
        self._is_stopped = False
        self._deadline: float | None = None

    def limit(self, seconds: float | None) -> None:
        """From now on the work may take so long; None: as long as it takes."""
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def begin(self, total: int, done: int = 0) -> None:
        """Another part of the work begins, of `total` bytes."""
        self.total, self.done = total, done

    def advance(self, count: int) -> None:
        """Count bytes that are done. Raises `WorkStopped` once the work is to end, and TimeoutError if it
        takes longer than its limit."""
        self.done += count
        if self._is_stopped:
            raise WorkStopped
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise TimeoutError

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in a thread. If this is cancelled, the work is asked to end, and has ended when the
        cancel goes on."""
        task = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._is_stopped = True
            await wait_for_end(task)
            raise

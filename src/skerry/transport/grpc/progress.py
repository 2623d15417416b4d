"""Telling a client how far something has come, at its pace and not too often.

The work reports every step; only the newest is kept until it can be sent. A client that does not read
holds up nothing but its own messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from skerry.kit.tasks import cancel_and_wait
from skerry.model.images import PullProgress
from skerry.node.containers.ports import OnPullProgress

T = TypeVar("T")

_EVERY_S: Final = 0.1


async def run_with_progress(
    work: Callable[[OnPullProgress], Awaitable[T]], send: Callable[[PullProgress], Awaitable[None]]
) -> T:
    """The result of `work`, while `send` is given its progress; cancelled with us."""
    newest = _Newest()
    working = asyncio.ensure_future(work(newest.put))
    working.add_done_callback(lambda _: newest.wake())
    try:
        while not working.done():
            if (progress := await newest.take()) is not None:
                await send(progress)
            await asyncio.wait({working}, timeout=_EVERY_S)
        return working.result()
    finally:
        await cancel_and_wait([working])


class _Newest:
    """The last thing that was put, until it is taken."""

    def __init__(self) -> None:
        self._progress: PullProgress | None = None
        self._is_there = asyncio.Event()

    def put(self, progress: PullProgress) -> None:
        self._progress = progress
        self._is_there.set()

    def wake(self) -> None:
        """Let whoever waits go without."""
        self._is_there.set()

    async def take(self) -> PullProgress | None:
        await self._is_there.wait()
        self._is_there.clear()
        progress, self._progress = self._progress, None
        return progress

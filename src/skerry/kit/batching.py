"""Work that is cheaper together: calls that come while one is under way are done at once by the next.

A transaction of nft, or a run of `ip`, costs about as much for ten changes as for one. What was begun is
finished, whether the caller stays or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Batcher(Generic[T]):
    """Gives items to `work` in the order they came in, at most `most` at a time, in a thread."""

    def __init__(self, work: Callable[[list[T]], None], *, most: int = 1000) -> None:
        self._work = work
        self._most = most
        self._waiting: list[tuple[T, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def do(self, item: T) -> None:
        """Returns when the work on `item` is done; raises what it raised, for all of its batch."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await asyncio.shield(done)

    @property
    def is_idle(self) -> bool:
        """True if nothing is under way."""
        return self._task is None

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        while self._task is not None:
            await asyncio.shield(self._task)

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            error: Exception | None = None
            try:
                await asyncio.to_thread(self._work, [item for item, _ in batch])
            except Exception as caught:  # noqa: BLE001 - it is the callers', who all get it
                error = caught
            for _, done in batch:
                if done.cancelled():
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)
        self._task = None

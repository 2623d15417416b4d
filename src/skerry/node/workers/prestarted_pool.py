"""Prestarted workers of one sort, a few of them kept ready.

None is made before somebody has wanted one, unless it is said that somebody will: what nobody uses costs
nothing. How one is made is `prestarted`'s business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from skerry.kit import tasks
from skerry.model import errors
from skerry.node.workers.prestarted import PrestartedWorker, PrestartedWorkerFactory

log = structlog.get_logger(__name__)

_PATIENCE_S: Final = 0.1  # whoever took one is busy with it now; the next is made when that is over
_RETRY_S: Final = 1.0
_SELDOM_S: Final = 10.0  # between looks at whether those that wait are still alive


class PrestartedPool:
    """`run` keeps `count` ready."""

    def __init__(
        self,
        blanks: PrestartedWorkerFactory,
        make: Callable[[], Awaitable[PrestartedWorker]],
        count: int,
        *,
        begins_at_once: bool,
    ) -> None:
        self._blanks = blanks
        self._make = make
        self._count = count
        self._ready: list[PrestartedWorker] = []
        self._wanted = asyncio.Event()
        self._is_used = begins_at_once
        if begins_at_once:
            self._wanted.set()

    async def take(self) -> PrestartedWorker:
        """One that is the caller's now: from the pool, or made while the caller waits. Raises what making it
        raises."""
        self._is_used = True
        self._wanted.set()
        while self._ready:
            blank = self._ready.pop()
            if self._blanks.is_good(blank):
                return blank
            await tasks.run_to_completion(self._blanks.close(blank))
        return await self._make()

    def want(self) -> None:
        """Somebody will take one soon."""
        self._is_used = True
        self._wanted.set()

    async def run(self) -> None:
        """Make what is missing, for ever."""
        while True:
            try:
                async with asyncio.timeout(_SELDOM_S):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            if not self._is_used:
                continue
            await self._discard_dead()
            await asyncio.sleep(_PATIENCE_S)
            while len(self._ready) < self._count:
                try:
                    self._ready.append(await self._make())
                except (errors.SkerryError, OSError) as error:
                    log.warning("blank.not_made", error=str(error))
                    await asyncio.sleep(_RETRY_S)

    async def _discard_dead(self) -> None:
        dead = [blank for blank in self._ready if not self._blanks.is_good(blank)]
        self._ready = [blank for blank in self._ready if blank not in dead]
        for blank in dead:
            await tasks.run_to_completion(self._blanks.close(blank))

    async def close(self) -> None:
        """Remove those that wait. `run` has ended."""
        left, self._ready = self._ready, []
        await asyncio.gather(*(self._blanks.close(blank) for blank in left))

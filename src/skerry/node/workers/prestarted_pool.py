"""A pool of prestarted workers of one kind.

None is created before the first use, unless one is announced: unused kinds cost nothing. `prestarted` creates
them.
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

_REFILL_DELAY_S: Final = 0.1  # the next is created when the start that took one is over
_RETRY_S: Final = 1.0
_CHECK_S: Final = 10.0  # between checks that they are alive


class PrestartedPool:
    """`run` keeps `count` ready."""

    def __init__(
        self,
        factory: PrestartedWorkerFactory,
        make: Callable[[], Awaitable[PrestartedWorker]],
        count: int,
        *,
        begins_at_once: bool,
    ) -> None:
        self._factory = factory
        self._make = make
        self._count = count
        self._ready: list[PrestartedWorker] = []
        self._refill = asyncio.Event()
        self._is_used = begins_at_once
        if begins_at_once:
            self._refill.set()

    async def take(self) -> PrestartedWorker:
        """One that the caller owns now: from the pool, or created while the caller waits. Raises errors of
        the creation."""
        self._is_used = True
        self._refill.set()
        while self._ready:
            worker = self._ready.pop()
            if self._factory.is_alive(worker):
                return worker
            await tasks.run_to_completion(self._factory.close(worker))
        return await self._make()

    def announce(self) -> None:
        """Announce that one will be taken soon."""
        self._is_used = True
        self._refill.set()

    async def run(self) -> None:
        """Fill the pool, for ever."""
        while True:
            try:
                async with asyncio.timeout(_CHECK_S):
                    await self._refill.wait()
            except TimeoutError:
                pass
            self._refill.clear()
            if not self._is_used:
                continue
            await self._discard_dead()
            await asyncio.sleep(_REFILL_DELAY_S)
            while len(self._ready) < self._count:
                try:
                    self._ready.append(await self._make())
                except (errors.SkerryError, OSError) as error:
                    log.warning("blank.not_made", error=str(error))
                    await asyncio.sleep(_RETRY_S)

    async def _discard_dead(self) -> None:
        dead = [worker for worker in self._ready if not self._factory.is_alive(worker)]
        self._ready = [worker for worker in self._ready if worker not in dead]
        for worker in dead:
            await tasks.run_to_completion(self._factory.close(worker))

    async def close(self) -> None:
        """Remove all. `run` has ended."""
        workers, self._ready = self._ready, []
        await asyncio.gather(*(self._factory.close(worker) for worker in workers))

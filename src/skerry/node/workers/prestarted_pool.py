"""A pool of prestarted workers of one kind, filled ahead of demand.

None is created before the first use is announced: unused kinds cost nothing. The pool keeps
some ready, and more while many are taken: as many as were taken of late in the time that it needs to
notice (`DemandEstimate`). Who finds none ready waits in a queue, and gets the next that is created: a few are
created at a time, so that the first caller of many does not wait for the last. `prestarted` creates them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import structlog

from skerry.kit import tasks
from skerry.model import errors
from skerry.node.workers.prestarted import PrestartedWorker, PrestartedWorkerFactory

log = structlog.get_logger(__name__)

# The next is created when the start that took one is over, unless the pool is running out.
_REFILL_DELAY_S: Final = 0.1
_RETRY_S: Final = 1.0
_CHECK_S: Final = 10.0  # between checks that they are alive
_AHEAD_S: Final = 0.25  # the demand of this time is kept ready
_MEMORY_S: Final = 1.0  # after this time a take counts a third


class PoolLimits(NamedTuple):
    """How many prestarted workers of a kind there are."""

    at_rest: int  # kept ready
    most: int  # kept ready while many are taken
    at_once: int  # created at the same time


class DemandEstimate:
    """The rate at which workers are taken: an average over the last second or so, newer takes count more.
    Pure; the caller has the time."""

    def __init__(self) -> None:
        self._rate = 0.0  # per second
        self._at = -math.inf

    def record(self, now: float) -> None:
        """One was taken."""
        self._rate = self.rate(now) + 1.0 / _MEMORY_S
        self._at = now

    def rate(self, now: float) -> float:
        """How many are taken per second."""
        return self._rate * math.exp(-max(0.0, now - self._at) / _MEMORY_S)

    def target(self, limits: PoolLimits, now: float) -> int:
        """How many should be ready."""
        expected = int(self.rate(now) * _AHEAD_S)
        return min(limits.at_rest + expected, max(limits.at_rest, limits.most))


class PrestartedPool:
    """Hands out prestarted workers. `run` keeps some ready."""

    def __init__(
        self,
        factory: PrestartedWorkerFactory,
        make: Callable[[], Awaitable[PrestartedWorker]],
        limits: PoolLimits,
    ) -> None:
        self._factory = factory
        self._make = make
        self._limits = limits
        self._demand = DemandEstimate()
        self._ready: deque[PrestartedWorker] = deque()
        self._waiting: deque[asyncio.Future[PrestartedWorker]] = deque()
        self._making: set[asyncio.Task[None]] = set()
        self._refill = asyncio.Event()
        self._is_used = False

    async def take(self) -> PrestartedWorker:
        """One that the caller owns now: from the pool, or created while the caller waits. Raises errors of
        the creation."""
        self._demand.record(_now())
        self.announce()
        while self._ready:
            worker = self._ready.popleft()
            if self._factory.is_alive(worker):
                return worker
            await tasks.run_to_completion(self._factory.close(worker))
        return await self._wait()

    async def _wait(self) -> PrestartedWorker:
        created: asyncio.Future[PrestartedWorker] = asyncio.get_running_loop().create_future()
        self._waiting.append(created)
        self._make_for_waiting()
        try:
            return await created
        except asyncio.CancelledError:
            with contextlib.suppress(ValueError):
                self._waiting.remove(created)
            if created.done() and not created.cancelled() and created.exception() is None:
                await self._hand_over(created.result())  # it came at the moment of the cancellation
            await tasks.run_to_completion(self._undo_unneeded())
            raise

    async def _undo_unneeded(self) -> None:
        """Cancel creations that nobody needs since a caller has gone."""
        unneeded = max(0, len(self._making) - len(self._waiting) - max(0, self._missing()))
        await tasks.cancel_and_wait(list(self._making)[:unneeded])

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
            await self._discard_useless()
            if self._missing() <= self._limits.at_rest // 2:
                await asyncio.sleep(_REFILL_DELAY_S)
            while self._missing() > 0:
                # One at a time: what somebody waits for comes first, and the calls that took the last ones.
                if self._making:
                    await asyncio.wait(self._making, return_when=asyncio.FIRST_COMPLETED)
                elif not await self._fill():
                    await asyncio.sleep(_RETRY_S)

    def _missing(self) -> int:
        return self._demand.target(self._limits, _now()) - len(self._ready)

    async def _fill(self) -> bool:
        """Create one for the pool; False if that failed."""
        task = self._start_making()
        await asyncio.wait([task])
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("blank.not_made", error=str(error))
            if not isinstance(error, (errors.SkerryError, OSError)):
                raise error
        return error is None

    def _make_for_waiting(self) -> None:
        waiting = sum(not each.done() for each in self._waiting)  # a caller may have gone just now
        while len(self._making) < min(self._limits.at_once, waiting):
            self._start_making().add_done_callback(self._report_failure)

    def _start_making(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self._make_one())
        self._making.add(task)
        task.add_done_callback(self._made)
        return task

    def _report_failure(self, task: asyncio.Task[None]) -> None:
        """Of a creation for who waits; that of one for the pool is no concern of theirs."""
        error = None if task.cancelled() else task.exception()
        if error is not None and (first := self._first_waiting()) is not None:
            first.set_exception(error)

    async def _make_one(self) -> None:
        await self._hand_over(await self._make())

    def _made(self, task: asyncio.Task[None]) -> None:
        self._making.discard(task)
        # After `_report_failure`, so that a failure ends one wait.
        asyncio.get_running_loop().call_soon(self._make_for_waiting)

    async def _hand_over(self, worker: PrestartedWorker) -> None:
        """Give it to who waits longest, or keep it if it may be needed."""
        if (first := self._first_waiting()) is not None:
            first.set_result(worker)
        elif self._missing() > 0:
            self._ready.append(worker)
        else:
            await tasks.run_to_completion(self._factory.close(worker))

    def _first_waiting(self) -> asyncio.Future[PrestartedWorker] | None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():
                return first
        return None

    async def _discard_useless(self) -> None:
        """Remove those that have died, and the oldest of those that are not needed any more."""
        useless = [worker for worker in self._ready if not self._factory.is_alive(worker)]
        self._ready = deque(worker for worker in self._ready if worker not in useless)
        while self._missing() < 0:
            useless.append(self._ready.popleft())
        for worker in useless:
            await tasks.run_to_completion(self._factory.close(worker))

    async def close(self) -> None:
        """Remove all, and what is being created. `run` has ended."""
        for each in self._waiting:
            if not each.done():
                each.set_exception(errors.Unavailable("this node is stopping; call it on another node"))
        self._waiting.clear()
        await tasks.cancel_and_wait(self._making)
        workers, self._ready = self._ready, deque()
        await asyncio.gather(*(self._factory.close(worker) for worker in workers))


def _now() -> float:
    return asyncio.get_running_loop().time()

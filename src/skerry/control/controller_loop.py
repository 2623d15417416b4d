"""The loop of a controller: records are looked at when they have changed, or when a time has come.

Each key is with one worker at a time, several keys are with several at once, and a key that changes while
somebody has it is looked at once more. Nothing is polled. What looking at a record means is the controller's
matter; `skerry.control.work_queue` has the order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from skerry.control.work_queue import WorkQueue
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.store.fencing import LeadershipLost

log = structlog.get_logger(__name__)

_WORKERS = 16
# The machine's clock may be set while we wait for a time, so it is looked at this often while one is named.
_LONGEST_REST_S = 30.0
_FAILED_PAUSE_S = 60.0  # before a record that could not be worked on is looked at again


async def settled_at_once() -> None:
    """For a store that needs no time to settle."""


class ControllerLoop:
    """Keys to be looked at, and who does it. `name` tells it from others in the log."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._backoff = Backoff(cap_s=5.0)
        self._queue: WorkQueue[str] = WorkQueue()
        self._changed = asyncio.Event()

    def add(self, key: str) -> None:
        """Look at it soon."""
        self._queue.add(key)
        self._changed.set()

    async def run(
        self,
        keys: Iterable[str],
        reconcile: Callable[[str], Awaitable[float | None]],
        refresh: Callable[[], Awaitable[None]],
        settled: Callable[[], Awaitable[None]] = settled_at_once,
    ) -> None:
        """For ever: call `reconcile` with each of `keys`, and then with those that are added; what it returns
        is when to look again at the latest.

        A `Conflict` that it raises says that what it read is outdated: after `refresh` it is called again.
        After another `SkerryError` it is called again later, and others go on. Nothing begins before
        `settled` returns. `LeadershipLost` ends it.
        """
        self._queue.clear()
        self._queue.add_all(keys)
        slots = asyncio.Semaphore(_WORKERS)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await settled()
                    self._changed.clear()
                    await slots.acquire()
                    key = self._queue.take(self._clock.now())
                    if key is None:
                        slots.release()
                        await self._rest()
                    else:
                        group.create_task(self._work(key, reconcile, refresh, slots))
        except* LeadershipLost as lost:
            raise LeadershipLost(str(lost.exceptions[0])) from None

    async def _work(
        self,
        key: str,
        reconcile: Callable[[str], Awaitable[float | None]],
        refresh: Callable[[], Awaitable[None]],
        slots: asyncio.Semaphore,
    ) -> None:
        try:
            try:
                self._queue.add_at(key, await reconcile(key))
            except errors.Conflict:
                await refresh()
                self._queue.add(key)
        except errors.Unavailable as error:
            log.warning("controller.interrupted", controller=self._name, key=key, error=error.message)
            await asyncio.sleep(self._backoff.delay(0))
            self._queue.add(key)
        except errors.SkerryError as error:
            # One record that nothing can be done with must not stop the work on all others.
            log.error(
                "controller.failed", controller=self._name, key=key, error=error.message, exc_info=error
            )
            self._queue.add_at(key, self._clock.now() + _FAILED_PAUSE_S)
        finally:
            self._queue.done(key)
            slots.release()
            self._changed.set()

    async def _rest(self) -> None:
        at = self._queue.next_at()
        at_most_s = None if at is None else min(max(0.0, at - self._clock.now()), _LONGEST_REST_S)
        try:
            async with asyncio.timeout(at_most_s):
                await self._changed.wait()
        except TimeoutError:
            pass

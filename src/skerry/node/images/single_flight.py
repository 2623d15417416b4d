"""Runs concurrent requests for the same work once.

Callers that join wait for the same result. The work is cancelled only when the last caller is cancelled,
which then waits until it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from skerry.kit.tasks import wait_for_end
from skerry.model import errors

T = TypeVar("T")


class _Flight(Generic[T]):
    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiting = 0


class SingleFlight(Generic[T]):
    """Work in progress, by key."""

    def __init__(self, *, shares_failures: bool) -> None:
        """Unless failures are shared, a caller that joined work that failed runs it again."""
        self._shares_failures = shares_failures
        self._flights: dict[Hashable, _Flight[T]] = {}
        self._is_closed = False

    async def join(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the work for `key`, which is started unless it is in progress."""
        while True:
            if self._is_closed:
                raise _stopping()
            flight = self._flights.get(key)
            is_starter = flight is None
            if flight is None:
                flight = _Flight(asyncio.create_task(begin()))
                self._flights[key] = flight
                flight.task.add_done_callback(partial(self._finish, key, flight))
            try:
                return await self._wait(key, flight)
            except errors.SkerryError:
                if is_starter or self._shares_failures:
                    raise

    async def close(self) -> None:
        """Cancel everything; callers get an error."""
        self._is_closed = True
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        for task in tasks:
            await wait_for_end(task)

    async def _wait(self, key: Hashable, flight: _Flight[T]) -> T:
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            if self._is_closed and flight.task.cancelled():
                raise _stopping() from None
            raise
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                self._finish(key, flight, flight.task)  # later callers start anew
                flight.task.cancel()
                await wait_for_end(flight.task)

    def _finish(self, key: Hashable, flight: _Flight[T], task: asyncio.Task[T]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]


def _stopping() -> errors.Unavailable:
    return errors.Unavailable("this node is stopping; pull again when it is back")

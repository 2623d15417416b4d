"""Work on containers: on each one thing at a time, and every thing to its end.

A caller that goes away while it waits for its turn has changed nothing; once its work has begun, that is
finished without it. So nothing is half done because somebody hung up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from skerry.kit import tasks
from skerry.model import errors
from skerry.node.cells.locks import HeldPathLocks, PathLocks

log = structlog.get_logger(__name__)

T = TypeVar("T")


class NameLocks:
    """Turns by name."""

    def __init__(self) -> None:
        self._locks = PathLocks()
        self._work: set[asyncio.Task[Any]] = set()

    async def take(self, name: str) -> NameLock:
        """Wait until nobody works on `name`; the turn must be released, or finished."""
        return NameLock(await self._locks.hold([], name), self._work)

    async def do(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do `work` when nobody else works on `name`."""
        return await (await self.take(name)).finish(work())

    async def close(self, within_s: float) -> None:
        """Wait for what is being done; what takes longer is left half done."""
        if self._work:
            _, unfinished = await asyncio.wait(self._work, timeout=within_s)
            await tasks.cancel_and_wait(unfinished)


class NameLock:
    """The right to work on one name, alone."""

    def __init__(self, held: HeldPathLocks, work: set[asyncio.Task[Any]]) -> None:
        self._held = held
        self._work = work

    def release(self) -> None:
        self._held.release()

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` to its end, whether the caller stays or not; then the turn is over."""
        task = asyncio.create_task(work)
        self._work.add(task)

        def done(_: asyncio.Task[T]) -> None:
            self._work.discard(task)
            self._held.release()

        task.add_done_callback(done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)
            raise
        except OSError as error:
            raise errors.Unavailable(
                f"the node cannot keep the state of its containers: {error.strerror}", detail=repr(error)
            ) from error


def _log_failure(task: asyncio.Task[Any]) -> None:
    """For work whose caller is gone."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("containers.work_failed", error=str(error))

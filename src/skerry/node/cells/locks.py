"""Reader-writer locks along the path of a cell's name.

An operation in `a/b` locks `a` shared and `a/b` exclusive or shared. So freeing `a`, which locks `a`
exclusively, waits for all operations below it and keeps new ones out, while operations in sibling cells are
independent. Locks of a path are taken from the top down, so there are no deadlocks. They are granted in the
order of requests: readers cannot starve a writer.

A caller that is cancelled while it waits has changed nothing; work that has begun is finished without it
(`PathLockGuard.finish`), so a disconnect leaves nothing half done. Containers have locks of their own, always
exclusive.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any, TypeVar

import structlog

from skerry.kit import tasks
from skerry.model import errors

log = structlog.get_logger(__name__)

T = TypeVar("T")


class _Lock:
    """Many readers or one writer, in the order of requests."""

    __slots__ = ("readers", "waiting", "writing")

    def __init__(self) -> None:
        self.readers = 0
        self.writing = False
        self.waiting: deque[tuple[asyncio.Future[None], bool]] = deque()

    @property
    def is_idle(self) -> bool:
        return not (self.readers or self.writing or self.waiting)

    def _try_grant(self, exclusive: bool) -> bool:
        if self.writing or (exclusive and self.readers):
            return False
        self.writing = exclusive
        self.readers += not exclusive
        return True

    async def acquire(self, exclusive: bool) -> None:
        if not self.waiting and self._try_grant(exclusive):
            return
        waiter = asyncio.get_running_loop().create_future()
        self.waiting.append((waiter, exclusive))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release(exclusive)  # granted at the very moment of the cancellation
            else:
                self.waiting.remove((waiter, exclusive))
                self._wake()
            raise

    def release(self, exclusive: bool) -> None:
        if exclusive:
            self.writing = False
        else:
            self.readers -= 1
        self._wake()

    def _wake(self) -> None:
        while self.waiting:
            waiter, exclusive = self.waiting[0]
            if waiter.cancelled():  # it removes itself as soon as it runs
                return
            if not self._try_grant(exclusive):
                return
            self.waiting.popleft()
            waiter.set_result(None)


class PathLockGuard:
    """Acquired locks; `release` or `finish` releases them, once."""

    def __init__(self, locks: PathLocks) -> None:
        self._locks = locks
        self._acquired: list[tuple[Hashable, bool]] = []

    async def _acquire(self, key: Hashable, exclusive: bool) -> None:
        await self._locks.acquire(key, exclusive)
        self._acquired.append((key, exclusive))

    def release(self) -> None:
        while self._acquired:
            self._locks.release(*self._acquired.pop())

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` under the locks to completion, even if the caller is cancelled."""
        locks, task = self._locks, asyncio.create_task(work)
        locks.work.add(task)

        def done(_: asyncio.Task[T]) -> None:
            locks.work.discard(task)
            self.release()

        task.add_done_callback(done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._log_failure)
            raise
        except OSError as error:
            raise errors.Unavailable(
                f"the node cannot store the state of its {locks.subject}: {error.strerror}",
                detail=repr(error),
            ) from error

    def _log_failure(self, task: asyncio.Task[Any]) -> None:
        """For work whose caller is gone."""
        if not task.cancelled() and (error := task.exception()) is not None:
            event = f"{self._locks.subject}.work_failed"
            log.warning(event, error=str(error))


class PathLocks:
    """Locks by key; unused ones take no memory."""

    def __init__(self, subject: str) -> None:
        """`subject` is locked, for people: `cells`."""
        self.subject = subject
        self.work: set[asyncio.Task[Any]] = set()  # in progress
        self._locks: dict[Hashable, _Lock] = {}

    async def lock(self, shared: Sequence[Hashable], exclusive: Hashable) -> PathLockGuard:
        """Lock every key of `shared` shared, in that order, then `exclusive` exclusively."""
        guard = PathLockGuard(self)
        try:
            for key in shared:
                await guard._acquire(key, False)
            await guard._acquire(exclusive, True)
        except BaseException:
            guard.release()
            raise
        return guard

    async def run_locked(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` while holding `key` exclusively."""
        return await (await self.lock([], key)).finish(work())

    async def close(self, within_s: float) -> None:
        """Wait for work in progress, up to `within_s`; the rest is left half done."""
        if self.work:
            _, unfinished = await asyncio.wait(self.work, timeout=within_s)
            await tasks.cancel_and_wait(unfinished)

    async def acquire(self, key: Hashable, exclusive: bool) -> None:
        lock = self._locks.setdefault(key, _Lock())
        try:
            await lock.acquire(exclusive)
        finally:
            self._forget(key, lock)

    def release(self, key: Hashable, exclusive: bool) -> None:
        lock = self._locks[key]
        lock.release(exclusive)
        self._forget(key, lock)

    def _forget(self, key: Hashable, lock: _Lock) -> None:
        if lock.is_idle:
            self._locks.pop(key, None)

    def __len__(self) -> int:
        return len(self._locks)

"""Who may work where at the same time: readers and writers along the path of a cell's name.

Working in `a/b` shares `a` and holds or shares `a/b`. So freeing `a`, which holds `a`, waits for whatever
goes on anywhere below it and keeps new work out, while two sibling cells never meet. Everybody takes the
locks of a path from the top down, so nobody waits in a circle. Who came first goes first: a crowd of
readers cannot starve a writer.

A caller that goes away while it waits has changed nothing; once its work has begun, that is finished without
it (`HeldPathLocks.finish`). So nothing is half done because somebody hung up. Containers have such locks of
their own, each alone.
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
    """Many readers or one writer, first come first served."""

    __slots__ = ("readers", "waiting", "writing")

    def __init__(self) -> None:
        self.readers = 0
        self.writing = False
        self.waiting: deque[tuple[asyncio.Future[None], bool]] = deque()

    @property
    def is_idle(self) -> bool:
        return not (self.readers or self.writing or self.waiting)

    def _let_in(self, alone: bool) -> bool:
        if self.writing or (alone and self.readers):
            return False
        self.writing = alone
        self.readers += not alone
        return True

    async def acquire(self, alone: bool) -> None:
        if not self.waiting and self._let_in(alone):
            return
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append((turn, alone))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(alone)  # the turn came at the very moment of giving up
            else:
                self.waiting.remove((turn, alone))
                self._wake()
            raise

    def release(self, alone: bool) -> None:
        if alone:
            self.writing = False
        else:
            self.readers -= 1
        self._wake()

    def _wake(self) -> None:
        while self.waiting:
            turn, alone = self.waiting[0]
            if turn.cancelled():  # it removes itself as soon as it runs
                return
            if not self._let_in(alone):
                return
            self.waiting.popleft()
            turn.set_result(None)


class HeldPathLocks:
    """Locks that are held; `release` or `finish` gives them back, once."""

    def __init__(self, locks: PathLocks) -> None:
        self._locks = locks
        self._taken: list[tuple[Hashable, bool]] = []

    async def _take(self, key: Hashable, alone: bool) -> None:
        await self._locks.acquire(key, alone)
        self._taken.append((key, alone))

    def release(self) -> None:
        while self._taken:
            self._locks.release(*self._taken.pop())

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` under the locks to its end, whether the caller stays or not."""
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
                f"the node cannot keep the state of its {locks.what}: {error.strerror}", detail=repr(error)
            ) from error

    def _log_failure(self, task: asyncio.Task[Any]) -> None:
        """For work whose caller is gone."""
        if not task.cancelled() and (error := task.exception()) is not None:
            event = f"{self._locks.what}.work_failed"
            log.warning(event, error=str(error))


class PathLocks:
    """Locks by key; one that nobody holds or awaits takes no memory."""

    def __init__(self, what: str) -> None:
        """`what` is locked, for people: `cells`."""
        self.what = what
        self.work: set[asyncio.Task[Any]] = set()  # that is being finished
        self._locks: dict[Hashable, _Lock] = {}

    async def hold(self, shared: Sequence[Hashable], alone: Hashable) -> HeldPathLocks:
        """Share every key of `shared`, in that order, then hold `alone`."""
        held = HeldPathLocks(self)
        try:
            for key in shared:
                await held._take(key, False)
            await held._take(alone, True)
        except BaseException:
            held.release()
            raise
        return held

    async def do(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do `work` when nobody else holds `key`."""
        return await (await self.hold([], key)).finish(work())

    async def close(self, within_s: float) -> None:
        """Wait for what is being done; what takes longer is left half done."""
        if self.work:
            _, unfinished = await asyncio.wait(self.work, timeout=within_s)
            await tasks.cancel_and_wait(unfinished)

    async def acquire(self, key: Hashable, alone: bool) -> None:
        lock = self._locks.setdefault(key, _Lock())
        try:
            await lock.acquire(alone)
        finally:
            self._forget(key, lock)

    def release(self, key: Hashable, alone: bool) -> None:
        lock = self._locks[key]
        lock.release(alone)
        self._forget(key, lock)

    def _forget(self, key: Hashable, lock: _Lock) -> None:
        if lock.is_idle:
            self._locks.pop(key, None)

    def __len__(self) -> int:
        return len(self._locks)

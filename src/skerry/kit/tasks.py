"""Supervision of background loops, and helpers for tasks.

`TaskSupervisor` owns the loops of one part of the process. A loop that returns or raises is logged and
counted; an ordinary one is started again with back-off, a critical one takes the whole supervisor down, which
its owner sees as an exception. Nothing here knows what the loops do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar, overload

import structlog

from skerry.kit import metrics
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock, SystemClock

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")

# A loop that ran this long before it failed is taken as healthy: its back-off starts from the beginning.
_HEALTHY_AFTER_S = 60.0
_TURN_S = 0.005


class CriticalTaskEnded(RuntimeError):
    """A critical loop ended; the process must not go on without it."""


class TaskSupervisor:
    """`async with TaskSupervisor("agent") as loops: loops.forever("heartbeats", self.beat)`; leaving it stops
    every loop."""

    def __init__(self, name: str, *, backoff: Backoff | None = None, clock: Clock | None = None) -> None:
        self._name = name
        self._backoff = backoff or Backoff()
        self._clock = clock or SystemClock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] | None = None

    async def __aenter__(self) -> TaskSupervisor:
        self._failure = asyncio.get_running_loop().create_future()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def forever(self, name: str, loop: Callable[[], Awaitable[None]], *, critical: bool = False) -> None:
        """Run `loop` until the supervisor stops; it is not meant to return."""
        self._start(f"{self._name}.{name}", self._supervise(f"{self._name}.{name}", loop, critical))

    def once(self, name: str, work: Awaitable[None]) -> None:
        """Run `work` to its end in the background; a failure is logged and counted."""
        self._start(f"{self._name}.{name}", self._finish(f"{self._name}.{name}", work))

    async def failed(self) -> NoReturn:
        """Wait until a critical loop has died, and raise `CriticalTaskEnded`."""
        assert self._failure is not None, "the keeper is not entered"
        await asyncio.shield(self._failure)
        raise AssertionError("only a failure ends it")

    async def unless_failed(self, wait: Awaitable[T]) -> T:
        """The result of `wait`; `CriticalTaskEnded` if a critical loop dies before."""
        return await race(wait, self.failed())

    async def stop(self) -> None:
        """Cancel every loop and wait for each to end."""
        await cancel_and_wait(list(self._tasks))
        if self._failure is not None and not self._failure.done():
            self._failure.cancel()

    def _start(self, name: str, coroutine: Awaitable[None]) -> None:
        task = asyncio.ensure_future(coroutine)
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _supervise(self, name: str, loop: Callable[[], Awaitable[None]], critical: bool) -> None:
        failures = 0
        while True:
            started = self._clock.monotonic()
            error: BaseException | None = None
            try:
                await loop()
            except asyncio.CancelledError:
                raise
            except Exception as caught:  # noqa: BLE001 - whatever it was, it is logged, counted and answered
                error = caught
            metrics.LOOP_DEATHS.labels(name).inc()
            log.error("loop.died", loop=name, critical=critical, error=repr(error), exc_info=error)
            if critical:
                assert self._failure is not None, "the keeper is not entered"
                if not self._failure.done():
                    self._failure.set_exception(CriticalTaskEnded(f"{name} ended: {error!r}"))
                return
            if self._clock.monotonic() - started >= _HEALTHY_AFTER_S:
                failures = 0
            await asyncio.sleep(self._backoff.delay(failures))
            failures += 1

    async def _finish(self, name: str, work: Awaitable[None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:
            metrics.LOOP_DEATHS.labels(name).inc()
            log.error("task.failed", task=name, error=repr(error), exc_info=error)


async def cancel_and_wait(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel `tasks` and wait for each to end, however it does."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@overload
async def race(first: Awaitable[A], second: Awaitable[B], /) -> A | B: ...


@overload
async def race(*work: Awaitable[T]) -> T: ...


async def race(*work: Awaitable[Any]) -> Any:
    """The result of the first of `work` to end. All others are cancelled, and have ended when this returns,
    also if it is cancelled. Of those that end together the first in order counts; what must not be cancelled
    is passed in a shield."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        await cancel_and_wait(tasks)


async def run_together(*work: Awaitable[object]) -> None:
    """All of `work` to its end. If one fails the others are cancelled, and have ended when it is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel_and_wait(tasks)


async def failure_of(work: Awaitable[object]) -> NoReturn:
    """Raises what `work` raises, and never ends if it succeeds: for work beside the others of a race."""
    await work
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody ends it")


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which runs to its end also if the caller is cancelled; that is raised then."""
    task = asyncio.ensure_future(work)
    if await wait_for_end(task):
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("task.failed", error=repr(error))  # it is not raised to any caller
        raise asyncio.CancelledError
    return task.result()


async def wait_for_end(task: asyncio.Future[Any]) -> bool:
    """Wait until `task` is done, however often the caller is cancelled; True if it was. The caller checks how
    it ended."""
    was_cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            was_cancelled = True
    if not task.cancelled():
        task.exception()
    return was_cancelled


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`, which waits for a disk, in a thread.

    What it works on may be closed or removed right after, also after a cancel. Its result is lost then: it
    must not be something that has to be closed.
    """
    return await run_to_completion(asyncio.to_thread(function, *args, **kwargs))


async def map_in_turns(
    make: Callable[[A], B], items: Iterable[A], *, monotonic: Callable[[], float] = time.monotonic
) -> tuple[B, ...]:
    """`make` of each, for many of them: other tasks run every few milliseconds."""
    made: list[B] = []
    until = monotonic() + _TURN_S
    for item in items:
        made.append(make(item))
        if monotonic() >= until:
            await asyncio.sleep(0)
            until = monotonic() + _TURN_S
    return tuple(made)

"""Group commit: steps that come while the disk is busy wait together, and one sync makes all of them durable.

A `GroupCommitter` has the thread that owns a file. Its owner prepares how a group of steps is written
(`prepare`), and gets the outcome. If the write fails, every step of the group fails with `Unavailable`; if
the disk is full, it is first tried again with the disk's reserve (`skerry.kit.disk_reserve`). What the file
is, and what steps are, is its owner's: `skerry.store.sqlite.store` and `skerry.store.sqlite.calls`.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import structlog

from skerry.store.sqlite import database

log = structlog.get_logger(__name__)


class _Closable(Protocol):
    def close(self) -> None: ...


F = TypeVar("F", bound=_Closable)
S = TypeVar("S")
T = TypeVar("T")

Report = Callable[[Exception | None], None]


class StepGroup(NamedTuple, Generic[F]):
    """Steps that are written together."""

    answers: list[Any]  # one for each step, or its error; complete once it is written
    write: Callable[[F], object] | None  # on the thread that owns the file; None: nothing to write
    finish: Report = lambda failure: None  # on the loop, once it is durable or has failed


class _QueuedStep(NamedTuple, Generic[S]):
    """A step and its waiter."""

    step: S
    answer: asyncio.Future[Any]


class GroupCommitter(Generic[F, S]):
    """`await start(...)`, then `submit`; `stop` last. `name` is in the logs, and the name of the thread."""

    def __init__(self, name: str, path: Path, open_file: Callable[[], F]) -> None:
        self.path = path
        self.prepare: Callable[[Sequence[S]], StepGroup[F]]  # to be set before the first step
        self.is_busy = False  # a group is being written, or is about to be
        self._name = name
        self._failed = f"{name}.commit_failed"
        self._open_file = open_file
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_QueuedStep[S]] = []
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._orders: queue.SimpleQueue[tuple[Callable[[F], object], Report] | None] = queue.SimpleQueue()
        self._opened: asyncio.Future[Any] = self._loop.create_future()
        self._stopped = asyncio.Event()

    async def start(self, load: Callable[[F], T]) -> T:
        """Open the file; what `load` reads of it."""
        # A daemon, so that a program that ends without closing its file does end.
        self._thread = threading.Thread(
            target=self._run, args=(load,), name=f"{self._name} {self.path.name}", daemon=True
        )
        self._thread.start()
        try:
            contents: T = await asyncio.shield(self._opened)
        except BaseException:
            await self.stop()
            raise
        return contents

    async def stop(self) -> None:
        """Finish what was submitted, close the file and end the thread."""
        await self._at_rest.wait()
        self._orders.put(None)
        await self._stopped.wait()
        self._thread.join()
        if self._opened.done() and not self._opened.cancelled():
            self._opened.exception()  # seen by `start`, unless that was cancelled

    async def submit(self, step: S) -> Any:
        """The answer to the step, which is durable."""
        waiting = _QueuedStep(step, self._loop.create_future())
        self._waiting.append(waiting)
        if not self.is_busy:
            self._schedule()
        return await waiting.answer

    async def attempt(self, write: Callable[[F], object]) -> Exception | None:
        """Write something apart from all groups, while none is under way, and without the disk's reserve;
        what went wrong, if anything did."""
        attempted: asyncio.Future[Exception | None] = self._loop.create_future()

        def written(failure: Exception | None) -> None:
            if not attempted.done():
                attempted.set_result(failure)
            self._go_on()

        self.is_busy = True
        self._at_rest.clear()
        self._orders.put((write, written))
        return await attempted

    def _schedule(self) -> None:
        # Not at once: tasks that are ready to run now may have something for the same group.
        self.is_busy = True
        self._at_rest.clear()
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Hand everything that waits to the thread."""
        waiting, self._waiting = self._waiting, []
        group = self.prepare([one.step for one in waiting])

        def written(failure: Exception | None) -> None:
            group.finish(failure)
            self._answer(waiting, group.answers, failure)

        if group.write is None:
            written(None)
        else:
            self._orders.put((group.write, written))

    def _answer(
        self, waiting: list[_QueuedStep[S]], answers: Sequence[Any], failure: Exception | None
    ) -> None:
        """The group is durable, or it failed: resolve all waiters, then start the next one."""
        if failure is not None:
            log.error(self._failed, path=str(self.path), error=repr(failure))
            if database.can_retry(failure):
                self._waiting = [*waiting, *self._waiting]
                self._schedule()
                return
            answers = [database.refused_by_disk(self.path, failure) for _ in waiting]
        for one, answer in zip(waiting, answers, strict=True):
            if one.answer.done():
                continue  # the waiter was cancelled
            if isinstance(answer, Exception):
                one.answer.set_exception(answer)
            else:
                one.answer.set_result(answer)
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            self._schedule()  # after those just answered have run, so what they bring comes along
        else:
            self.is_busy = False
            self._at_rest.set()

    def _run(self, load: Callable[[F], object]) -> None:
        """The thread that owns the file. Takes one group at a time and reports back on the event loop."""
        file: F | None = None
        try:
            file = self._open_file()
            self._report(self._opened.set_result, load(file))
            while (order := self._orders.get()) is not None:
                write, written = order
                failure: Exception | None = None
                try:
                    write(file)
                except Exception as error:  # noqa: BLE001 - raised again where the group's callers wait
                    failure = error
                if not self._report(written, failure):
                    return
        except Exception as error:  # noqa: BLE001 - raised again where `start` waits
            self._report(self._fail_opening, error)
        finally:
            if file is not None:
                file.close()
            self._report(self._stopped.set)

    def _fail_opening(self, error: Exception) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)

    def _report(self, callback: Callable[..., None], *values: Any) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback, *values)
        except RuntimeError:  # the loop was closed: there are no waiters any more
            return False
        return True

"""Async calls on disk: every change that returned is durable, and changes that come together share a commit.

Steps that arrive while a commit is on its way to the disk wait together and become the next transaction, so
that a thousand calls accepted at once cost a few syncs and not a thousand. `skerry.store.sqlite.call_rows`
knows the file; this module knows the loop and the threads; what bodies mean is the business of
`skerry.functions`.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import structlog

from skerry.model import errors
from skerry.model.calls import CallState
from skerry.store.sqlite import database
from skerry.store.sqlite.call_rows import (
    SWEEP,
    CallReader,
    CallRow,
    CallRows,
    CopyAttempt,
    UncopiedResult,
    UnfinishedCall,
)

log = structlog.get_logger(__name__)

T = TypeVar("T")


class _QueuedCallWrite(NamedTuple):
    """A step and who waits for it."""

    step: Callable[[CallRows], Any]
    answer: asyncio.Future[Any]


class CallStore:
    """`store, pending = await CallStore.open(path, keep_bytes)`; `close` last."""

    def __init__(self, path: Path, keep_bytes: int) -> None:
        self._path = path
        self._keep_bytes = keep_bytes
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_QueuedCallWrite] = []
        self._is_busy = False  # a group is being written, or is about to be
        self._is_closed = False
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._orders: queue.SimpleQueue[list[_QueuedCallWrite] | None] = queue.SimpleQueue()
        self._opened: asyncio.Future[list[UnfinishedCall]] = self._loop.create_future()
        self._stopped = asyncio.Event()
        # A daemon, so that a program that ends without closing its store does end.
        self._thread = threading.Thread(target=self._work, name=f"calls {path.name}", daemon=True)
        self._reader: CallReader | None = None
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="calls reader")

    @classmethod
    async def open(cls, path: Path, keep_bytes: int) -> tuple[CallStore, list[UnfinishedCall]]:
        """The store, and the calls in it that have not ended, in the order of their acceptance.

        Raises `FailedPrecondition` if the file is damaged or newer than this program.
        """
        store = cls(path, keep_bytes)
        store._thread.start()
        try:
            pending = await asyncio.shield(store._opened)
            store._reader = CallReader(path)
        except BaseException:
            await store.close()
            raise
        return store, pending

    async def accept(self, id: str, line: str, at: float, body: bytes) -> None:
        """A new call, which waits behind others of its line."""
        await self._submit(lambda rows: rows.accept(id, line, at, body))

    async def start(self, id: str) -> bytes:
        """A waiting call runs from now on; what was asked."""
        return await self._submit(lambda rows: rows.start(id))

    async def put_back(self, id: str) -> None:
        """A running call waits again."""
        await self._submit(lambda rows: rows.put_back(id))

    async def finish(self, id: str, state: CallState, at: float, body: bytes) -> None:
        """A call has ended, as DONE or FAILED; the oldest that have may have to go for it."""
        await self._submit(lambda rows: rows.finish(id, state, at, body))

    async def keep_copy(self, id: str, state: CallState, at: float, body: bytes, holder: str) -> None:
        """Of a call that ended elsewhere, as DONE or FAILED, where `holder` has it."""
        await self._submit(lambda rows: rows.keep_copy(id, state, at, body, holder))

    async def uncopied(self, now: float, most: int) -> list[UncopiedResult]:
        """Results that nobody else has, and that are to be copied now."""
        return await self._look(lambda reader: reader.uncopied(now, most))

    async def holders(self) -> dict[str, str]:
        """Who has copies of results, each with the id of one of them."""
        return await self._look(lambda reader: reader.holders())

    async def note_copies(self, attempts: Sequence[CopyAttempt]) -> None:
        """What came of attempts to copy results."""
        await self._submit(lambda rows: rows.note_copies(attempts))

    async def release(self, holder: str) -> int:
        """All results that `holder` had are to be copied again; how many."""
        released = 0
        while count := await self._submit(lambda rows: rows.release(holder)):
            released += count
        return released

    async def retry_copies(self) -> None:
        """Results whose copying failed need not wait any longer."""
        await self._submit(lambda rows: rows.retry_copies())

    async def sweep(self, now: float, ttl_s: float) -> None:
        """Drop results that are older than `ttl_s`, and after as long again what is known of them."""
        while await self._submit(lambda rows: rows.sweep(now, ttl_s)) >= SWEEP:
            pass

    async def read(self, id: str) -> CallRow | None:
        """The call as it is on disk; None if there is none, or none any more."""
        return await self._look(lambda reader: reader.read(id))

    async def close(self) -> None:
        """Finish what was submitted and let go. Later calls raise `Unavailable`."""
        self._is_closed = True
        await self._at_rest.wait()
        self._orders.put(None)
        await self._stopped.wait()
        self._thread.join()
        if self._opened.done() and not self._opened.cancelled():
            self._opened.exception()  # seen by `open`, unless that was cancelled
        self._readers.shutdown()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    async def _look(self, question: Callable[[CallReader], T]) -> T:
        if self._is_closed or self._reader is None:
            raise _closed()
        return await self._loop.run_in_executor(self._readers, question, self._reader)

    async def _submit(self, step: Callable[[CallRows], T]) -> T:
        if self._is_closed:
            raise _closed()
        waiting = _QueuedCallWrite(step, self._loop.create_future())
        self._waiting.append(waiting)
        if not self._is_busy:
            self._schedule()
        answer: T = await waiting.answer
        return answer

    def _schedule(self) -> None:
        # Not at once: tasks that are ready to run now may have something for the same group.
        self._is_busy = True
        self._at_rest.clear()
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        group, self._waiting = self._waiting, []
        self._orders.put(group)

    def _answer(self, group: list[_QueuedCallWrite], results: list[Any], failure: Exception | None) -> None:
        """The group is durable, or it failed and never was: tell everybody, then let the next one go."""
        if failure is not None:
            log.error("calls.commit_failed", path=str(self._path), error=repr(failure))
            if database.can_retry(failure):
                self._waiting = [*group, *self._waiting]
                self._schedule()
                return
            for waiting in group:
                if not waiting.answer.done():
                    waiting.answer.set_exception(database.refused_by_disk(self._path, failure))
        else:
            for waiting, result in zip(group, results, strict=True):
                if not waiting.answer.done():  # or whoever waited was cancelled
                    waiting.answer.set_result(result)
        if self._waiting:
            self._schedule()
        else:
            self._is_busy = False
            self._at_rest.set()

    def _work(self) -> None:
        """The thread that owns the file."""
        try:
            rows = CallRows(self._path, self._keep_bytes)
        except Exception as error:  # noqa: BLE001 - raised again where `open` waits
            self._report(self._fail_opening, error)
            self._report(self._stopped.set)
            return
        try:
            self._report(self._opened.set_result, rows.pending)
            while (group := self._orders.get()) is not None:
                results: list[Any] = []
                failure: Exception | None = None
                try:
                    results = rows.write([waiting.step for waiting in group])
                except Exception as error:  # noqa: BLE001 - raised again where the group's callers wait
                    failure = error
                if not self._report(self._answer, group, results, failure):
                    return
        finally:
            rows.close()
            self._report(self._stopped.set)

    def _fail_opening(self, error: Exception) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)

    def _report(self, callback: Callable[..., None], *values: Any) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback, *values)
        except RuntimeError:  # the loop was closed under us: nobody is left to tell
            return False
        return True


def _closed() -> errors.Unavailable:
    return errors.Unavailable("async calls are not taken any more: this node is stopping; ask another")

"""Async calls on disk: every change that returned is durable, and changes that come together share a commit.

A thousand calls accepted at once cost a few syncs and not a thousand (`skerry.store.sqlite.group_commit`).
`skerry.store.sqlite.call_rows` knows the file; what bodies mean is the business of `skerry.functions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from skerry.model import errors
from skerry.model.calls import CallState
from skerry.store.sqlite.call_rows import (
    SWEEP,
    CallReader,
    CallRow,
    CallRows,
    CopyAttempt,
    UncopiedResult,
    UnfinishedCall,
)
from skerry.store.sqlite.group_commit import GroupCommitter, StepGroup

T = TypeVar("T")
CallStep = Callable[[CallRows], Any]


class CallStore:
    """`store, pending = await CallStore.open(path, keep_bytes)`; `close` last."""

    def __init__(self, path: Path, keep_bytes: int) -> None:
        self._committer: GroupCommitter[CallRows, CallStep] = GroupCommitter(
            "calls", path, lambda: CallRows(path, keep_bytes)
        )
        self._committer.prepare = _prepare
        self._is_closed = False
        self._reader: CallReader | None = None
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="calls reader")

    @classmethod
    async def open(cls, path: Path, keep_bytes: int) -> tuple[CallStore, list[UnfinishedCall]]:
        """The store, and the calls in it that have not ended, in the order of their acceptance.

        Raises `FailedPrecondition` if the file is damaged or newer than this program.
        """
        store = cls(path, keep_bytes)
        pending = await store._committer.start(lambda rows: rows.pending)
        try:
            store._reader = CallReader(path)
        except BaseException:
            await store.close()
            raise
        return store, pending

    async def accept(self, id: str, line: str, at: float, body: bytes) -> None:
        """A new call, which waits behind others of its line."""
        await self._submit(lambda rows: rows.accept(id, line, at, body))

    async def start(self, id: str) -> bytes:
        """A waiting call runs from now on; returns its request."""
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
        """Results without a copy that are to be copied now."""
        return await self._read_row(lambda reader: reader.uncopied(now, most))

    async def holders(self) -> dict[str, str]:
        """Who has copies of results, each with the id of one of them."""
        return await self._read_row(lambda reader: reader.holders())

    async def note_copies(self, attempts: Sequence[CopyAttempt]) -> None:
        """Record attempts to copy results."""
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
        """The stored call; None if there is none."""
        return await self._read_row(lambda reader: reader.read(id))

    async def close(self) -> None:
        """Finish submitted steps and close. Later calls raise `Unavailable`."""
        self._is_closed = True
        await self._committer.stop()
        self._readers.shutdown()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    async def _read_row(self, question: Callable[[CallReader], T]) -> T:
        if self._is_closed or self._reader is None:
            raise _closed()
        return await asyncio.get_running_loop().run_in_executor(self._readers, question, self._reader)

    async def _submit(self, step: Callable[[CallRows], T]) -> T:
        if self._is_closed:
            raise _closed()
        answer: T = await self._committer.submit(step)
        return answer


def _prepare(steps: Sequence[CallStep]) -> StepGroup[CallRows]:
    answers: list[Any] = []
    return StepGroup(answers, lambda rows: answers.extend(rows.write(steps)))


def _closed() -> errors.Unavailable:
    return errors.Unavailable("async calls are not taken any more: this node is stopping; use another")

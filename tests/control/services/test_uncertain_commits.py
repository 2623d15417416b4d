"""Transactions of the leader's loop of which nobody knows whether they were written: each counts once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.sim.cluster.faulty_store import FaultyWatch
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Batch, Expect, Op
from tests.control.services.test_controller import ServiceServer, create, fleet

RECORD = "service/default/web"


class UncertainStore:
    """Fails the first transaction about the service, which happens all the same: at once, or only when the
    next one has been sent. Until then nobody hears of it."""

    def __init__(self, store: MemoryStore, *, is_late: bool) -> None:
        self._store = store
        self._is_late = is_late
        self._late: tuple[Sequence[Op], Sequence[Expect]] | None = None
        self._sent = 0
        self._is_heard = asyncio.Event()
        self._is_heard.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        if not {RECORD, "leader"} <= {one.key for one in expect}:
            return await self._store.commit(ops, expect)
        self._sent += 1
        if self._sent == 1:
            self._is_heard.clear()
            if self._is_late:
                self._late = ops, expect
            else:
                await self._store.commit(ops, expect)
            raise errors.Unavailable("the store cannot be reached; the transaction may have happened")
        try:
            return await self._store.commit(ops, expect)
        finally:
            if self._late is not None:
                late, self._late = self._late, None
                try:
                    await self._store.commit(*late)
                except errors.Conflict:
                    pass
            self._is_heard.set()

    @asynccontextmanager
    async def watch(self, prefix: str, *, since: int) -> AsyncIterator[FaultyWatch]:
        async def heard(batch: Batch) -> None:
            await self._is_heard.wait()

        async with self._store.watch(prefix, since=since) as watch:
            yield FaultyWatch(watch, since, heard)


async def _most_copies(*, is_late: bool) -> int:
    """How many copies of a service of three there ever were."""
    store = MemoryStore(SystemClock())
    seen: set[str] = set()
    try:
        uncertain: Any = UncertainStore(store, is_late=is_late)
        async with ServiceServer(uncertain, fleet()).serving() as one:
            one.instance_table.listen(lambda before, after: seen.update([after.value.id] if after else []))
            await create(one)
            await one.is_well(1, 3)
            return len(seen)
    finally:
        await store.close()


async def test_copies_whose_creation_was_not_confirmed_are_not_created_again() -> None:
    assert await _most_copies(is_late=False) == 3


async def test_a_transaction_that_arrives_after_it_was_given_up_creates_nothing() -> None:
    assert await _most_copies(is_late=True) == 3

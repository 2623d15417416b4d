"""One server's connection to the store, which all servers share: it may be slow, fail, or be cut.

A `Store` in front of another. A transaction that fails may have been written, or may be written later, and so
may one that was in flight when its server was killed: that is what a real network does, and what fences and
expectations are for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from skerry.control.instance_index import PREFIX as INSTANCES
from skerry.model import errors
from skerry.sim.cluster.fault_schedule import FaultSchedule
from skerry.store.protocol import Batch, Entry, Expect, LeaseId, Op, RangePage, Store, Watch


class FaultyWatch:
    """A watch of a store that is far away: `received` is awaited with each batch on its way."""

    def __init__(self, watch: Watch, since: int, received: Callable[[Batch], Awaitable[None]]) -> None:
        self.position = since
        self._watch = watch
        self._received = received

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        batch = await anext(aiter(self._watch))
        await self._received(batch)
        self.position = batch.revision
        return batch


class FaultyStore:
    """`cut` is called when the server is killed.

    `sent` is called with every transaction that is sent, and with the revision up to which the server then
    knew the instances.
    """

    def __init__(
        self,
        store: Store,
        faults: FaultSchedule,
        sent: Callable[[Sequence[Op], int], None] = lambda ops, known: None,
    ) -> None:
        self._store = store
        self.faults = faults
        self._sent = sent
        self._known = 0
        self._is_cut = False
        self._late_writes: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """From now on nothing arrives but what was in flight."""
        self._is_cut = True

    async def get(self, key: str) -> Entry | None:
        await self._travel()
        return await self._store.get(key)

    async def range(self, prefix: str, *, limit: int = 0, cursor: str | None = None) -> RangePage:
        await self._travel()
        page = await self._store.range(prefix, limit=limit, cursor=cursor)
        if prefix == INSTANCES:
            self._known = page.revision
        return page

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        ops, expect = tuple(ops), tuple(expect)
        self._sent(ops, self._known)
        try:
            await self._travel()
        except asyncio.CancelledError:
            self._apply_late(ops, expect)
            raise
        except errors.Unavailable:
            if not self._is_cut:
                self._apply_late(ops, expect)
            raise
        revision = await self._store.commit(ops, expect)
        await self._return()
        return revision

    @asynccontextmanager
    async def _watch(self, prefix: str, since: int) -> AsyncIterator[FaultyWatch]:
        await self._travel()

        async def received(batch: Batch) -> None:
            await self._travel()
            if prefix == INSTANCES:
                self._known = batch.revision

        async with self._store.watch(prefix, since=since) as watch:
            yield FaultyWatch(watch, since, received)

    def watch(self, prefix: str, *, since: int) -> AbstractAsyncContextManager[Watch]:
        return self._watch(prefix, since)

    async def grant_lease(self, ttl_s: int) -> LeaseId:
        await self._travel()
        return await self._store.grant_lease(ttl_s)

    async def renew_lease(self, lease: LeaseId) -> None:
        await self._travel()
        await self._store.renew_lease(lease)

    async def revoke_lease(self, lease: LeaseId) -> None:
        await self._travel()
        await self._store.revoke_lease(lease)

    async def compact(self, before: int) -> None:
        await self._travel()
        await self._store.compact(before)

    async def revision(self) -> int:
        await self._travel()
        return await self._store.revision()

    async def check_writes(self) -> None:
        await self._travel()
        await self._store.check_writes()

    async def arrived(self) -> None:
        """Wait for transactions in flight whose sender does not wait any more."""
        await asyncio.gather(*self._late_writes)

    async def close(self) -> None:
        """Disconnect; the store stays open for others."""
        self._is_cut = True
        await self.arrived()

    async def _travel(self) -> None:
        self._require_life()
        if delay_s := self.faults.delay(self.faults.store_delay_s):
            await asyncio.sleep(delay_s)
            self._require_life()
        if self.faults.happens(self.faults.store_errors / 2):
            raise errors.Unavailable("the store cannot be reached")

    def _require_life(self) -> None:
        if self._is_cut:
            raise errors.Unavailable("this server is dead")

    async def _return(self) -> None:
        if delay_s := self.faults.delay(self.faults.store_delay_s):
            await asyncio.sleep(delay_s)
        if self.faults.happens(self.faults.store_errors / 2):
            raise errors.Unavailable("the store cannot be reached; the transaction may have happened")

    def _apply_late(self, ops: Sequence[Op], expect: Sequence[Expect]) -> None:
        """The sender does not wait any more; half of such transactions arrive late."""
        if not self.faults.happens(0.5):
            return

        async def arrive() -> None:
            await asyncio.sleep(self.faults.delay(20.0))
            with suppress(errors.SkerryError):
                await self._store.commit(ops, expect)

        task = asyncio.ensure_future(arrive())
        self._late_writes.add(task)
        task.add_done_callback(self._late_writes.discard)

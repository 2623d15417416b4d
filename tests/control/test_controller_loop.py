"""The loop of a controller when reconciling a record fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from skerry.control.controller_loop import ControllerLoop
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.store.fencing import LeadershipLost
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Put
from skerry.store.tables.table import Table, json_of
from tests.support.waiting import eventually


class Reconciler:
    """Counts its calls, and raises the failures it was given, one per call."""

    def __init__(self, **failures: list[Exception]) -> None:
        self.calls: Counter[str] = Counter()
        self._failures = failures

    async def reconcile(self, key: str) -> None:
        self.calls[key] += 1
        if self._failures.get(key):
            raise self._failures[key].pop(0)


class FailingTable(Table[int]):
    """A table that fails to synchronize, once per entry of `failures`."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, "number/", json_of(int))
        self.failures: list[Exception] = []

    async def sync(self) -> None:
        if self.failures:
            raise self.failures.pop()
        await super().sync()


@asynccontextmanager
async def running(
    reconciler: Reconciler, keys: list[str], *sync_failures: Exception
) -> AsyncIterator[tuple[ControllerLoop, FailingTable, asyncio.Task[None]]]:
    store = MemoryStore(SystemClock())
    if keys:
        await store.commit([Put(f"number/{key}", b"1") for key in keys])
    table = FailingTable(store)
    following = asyncio.ensure_future(table.run())
    await table.ready()
    table.failures += sync_failures
    loop = ControllerLoop("test", SystemClock(), table)
    task = asyncio.ensure_future(loop.run_each(reconciler.reconcile))
    try:
        yield loop, table, task
    finally:
        await cancel_and_wait([task, following])
        await store.close()


async def test_a_record_that_nothing_can_be_done_with_does_not_stop_the_others() -> None:
    reconciler = Reconciler(bad=[errors.Invalid("there is no such time zone")])
    async with running(reconciler, ["bad", "good"]) as (loop, _, task):
        await eventually(lambda: reconciler.calls == {"bad": 1, "good": 1})
        loop.add("good")
        loop.add("bad")
        await eventually(lambda: reconciler.calls == {"bad": 2, "good": 2})
        assert not task.done()


async def test_a_store_that_cannot_be_reached_after_a_conflict_is_waited_for() -> None:
    reconciler = Reconciler(one=[errors.Conflict("it has changed")])
    unreachable = errors.Unavailable("the store cannot be reached")
    async with running(reconciler, ["one"], unreachable) as (_, _, task):
        await eventually(lambda: reconciler.calls["one"] == 2)
        assert not task.done()


async def test_a_record_is_reconciled_when_it_changes() -> None:
    reconciler = Reconciler()
    async with running(reconciler, ["one"]) as (_, table, _):
        await eventually(lambda: reconciler.calls == {"one": 1})
        await table.commit([table.put("one", 2), table.put("two", 2)])
        await eventually(lambda: reconciler.calls == {"one": 2, "two": 1})


async def test_whoever_does_not_lead_any_more_ends() -> None:
    async with running(Reconciler(one=[LeadershipLost("another leads")]), ["one"]) as (_, _, task):
        with pytest.raises(LeadershipLost):
            await task

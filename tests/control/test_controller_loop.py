"""The loop of a controller when looking at a record fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from skerry.control.controller_loop import ControllerLoop
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.store.fencing import LeadershipLost
from tests.support.waiting import eventually


class Reconciler:
    """Counts what it is called with, and raises what it was told to, once per entry."""

    def __init__(self, **failures: list[Exception]) -> None:
        self.calls: Counter[str] = Counter()
        self._failures = failures

    async def reconcile(self, key: str) -> None:
        self.calls[key] += 1
        if self._failures.get(key):
            raise self._failures[key].pop(0)


async def nothing() -> None:
    """For a table that is up to date."""


@asynccontextmanager
async def running(
    reconciler: Reconciler, keys: list[str], refresh: Callable[[], Awaitable[None]] = nothing
) -> AsyncIterator[tuple[ControllerLoop, asyncio.Task[None]]]:
    loop = ControllerLoop("test", SystemClock())
    task = asyncio.ensure_future(loop.run(keys, reconciler.reconcile, refresh))
    try:
        yield loop, task
    finally:
        await cancel_and_wait([task])


async def test_a_record_that_nothing_can_be_done_with_does_not_stop_the_others() -> None:
    reconciler = Reconciler(bad=[errors.Invalid("there is no such time zone")])
    async with running(reconciler, ["bad", "good"]) as (loop, task):
        await eventually(lambda: reconciler.calls == {"bad": 1, "good": 1})
        loop.add("good")
        loop.add("bad")
        await eventually(lambda: reconciler.calls == {"bad": 2, "good": 2})
        assert not task.done()


async def test_a_store_that_cannot_be_reached_after_a_conflict_is_waited_for() -> None:
    reconciler = Reconciler(one=[errors.Conflict("it has changed")])
    unreachable = [errors.Unavailable("the store cannot be reached")]

    async def refresh() -> None:
        if unreachable:
            raise unreachable.pop()

    async with running(reconciler, ["one"], refresh) as (_, task):
        await eventually(lambda: reconciler.calls["one"] == 2)
        assert not task.done()


async def test_whoever_does_not_lead_any_more_ends() -> None:
    async with running(Reconciler(one=[LeadershipLost("another leads")]), ["one"]) as (_, task):
        with pytest.raises(LeadershipLost):
            await task

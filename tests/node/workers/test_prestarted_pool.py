"""The pool of prestarted workers: who gets which, how many are ready, how many are created at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from skerry.model import errors
from skerry.model.functions import CUSTOM, Function
from skerry.model.ids import CellName, Digest, FunctionName
from skerry.model.resources import Megabytes
from skerry.node.workers import prestarted_pool
from skerry.node.workers.node_workers import NodeWorkers
from skerry.node.workers.prestarted import PrestartedWorker
from skerry.node.workers.prestarted_pool import DemandEstimate, PoolLimits, PrestartedPool
from tests.support.waiting import eventually


class FakeFactory:
    """Creates workers of nothing, each when `allow` says so; `dead` ones have died."""

    def __init__(self) -> None:
        self.created: list[PrestartedWorker] = []
        self.closed: list[PrestartedWorker] = []
        self.dead: set[str] = set()
        self.in_progress = 0
        self.most_in_progress = 0
        self.failure: Exception | None = None
        self._allowed = asyncio.Semaphore(0)

    def allow(self, count: int) -> None:
        for _ in range(count):
            self._allowed.release()

    async def make(self) -> PrestartedWorker:
        self.in_progress += 1
        self.most_in_progress = max(self.most_in_progress, self.in_progress)
        try:
            await self._allowed.acquire()
            if self.failure is not None:
                raise self.failure
        finally:
            self.in_progress -= 1
        worker = PrestartedWorker(str(len(self.created)), CellName(f"@functions/w{len(self.created)}"))
        self.created.append(worker)
        return worker

    def is_alive(self, worker: PrestartedWorker) -> bool:
        return worker.id not in self.dead

    async def close(self, worker: PrestartedWorker) -> None:
        self.closed.append(worker)


def pool_of(factory: FakeFactory, limits: PoolLimits) -> PrestartedPool:
    return PrestartedPool(factory, factory.make, limits)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def running(pool: PrestartedPool) -> AsyncIterator[None]:
    task = asyncio.create_task(pool.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pool.close()


async def test_a_pool_is_empty_until_a_function_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prestarted_pool, "_CHECK_S", 0.001)
    factory = FakeFactory()
    factory.allow(100)
    pool = pool_of(factory, PoolLimits(at_rest=3, most=3, at_once=1))
    async with running(pool):
        for _ in range(20):  # it has looked several times
            await asyncio.sleep(0.001)
        assert factory.created == []
        pool.announce()
        await eventually(lambda: len(factory.created) == 3)


async def test_callers_are_served_in_their_order_and_only_some_are_created_at_a_time() -> None:
    factory = FakeFactory()
    pool = pool_of(factory, PoolLimits(at_rest=0, most=0, at_once=3))
    callers = [asyncio.create_task(pool.take()) for _ in range(10)]
    await eventually(lambda: factory.in_progress == 3)
    factory.allow(1)
    await asyncio.wait(callers, return_when=asyncio.FIRST_COMPLETED)
    assert [caller.done() for caller in callers] == [True] + [False] * 9
    factory.allow(9)
    assert [worker.id for worker in await asyncio.gather(*callers)] == [str(each) for each in range(10)]
    assert factory.most_in_progress == 3
    await pool.close()
    assert factory.closed == []


async def test_a_creation_that_fails_ends_one_wait_and_the_others_go_on() -> None:
    factory = FakeFactory()
    pool = pool_of(factory, PoolLimits(at_rest=0, most=0, at_once=1))
    first, second = (asyncio.create_task(pool.take()) for _ in range(2))
    factory.failure = errors.Internal("the machine fails")
    factory.allow(1)
    with pytest.raises(errors.Internal):
        await first
    factory.failure = None
    factory.allow(1)
    assert (await second).id == "0"
    await pool.close()


async def test_a_creation_that_nobody_waits_for_any_more_is_undone() -> None:
    factory = FakeFactory()
    pool = pool_of(factory, PoolLimits(at_rest=0, most=0, at_once=2))
    gone, stays = (asyncio.create_task(pool.take()) for _ in range(2))
    await eventually(lambda: factory.in_progress == 2)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert factory.in_progress == 1
    factory.allow(1)
    await stays
    await pool.close()
    assert len(factory.created) == 1


async def test_a_dead_one_is_removed_and_the_next_is_handed_out() -> None:
    factory = FakeFactory()
    pool = pool_of(factory, PoolLimits(at_rest=2, most=2, at_once=1))
    pool.announce()
    async with running(pool):
        factory.allow(2)
        await eventually(lambda: len(factory.created) == 2)
        factory.dead.add("0")
        assert (await pool.take()).id == "1"
        assert [worker.id for worker in factory.closed] == ["0"]


async def test_after_many_takes_more_are_kept_ready_but_not_more_than_the_most() -> None:
    factory = FakeFactory()
    pool = pool_of(factory, PoolLimits(at_rest=1, most=4, at_once=4))
    pool.announce()
    async with running(pool):
        factory.allow(1000)
        for _ in range(50):
            await pool.take()
        await eventually(lambda: len(factory.created) > 51)
    assert 51 < len(factory.created) <= 54
    assert len(factory.closed) == len(factory.created) - 50


def test_the_demand_is_forgotten_within_seconds() -> None:
    limits = PoolLimits(at_rest=3, most=12, at_once=4)
    demand = DemandEstimate()
    assert demand.target(limits, 0.0) == 3
    for number in range(100):
        demand.record(number / 100)
    assert demand.target(limits, 1.0) == 12
    assert demand.target(limits, 10.0) == 3


class Processes:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.expected = 0

    def expect_calls(self, functions: int) -> None:
        self.expected = functions


IN_AN_IMAGE = Function(FunctionName("f"), CUSTOM, Megabytes(32), 0.0, image="example.org/f:1")
IN_A_PROCESS = Function(
    FunctionName("f"),
    "python310",
    Megabytes(32),
    0.0,
    handler="main.handler",
    code=Digest("sha256:" + "0" * 64),
)


def test_functions_in_processes_have_workers_prestarted_and_those_in_images_do_not() -> None:
    processes = Processes()
    workers = NodeWorkers(cast(Any, processes), None)
    workers.functions_known([])
    workers.functions_known([("e", None), ("f", IN_AN_IMAGE)])
    assert processes.expected == 0
    workers.functions_known([("f", IN_A_PROCESS), ("g", IN_A_PROCESS)])
    workers.functions_known([("f", IN_A_PROCESS)])
    assert processes.expected == 2
    workers.functions_known([("f", IN_AN_IMAGE), ("g", None)])
    assert processes.expected == 0

"""A call that must be written down before it runs: when that is asked for, and what if it cannot be done."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.kit.tasks import cancel_and_wait
from skerry.model.calls import CallReport, CallRequest, CallState
from skerry.model.ids import FunctionName
from tests.functions.asynchronous.callers import (
    Begins,
    Crowded,
    Echo,
    as_after_a_kill,
    ask,
    asynchronous,
    ended,
)
from tests.support.simulated import passes
from tests.support.waiting import eventually
from tests.support.workers import Site, function, in_simulated_time

F = FunctionName("f")


def begin(site: Site, begins: Begins) -> asyncio.Task[CallReport]:
    return asyncio.ensure_future(site.invoker.invoke(CallRequest(F), begins=begins))


@in_simulated_time
async def test_a_call_begins_when_it_has_a_worker_and_not_while_it_waits_for_one() -> None:
    async with Site(function("f", memory=1024)) as site:
        site.host.run_s = 5.0
        first = site.begin("f")
        await passes(1)
        begun: list[int] = []

        async def begins() -> None:
            begun.append(site.host.spawned[0].calls)

        second = begin(site, begins)
        await passes(1)
        assert begun == []
        await first
        assert (await second).answer.failure is None
        assert begun == [1], "it was handed over before"
        assert site.host.spawned[0].calls == 2


@in_simulated_time
async def test_a_call_that_cannot_begin_is_not_run_and_its_worker_serves_the_next() -> None:
    async with Site(function("f", memory=1024)) as site:

        async def fails() -> None:
            raise OSError("disk full")

        async def never_ends() -> None:
            await passes(3600)

        with pytest.raises(OSError, match="disk full"):
            await begin(site, fails)
        leaving = begin(site, never_ends)
        await passes(1)
        await cancel_and_wait([leaving])
        assert [worker.calls for worker in site.host.spawned] == [0]
        assert (await site.call("f")).is_warm


@in_simulated_time
async def test_a_function_that_is_updated_while_a_call_begins_runs_its_new_code_once() -> None:
    async with Site(function("f", memory=512)) as site:
        times = 0

        async def begins() -> None:
            nonlocal times
            times += 1
            await passes(1)
            new = site.registry.add(function("f", memory=512, version=2))
            await site.invoker.updated(new)
            site.host.oldest[F] = 2

        assert (await begin(site, begins)).answer.output.endswith("v2")
        assert times == 1


async def test_calls_that_wait_for_a_worker_are_queued_and_run_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    crowded = Crowded()
    async with asynchronous(tmp_path / "first", crowded, within_s=60) as calls:
        ids = [await calls.accept(ask(b"%d" % number)) for number in range(5)]
        await eventually(lambda: len(crowded.waiting) == 5)
        assert [await calls.poll(id) for id in ids] == [AsyncCallResult(CallState.QUEUED)] * 5
        second = as_after_a_kill(tmp_path / "first", tmp_path / "second")
    # A clean stop does not wait for them, and they are kept all the same.
    for folder in (tmp_path / "first", second):
        async with asynchronous(folder, Echo()) as calls:
            told = [await eventually(lambda id=id: ended(calls, id)) for id in ids]
            assert [one.report.answer.result for one in told] == [b"0", b"1", b"2", b"3", b"4"]

"""Room: who has to go when another needs it, how long the idle are kept, and that nobody starves."""

from __future__ import annotations

import asyncio

import pytest

from skerry.model.calls import CallFailure
from tests.support.simulated import passes
from tests.support.workers import FakeWorker, Site, function, in_simulated_time


@in_simulated_time
async def test_the_least_recently_used_idle_worker_of_any_function_makes_room() -> None:
    async with Site(*(function(name, memory=300) for name in "abcd"), memory_mb=1000) as site:
        for name in ("a", "b", "c", "a"):
            await site.call(name)
        assert (await site.call("d")).answer.failure is None
        assert site.invoker.status().warm == {"a": 1, "c": 1, "d": 1}


@in_simulated_time
async def test_no_more_workers_are_ended_than_the_room_that_is_needed() -> None:
    functions = [function(name, memory=100) for name in "abcde"] + [function("big", memory=250)]
    async with Site(*functions, memory_mb=500) as site:
        site.host.close_s = 1.0
        for name in "abcde":
            await site.call(name)
        assert (await site.call("big")).answer.failure is None
        assert site.invoker.status().warm == {"d": 1, "e": 1, "big": 1}


@in_simulated_time
async def test_room_that_is_on_its_way_is_promised_once() -> None:
    functions = [function(name, memory=100) for name in "abcdefgh"]
    async with Site(*functions, memory_mb=400) as site:
        site.host.close_s = 1.0
        for name in "abcd":
            await site.call(name)
        reports = await asyncio.gather(*(site.call(name) for name in "efgh"))
        assert max(report.response_s for report in reports) < 1.1  # all four made room at once
        assert site.invoker.status().warm == {"e": 1, "f": 1, "g": 1, "h": 1}


@in_simulated_time
async def test_an_idle_worker_is_kept_for_its_time_after_its_last_call() -> None:
    async with Site(function("a"), function("b"), keep_alive_s=100.0) as site:
        await site.call("a")
        await site.call("b")
        await passes(60)
        await site.call("b")
        await passes(39)
        assert site.invoker.status().warm == {"a": 1, "b": 1}
        await passes(2)
        assert site.invoker.status().warm == {"b": 1}
        await passes(58)
        assert site.invoker.status().warm == {"b": 1}
        await passes(2)
        assert site.invoker.status().warm == {}
        assert site.invoker.status().free_memory_mb == 1024


@in_simulated_time
async def test_a_busy_worker_does_not_expire() -> None:
    async with Site(function("a"), keep_alive_s=1.0) as site:
        site.host.run_s = 50.0
        assert (await site.call("a")).answer.failure is None
        assert site.host.spawns == 1


@in_simulated_time
async def test_cpu_is_taken_by_the_busy_alone() -> None:
    async with Site(function("a", cpu=1000), cpus=2.0) as site:
        await site.invoker.prewarm("a", 4)
        status = site.invoker.status()
        assert (status.warm, status.used_cpus) == ({"a": 4}, 0.0)
        site.host.run_s = 1.0
        calls = [site.begin("a") for _ in range(4)]
        await passes(0.5)
        status = site.invoker.status()
        assert (status.warm, status.used_cpus, status.queue_length) == ({"a": 2}, 2.0, 2)
        reports = [await call for call in calls]
        assert [round(report.response_s) for report in reports] == [1, 1, 2, 2]


@in_simulated_time
async def test_a_function_that_is_called_rarely_gets_the_room_of_one_that_is_called_all_the_time() -> None:
    async with Site(function("busy"), function("rare"), memory_mb=128, queue_wait_s=30.0) as site:
        site.host.run_s = 0.05
        until = site.clock.monotonic() + 5

        async def caller() -> None:
            while site.clock.monotonic() < until:
                assert (await site.call("busy")).answer.failure is None

        callers = [asyncio.ensure_future(caller()) for _ in range(3)]
        await passes(1)
        report = await site.call("rare")
        assert report.answer.failure is None
        assert report.response_s < 2.0
        await asyncio.gather(*callers)
        assert site.host.spawns <= 4


@in_simulated_time
async def test_two_functions_that_share_one_place_do_not_spend_their_time_on_starts() -> None:
    async with Site(function("a"), function("b"), memory_mb=128) as site:
        site.host.init_s, site.host.run_s = 0.1, 0.01
        until = site.clock.monotonic() + 60

        async def caller(name: str) -> int:
            calls = 0
            while site.clock.monotonic() < until:
                assert (await site.call(name)).answer.failure is None
                calls += 1
            return calls

        served = await asyncio.gather(*(caller(name) for name in "abab"))
        assert site.host.spawns * 0.1 < 10  # of 60 seconds
        assert min(served) * 3 > max(served)


@in_simulated_time
async def test_a_large_function_is_not_starved_by_small_ones() -> None:
    small = [function(f"s{number}", memory=100) for number in range(8)]
    async with Site(*small, function("large", memory=800), memory_mb=800) as site:
        site.host.run_s = 0.3
        until = site.clock.monotonic() + 20

        async def caller(name: str) -> None:
            while site.clock.monotonic() < until:
                assert (await site.call(name)).answer.failure is None

        callers = [asyncio.ensure_future(caller(one.name)) for one in small for _ in range(2)]
        await passes(1)
        assert (await site.call("large")).answer.failure is None
        assert site.clock.monotonic() < 10
        await asyncio.gather(*callers)


@in_simulated_time
async def test_the_wide_are_not_starved_of_cpu_by_the_narrow() -> None:
    async with Site(function("wide", cpu=4000), function("narrow", cpu=1000), cpus=4.0) as site:
        await site.call("wide")
        site.host.run_s = 0.3
        until = site.clock.monotonic() + 20

        async def caller() -> None:
            while site.clock.monotonic() < until:
                assert (await site.call("narrow")).answer.failure is None

        callers = [asyncio.ensure_future(caller()) for _ in range(6)]
        await passes(1)
        report = await site.call("wide")
        assert report.answer.failure is None
        assert report.response_s < 5
        await asyncio.gather(*callers)


@in_simulated_time
async def test_a_hundred_cold_functions_at_once_all_get_their_turn() -> None:
    functions = [function(f"f{number}") for number in range(100)]
    async with Site(*functions, memory_mb=1024) as site:
        site.host.close_s = 0.005
        reports = await asyncio.gather(*(site.call(one.name) for one in functions))
        assert {report.answer.failure for report in reports} == {None}
        assert site.host.spawns == 100
        assert max(report.response_s for report in reports) < 2.0


@in_simulated_time
async def test_ten_thousand_functions_are_not_looked_at_for_a_call_or_the_status() -> None:
    functions = [function(f"f{number}", memory=1) for number in range(10_000)]
    async with Site(*functions, memory_mb=10) as site:
        for one in functions[:200]:
            await site.call(one.name)
        site.registry.lookups = 0

        class Untouchable(dict):  # type: ignore[type-arg]
            def __iter__(self) -> None:  # type: ignore[override]
                raise AssertionError("somebody looks at all functions")

            keys = values = items = __iter__  # type: ignore[assignment]

        groups = site.invoker._groups
        site.registry.functions = Untouchable(site.registry.functions)
        site.invoker._groups = Untouchable(groups)
        reports = await asyncio.gather(*(site.call("f7") for _ in range(20)))
        assert {report.answer.failure for report in reports} == {None}
        assert site.registry.lookups == 20
        assert site.invoker.status().warm["f7"] <= 3  # and no more were ended than it has taken the room of
        assert sum(site.invoker.status().warm.values()) == 10
        site.invoker._groups = groups


@pytest.mark.parametrize("queue_length", [0, 5])
def test_every_call_is_answered_or_refused_whatever_the_queue(queue_length: int) -> None:
    @in_simulated_time
    async def run() -> None:
        async with Site(
            function("a"), function("b", seats=2), memory_mb=256, queue_length=queue_length, queue_wait_s=2.0
        ) as site:
            site.host.run_s = 0.5
            calls = [site.begin(name, qos_class=number % 4) for number in range(20) for name in "ab"]
            done = await asyncio.gather(*calls, return_exceptions=True)
            outcomes = [
                type(one).__name__ if isinstance(one, Exception) else one.answer.failure  # type: ignore[union-attr]
                for one in done
            ]
            assert set(outcomes) <= {None, "Overloaded", CallFailure.NO_ROOM}
            assert outcomes.count(None) >= 3
            assert outcomes.count("Overloaded") >= 20

    run()


@in_simulated_time
async def test_a_worker_that_cannot_be_closed_properly_does_not_keep_its_room_for_ever() -> None:
    async with Site(function("f"), keep_alive_s=1.0) as site:

        class Sticky(FakeWorker):
            async def close(self) -> None:
                await super().close()
                raise OSError("still there")

        site.host.kind = Sticky
        await site.call("f")
        await passes(2)
        assert site.invoker.status().free_memory_mb == 1024

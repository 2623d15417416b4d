"""Updates, deletions, prewarming and trying a function out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from skerry.model import errors
from skerry.model.calls import CallFailure, CallResult, CodeLoadError
from skerry.model.functions import Function
from tests.support.simulated import passes
from tests.support.workers import FakeWorker, Site, broken, function, in_simulated_time


async def update(site: Site, new: Function) -> None:
    site.registry.add(new)
    await site.invoker.updated(new)
    site.host.oldest[new.name] = new.version


async def delete(site: Site, name: str) -> None:
    del site.registry.functions[name]
    await site.invoker.removed(name)


def after_next_hand_over(site: Site, change: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Have `change` made when the next worker that comes free is handed over and its new call not begun."""
    reply = site.host.reply

    def make() -> None:
        with pytest.raises(StopIteration):  # it ends without waiting for anything
            change().send(None)

    def answer(worker: FakeWorker, params: bytes) -> CallResult:
        site.host.reply = reply
        asyncio.get_running_loop().call_soon(make)
        return reply(worker, params)

    site.host.reply = answer


# Updates


@in_simulated_time
async def test_no_call_after_an_update_runs_old_code_and_those_that_run_are_finished() -> None:
    async with Site(function("f")) as site:
        await site.invoker.prewarm("f", 2)
        site.host.run_s = 5.0
        running = site.begin("f")
        await passes(1)
        await update(site, function("f", version=2))
        site.host.run_s = 0.1
        for _ in range(3):
            assert (await site.call("f")).answer.output.endswith("v2")
        assert (await running).answer.output == "w2 v1"
        await passes(1)
        assert {worker.function.version for worker in site.host.workers} == {2}


@in_simulated_time
async def test_calls_that_wait_during_an_update_get_the_new_code() -> None:
    async with Site(function("f"), memory_mb=128) as site:
        site.host.run_s = 2.0
        running, waiting = site.begin("f"), site.begin("f")
        await passes(1)
        await update(site, function("f", version=2, memory=100))
        assert (await running).answer.output == "w1 v1"
        assert (await waiting).answer.output == "w2 v2"


@in_simulated_time
async def test_a_worker_that_starts_during_an_update_is_given_up() -> None:
    async with Site(function("f")) as site:
        site.host.init_s = 10.0
        call = site.begin("f")
        await passes(1)
        site.host.init_s = 0.1
        await update(site, function("f", version=2))
        report = await call
        assert report.answer.output == "w1 v2"
        assert report.response_s < 1.5


@in_simulated_time
async def test_a_call_in_the_moment_of_its_turn_does_not_slip_into_old_code() -> None:
    async with Site(function("f"), memory_mb=128) as site:
        first, second = site.begin("f"), site.begin("f")
        after_next_hand_over(site, lambda: update(site, function("f", version=2)))
        assert (await first).answer.output == "w1 v1"
        assert (await second).answer.output == "w2 v2"


@in_simulated_time
async def test_a_call_in_the_moment_of_its_turn_does_not_slip_into_a_deleted_function() -> None:
    async with Site(function("f"), memory_mb=128) as site:
        first, second = site.begin("f"), site.begin("f")
        after_next_hand_over(site, lambda: delete(site, "f"))
        assert (await first).answer.failure is None
        assert (await second).answer.failure is CallFailure.GONE


@in_simulated_time
async def test_an_update_is_seen_even_if_the_pool_was_not_told() -> None:
    async with Site(function("f")) as site:
        await site.call("f")
        site.registry.add(function("f", version=2))
        assert (await site.call("f")).answer.output.endswith("v2")


@in_simulated_time
async def test_calls_that_wait_are_told_when_the_new_version_can_never_fit() -> None:
    async with Site(function("f"), memory_mb=128) as site:
        site.host.run_s = 2.0
        running, waiting = site.begin("f"), site.begin("f")
        await passes(1)
        await update(site, function("f", version=2, memory=500))
        assert (await waiting).answer.failure is CallFailure.NO_ROOM
        assert (await running).answer.failure is None


# Deletions


@in_simulated_time
async def test_a_deletion_lets_calls_end_and_tells_those_that_wait() -> None:
    async with Site(function("f"), memory_mb=128) as site:
        site.host.run_s = 2.0
        running, waiting = site.begin("f"), site.begin("f")
        await passes(1)
        await delete(site, "f")
        assert (await waiting).answer.failure is CallFailure.GONE
        assert (await running).answer.failure is None
        with pytest.raises(errors.NotFound):
            await site.call("f")
        await passes(0.1)
        assert site.invoker.status().workers == 0


@in_simulated_time
async def test_a_function_that_is_made_again_shares_nothing_with_the_one_before() -> None:
    async with Site(function("f"), memory_mb=256) as site:
        site.host.run_s = 2.0
        running = site.begin("f")
        await passes(1)
        await delete(site, "f")
        site.registry.add(function("f", memory=64))
        assert (await site.call("f")).answer.output.startswith("w2 ")
        assert (await running).answer.output.startswith("w1 ")
        await passes(0.1)
        assert [worker.function.memory for worker in site.host.workers] == [64]


@in_simulated_time
async def test_a_deletion_that_is_told_late_does_not_touch_the_function_that_was_made_since() -> None:
    async with Site(function("f", version=3)) as site:
        await site.call("f")
        site.registry.add(function("f", memory=64))
        site.host.run_s = 1.0
        running = site.begin("f")
        await passes(0.001)
        await site.invoker.removed("f")
        assert (await running).answer.output == "w2 v1"
        assert site.invoker.status().warm == {"f": 1}


# Prewarming


@in_simulated_time
async def test_prewarmed_workers_are_kept_as_long_as_any_and_their_first_call_is_warm() -> None:
    async with Site(function("f"), keep_alive_s=100.0) as site:
        assert await site.invoker.prewarm("F", 3) == 3
        await passes(95)
        assert site.invoker.status().warm == {"f": 3}
        assert (await site.call("f")).is_warm
        await passes(10)
        assert site.invoker.status().warm == {"f": 1}


@in_simulated_time
async def test_prewarming_more_than_fits_makes_what_fits_and_returns_the_true_number() -> None:
    async with Site(function("f"), function("g")) as site:
        await site.call("g")
        assert await site.invoker.prewarm("f", 1000) == 8
        assert site.host.spawns == 9  # not one of its own was ended for another
        assert site.invoker.status().warm == {"f": 8}
        assert await site.invoker.prewarm("f", 5) == 0
        assert site.invoker.status().warm == {"f": 8}


@in_simulated_time
async def test_prewarming_takes_the_room_of_others_and_keeps_its_own_older_ones() -> None:
    async with Site(function("f"), function("g"), memory_mb=256) as site:
        await site.call("f")
        await site.call("g")
        assert await site.invoker.prewarm("f", 1) == 1
        assert site.invoker.status().warm == {"f": 2}
        assert site.host.spawns == 3


@in_simulated_time
async def test_prewarming_leaves_busy_workers_alone() -> None:
    async with Site(function("f"), function("g"), memory_mb=256) as site:
        site.host.run_s = 60.0
        running = site.begin("g")
        await passes(1)
        assert await site.invoker.prewarm("f", 2) == 1
        assert (await running).answer.failure is None


@in_simulated_time
async def test_prewarming_starts_no_more_at_once_than_there_is_cpu_for() -> None:
    async with Site(function("f", cpu=1000), cpus=2.0) as site:
        assert await site.invoker.prewarm("f", 6) == 6
        assert site.clock.monotonic() == pytest.approx(0.03, abs=0.005)  # three rounds of two


@in_simulated_time
async def test_prewarming_none_only_prepares() -> None:
    async with Site(function("f")) as site:
        assert await site.invoker.prewarm("f", 0) == 0
        assert await site.invoker.prewarm("f", 0, force=True) == 0
        assert await site.invoker.prewarm("f", 1, force=True) == 1
        assert site.host.prepared == [("f", False), ("f", True), ("f", True)]
        assert site.host.spawns == 1


@in_simulated_time
async def test_prewarming_what_is_unknown_or_broken_says_so() -> None:
    async with Site(function("f")) as site:
        with pytest.raises(errors.NotFound):
            await site.invoker.prewarm("g", 1)
        site.host.fault = broken
        with pytest.raises(CodeLoadError, match="no module named main"):
            await site.invoker.prewarm("f", 1000)
        assert site.host.spawns <= 8
        site.host.fault = lambda _: OSError("secret path")
        with pytest.raises(errors.Unavailable) as told:
            await site.invoker.prewarm("f", 1)
        assert "secret" not in told.value.message


@in_simulated_time
async def test_a_function_deleted_while_it_is_prewarmed_keeps_no_worker() -> None:
    async with Site(function("f")) as site:
        site.host.init_s = 5.0
        prewarming = asyncio.ensure_future(site.invoker.prewarm("f", 20))
        await passes(1)
        await delete(site, "f")
        assert await prewarming == 0
        assert site.invoker.status().workers == 0


# Trying out

CODE = Path("/code/f")


@in_simulated_time
async def test_trying_a_function_out_tells_what_runs_and_leaves_nothing() -> None:
    async with Site() as site:
        assert await site.invoker.validate(function("f"), CODE) == "Fake 1.0"
        await passes(0.1)
        assert site.invoker.status().workers == 0


@in_simulated_time
async def test_trying_out_what_cannot_be_loaded_tells_why() -> None:
    async with Site() as site:
        site.host.fault = broken
        with pytest.raises(CodeLoadError, match="no module named main") as failed:
            await site.invoker.validate(function("f"), CODE)
        assert failed.value.output == "Traceback"


@in_simulated_time
async def test_trying_out_waits_for_room_within_bounds() -> None:
    async with Site(function("g"), memory_mb=128, queue_wait_s=10.0) as site:
        site.host.run_s = 5.0
        running = site.begin("g")
        await passes(1)
        assert await site.invoker.validate(function("f"), CODE) == "Fake 1.0"
        await running
        site.host.run_s = 60.0
        running = site.begin("g")
        await passes(1)
        with pytest.raises(errors.ResourcesExhausted):
            await site.invoker.validate(function("f"), CODE)
        with pytest.raises(errors.ResourcesExhausted, match="raise functions"):
            await site.invoker.validate(function("f", memory=500), CODE)
        await running


@in_simulated_time
async def test_an_attempt_that_is_given_up_leaves_no_worker() -> None:
    async with Site() as site:
        site.host.init_s = 5.0
        attempt = asyncio.ensure_future(site.invoker.validate(function("f"), CODE))
        await passes(1)
        attempt.cancel()
        await asyncio.wait([attempt])
        await passes(0.1)
        assert site.invoker.status().workers == 0

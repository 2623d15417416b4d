"""Calls: warm and cold, which worker, how long, and what is said when one fails."""

from __future__ import annotations

import asyncio

import pytest

from skerry.model import errors
from skerry.model.calls import CallFailure, CallRequest, CallResult
from skerry.model.ids import FunctionName
from tests.support.simulated import passes
from tests.support.workers import FakeWorker, Site, broken, function, in_simulated_time, without_room


@pytest.fixture(params=[False, True], ids=["task", "direct"], autouse=True)
def is_direct(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Everything here holds for calls with a task and for those without."""
    monkeypatch.setattr(Site, "is_direct", request.param)
    return bool(request.param)


@in_simulated_time
async def test_the_first_call_is_cold_and_the_next_one_warm() -> None:
    async with Site(function("f")) as site:
        cold = await site.call("f", params=b'{"n":1}')
        assert cold.answer.result == b'{"n":1}'
        assert cold.answer.failure is None
        assert not cold.is_warm
        assert cold.init_s == pytest.approx(0.01, abs=1e-3)
        assert cold.queueing_s == pytest.approx(0, abs=1e-3)
        assert cold.response_s == pytest.approx(0.011, abs=1e-3)
        warm = await site.call("F", params=b"9007199254740993")
        assert warm.answer.result == b"9007199254740993"
        assert warm.is_warm
        assert (warm.init_s, warm.queueing_s, warm.node, warm.area) == (0.0, 0.0, "here", "local")
        assert warm.response_s == pytest.approx(0.001, abs=1e-4)
        assert site.host.spawns == 1


@in_simulated_time
async def test_an_unknown_function_is_not_found() -> None:
    async with Site() as site:
        with pytest.raises(errors.NotFound, match="there is no function"):
            await site.call("f")


@in_simulated_time
async def test_the_worker_that_was_used_last_is_used_next() -> None:
    async with Site(function("f")) as site:
        await site.invoker.prewarm("f", 3)
        oldest, _, newest = site.host.of("f")
        for _ in range(5):
            await site.call("f")
        assert (newest.calls, oldest.calls) == (5, 0)


@in_simulated_time
async def test_a_worker_never_gets_more_calls_at_once_than_it_takes() -> None:
    async with Site(function("f", seats=3, memory=512)) as site:  # the fake worker checks it too
        site.host.run_s = 1.0
        reports = await asyncio.gather(*(site.call("f") for _ in range(12)))
        assert {report.answer.failure for report in reports} == {None}
        assert sum(worker.calls for worker in site.host.spawned) == 12
        assert len(site.host.spawned) == 2


@in_simulated_time
async def test_calls_share_a_worker_before_another_is_taken() -> None:
    async with Site(function("f", seats=4)) as site:
        await site.invoker.prewarm("f", 2)
        await asyncio.gather(*(site.call("f") for _ in range(4)))
        assert sorted(worker.calls for worker in site.host.of("f")) == [0, 4]


@in_simulated_time
async def test_a_burst_of_short_calls_waits_for_one_worker_instead_of_starting_many() -> None:
    async with Site(function("f", memory=10)) as site:
        site.host.init_s, site.host.run_s = 0.1, 0.001
        await site.call("f")
        reports = await asyncio.gather(*(site.call("f") for _ in range(50)))
        assert {report.answer.failure for report in reports} == {None}
        assert site.host.spawns == 1


@in_simulated_time
async def test_a_burst_of_long_calls_gets_a_worker_each() -> None:
    async with Site(function("f", memory=10)) as site:
        site.host.init_s, site.host.run_s = 0.01, 5.0
        await site.call("f")
        reports = await asyncio.gather(*(site.call("f") for _ in range(20)))
        assert site.host.spawns == 20
        assert max(report.response_s for report in reports) < 5.1


@in_simulated_time
async def test_a_first_burst_of_a_function_nobody_has_measured_is_served_soon() -> None:
    async with Site(function("f", memory=10)) as site:
        site.host.init_s, site.host.run_s = 0.01, 60.0
        reports = await asyncio.gather(*(site.call("f") for _ in range(20)))
        assert max(report.response_s for report in reports) < 61.0
        assert {report.answer.failure for report in reports} == {None}


@in_simulated_time
async def test_a_queue_that_does_not_end_gets_another_worker_though_each_wait_is_short() -> None:
    async with Site(function("f", memory=10)) as site:
        site.host.init_s, site.host.run_s = 0.3, 0.005
        until = site.clock.monotonic() + 10

        async def caller() -> None:
            while site.clock.monotonic() < until:
                await site.call("f")

        await asyncio.gather(*(caller() for _ in range(8)))
        assert 2 <= site.host.spawns <= 8


@pytest.mark.parametrize("init_s", [0.3, 0.005])
@in_simulated_time
async def test_calls_that_do_not_wait_for_workers_get_no_more_of_them_than_there_are_processors(
    init_s: float,
) -> None:
    async with Site(function("f", memory=10), cpus=2.0) as site:
        site.host.init_s, site.host.run_s = init_s, 0.005
        site.host.reply = lambda worker, params: CallResult(0.0005, params)  # of the 5 ms
        until = site.clock.monotonic() + 10

        async def caller() -> None:
            while site.clock.monotonic() < until:
                await site.call("f")

        await asyncio.gather(*(caller() for _ in range(8)))
        assert site.host.spawns == 2


@in_simulated_time
async def test_calls_that_become_longer_get_workers_though_short_ones_needed_none() -> None:
    async with Site(function("f", memory=10), cpus=2.0) as site:
        site.host.init_s, site.host.run_s = 0.01, 0.005
        site.host.reply = lambda worker, params: CallResult(0.0005, params)
        await site.call("f")
        await asyncio.gather(*(site.call("f") for _ in range(20)))
        assert site.host.spawns == 2
        site.host.run_s = 5.0
        reports = await asyncio.gather(*(site.call("f") for _ in range(20)))
        assert max(report.response_s for report in reports) < 6.0


@in_simulated_time
async def test_a_call_that_cannot_be_answered_in_its_time_is_ended_and_says_where_the_time_went() -> None:
    async with Site(function("f")) as site:
        site.host.init_s, site.host.run_s = 0.2, 5.0
        report = await site.call("f", max_response_s=0.5)
        assert report.answer.failure is CallFailure.TIMEOUT
        assert report.response_s == pytest.approx(0.5, abs=0.01)
        assert "0.200 s for the start of a worker, 0.300 s running" in report.answer.error
        assert not report.timed_out_in_queue


@in_simulated_time
async def test_a_call_whose_time_ends_while_it_waits_is_ended_then() -> None:
    async with Site(function("f"), memory_mb=128) as site:
        site.host.run_s = 5.0
        first = site.begin("f")
        await passes(0.1)
        late = await site.call("f", max_response_s=0.5)
        assert late.answer.failure is CallFailure.TIMEOUT
        assert late.response_s == pytest.approx(0.5, abs=0.01)
        assert "all of it in the queue: its 1 workers were busy" in late.answer.error
        assert late.timed_out_in_queue
        assert (await first).answer.failure is None
        assert site.host.spawned[0].calls == 1


@in_simulated_time
async def test_a_call_whose_time_ends_while_a_worker_starts_has_not_left_the_queue() -> None:
    async with Site(function("f")) as site:
        site.host.init_s = 2.0
        late = await site.call("f", max_response_s=0.5)
        assert late.answer.failure is CallFailure.TIMEOUT
        assert late.timed_out_in_queue
        await passes(2)
        assert (await site.call("f")).is_warm, "the worker is there for the next call"


@in_simulated_time
async def test_a_function_that_runs_too_long_is_ended_and_its_worker_with_it() -> None:
    async with Site(function("f", timeout_s=1.0)) as site:
        site.host.run_s = 99.0
        report = await site.call("f")
        assert report.answer.failure is CallFailure.TIMEOUT
        assert report.answer.error.endswith("its function may run 1 s")
        hurried = await site.call("f", max_response_s=0.5)
        assert hurried.answer.error.endswith("its function may run 1 s, its caller waits 0.5 s")
        site.host.run_s = 0.1
        assert (await site.call("f")).answer.output.startswith("w3 ")


@in_simulated_time
async def test_a_time_out_in_a_shared_worker_lets_the_other_calls_in_it_end() -> None:
    async with Site(function("f", seats=2)) as site:
        site.host.run_s = 2.0
        other = site.begin("f")
        late = await site.call("f", max_response_s=0.5)
        assert late.answer.failure is CallFailure.TIMEOUT
        assert (await site.call("f")).answer.output.startswith("w2 ")
        assert (await other).answer.output.startswith("w1 ")
        await passes(1)
        assert [worker.id for worker in site.host.of("f")] == ["w2"]


@in_simulated_time
async def test_a_call_waits_no_longer_than_the_queue_allows() -> None:
    async with Site(function("f"), memory_mb=128, queue_wait_s=3.0) as site:
        site.host.run_s = 60.0
        first = site.begin("f")
        await passes(0.1)
        report = await site.call("f")
        assert report.answer.failure is CallFailure.NO_ROOM
        assert report.response_s == pytest.approx(3.0, abs=0.01)
        first.cancel()
        await asyncio.wait([first])


@in_simulated_time
async def test_who_comes_when_the_queue_is_full_is_told_when_to_come_again() -> None:
    async with Site(function("f"), memory_mb=128, queue_length=4) as site:
        site.host.run_s = 1.0
        await site.call("f")
        calls = [site.begin("f") for _ in range(5)]
        await passes(2.5)
        calls += [site.begin("f") for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(errors.Overloaded) as refused:
            await site.call("f")
        assert refused.value.retry_after_s == pytest.approx(4.0, rel=0.3)  # four wait, each takes a second
        assert {report.answer.failure for report in await asyncio.gather(*calls)} == {None}


@in_simulated_time
async def test_without_a_queue_a_worker_is_started_for_a_call_or_it_is_refused() -> None:
    async with Site(function("f"), function("g"), memory_mb=256, queue_length=0) as site:
        await site.call("g")
        site.host.run_s = 1.0
        calls = [site.begin("f"), site.begin("f")]  # the second takes the room of the idle `g`
        await passes(0.5)
        with pytest.raises(errors.Overloaded):
            await site.call("f")
        assert {report.answer.failure for report in await asyncio.gather(*calls)} == {None}


@in_simulated_time
async def test_what_can_never_fit_is_refused_at_once_with_the_numbers() -> None:
    async with Site(function("big", memory=2048), function("wide", cpu=8000)) as site:
        for name in ("big", "wide"):
            report = await site.call(name)
            assert report.answer.failure is CallFailure.NO_ROOM
            assert report.response_s < 0.1
        assert "needs 128 MB and 8 cores" in report.answer.error


@in_simulated_time
async def test_a_worker_that_dies_fails_the_calls_in_it_with_the_cause_and_is_never_used_again() -> None:
    async with Site(function("f", seats=2)) as site:
        site.host.run_s = 60.0
        calls = [site.begin("f"), site.begin("f")]
        await passes(1)
        site.host.spawned[0].die(CallFailure.MEMORY, "killed: above 128 MB")
        for report in await asyncio.gather(*calls):
            assert report.answer.failure is CallFailure.MEMORY
            assert report.answer.error == "killed: above 128 MB"
            assert report.answer.output == "last words"
            assert report.response_s < 1.1
        site.host.run_s = 0.1
        assert (await site.call("f")).answer.failure is None  # the fake refuses calls when it is dead
        assert site.host.spawns == 2


@in_simulated_time
async def test_an_idle_worker_that_dies_gives_its_room_back_without_a_call() -> None:
    async with Site(function("f")) as site:
        await site.invoker.prewarm("f", 2)
        site.host.of("f")[1].die()
        await passes(0.1)
        assert site.invoker.status().warm == {"f": 1}
        assert site.invoker.status().free_memory_mb == 1024 - 128
        assert (await site.call("f")).answer.output.startswith("w1 ")


@in_simulated_time
async def test_a_worker_that_has_just_died_is_not_handed_out() -> None:
    async with Site(function("f", seats=2), function("g")) as site:
        await site.call("f")
        site.host.of("f")[0].die()
        assert (await site.call("f")).answer.output.startswith("w2 ")
        site.host.run_s = 1.0
        running = site.begin("f")
        await passes(0.5)
        site.host.of("f")[0].die()
        assert (await site.call("f")).answer.output.startswith("w3 ")
        assert (await running).answer.failure is CallFailure.DIED


@in_simulated_time
async def test_a_worker_that_dies_with_its_answer_is_not_handed_to_who_waits() -> None:
    async with Site(function("f"), memory_mb=128) as site:
        reply = site.host.reply

        def answer(worker: FakeWorker, params: bytes) -> CallResult:
            site.host.reply = reply
            worker.die()
            return reply(worker, params)

        site.host.reply = answer
        first, second = site.begin("f"), site.begin("f")
        assert (await first).answer.output.startswith("w1 ")
        assert (await second).answer.output.startswith("w2 ")


@in_simulated_time
async def test_a_start_that_fails_does_not_end_calls_that_another_worker_can_serve() -> None:
    async with Site(function("f")) as site:
        site.host.run_s = 2.0
        running = site.begin("f")
        await passes(0.5)
        site.host.fault = broken
        waiting = await site.call("f")
        assert waiting.answer.output.startswith("w1 ")
        assert 2 <= site.host.spawns <= 6
        await running


@in_simulated_time
async def test_a_worker_whose_caller_went_away_while_it_started_is_warm_for_the_next() -> None:
    async with Site(function("f"), function("g"), memory_mb=256) as site:
        for name in ("f", "g"):
            gone = site.begin(name)
            await passes(0.001)
            gone.cancel()
        await passes(1)
        site.host.run_s = 2.0
        running, waiting = site.begin("g"), site.begin("g", max_response_s=1.0)
        await passes(0.005)
        assert site.invoker.status().queue_length == 1
        report = await site.call("f")
        assert (report.is_warm, report.init_s) == (True, 0.0)
        await asyncio.gather(running, waiting)


@in_simulated_time
async def test_a_function_that_cannot_be_loaded_says_so_to_all_who_wait_and_is_tried_once_for_them() -> None:
    async with Site(function("f")) as site:
        site.host.fault = broken
        for report in await asyncio.gather(*(site.call("f") for _ in range(20))):
            assert report.answer.failure is CallFailure.LOAD
            assert report.answer.error == "no module named main"
            assert report.answer.output == "Traceback"
        assert site.host.spawns == 1
        site.host.fault = lambda _: None
        assert (await site.call("f")).answer.failure is None


@in_simulated_time
async def test_a_worker_that_ends_as_soon_as_it_is_ready_is_a_failed_load() -> None:
    async with Site(function("f")) as site:
        init = FakeWorker.__init__

        class Stillborn(FakeWorker):
            def __init__(self, *args: object) -> None:
                init(self, *args)  # type: ignore[arg-type]
                self.is_alive = False

        site.host.kind = Stillborn
        report = await site.call("f")
        assert report.answer.failure is CallFailure.LOAD
        assert site.host.spawns == 1


@in_simulated_time
async def test_a_host_without_room_is_asked_again_after_a_rest_while_calls_wait() -> None:
    async with Site(function("f"), queue_wait_s=20.0) as site:
        site.host.fault = without_room
        call = site.begin("f")
        await passes(10)
        assert 5 <= site.host.spawns <= 25
        site.host.fault = lambda _: None
        assert (await call).answer.failure is None


@in_simulated_time
async def test_a_start_that_fails_for_no_fault_of_the_function_is_told_without_its_details() -> None:
    async with Site(function("f")) as site:
        site.host.fault = lambda _: OSError("secret path")
        report = await site.call("f")
        assert report.answer.failure is CallFailure.INTERNAL
        assert "secret" not in report.answer.error


@in_simulated_time
async def test_a_caller_that_goes_away_ends_its_call_and_the_worker_that_runs_it() -> None:
    async with Site(function("f")) as site:
        site.host.run_s, site.host.close_s = 60.0, 1.0
        call = site.begin("f")
        await passes(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert site.invoker.status().warm == {}
        assert site.invoker.status().free_memory_mb == 1024 - 128  # until nothing is left of it
        site.host.run_s = 0.1
        assert (await site.call("f")).answer.output.startswith("w2 ")


@in_simulated_time
async def test_a_caller_that_goes_away_while_it_waits_leaves_its_place_and_no_worker_is_lost() -> None:
    async with Site(function("f"), memory_mb=128) as site:
        site.host.run_s = 1.0
        calls = [site.begin("f") for _ in range(4)]
        await passes(0.5)
        calls[1].cancel()
        calls[2].cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one).__name__ for one in done] == [
            "CallReport",
            "CancelledError",
            "CancelledError",
            "CallReport",
        ]
        assert site.host.spawns == 1
        assert site.invoker.status().queue_length == 0


@in_simulated_time
async def test_a_caller_that_goes_away_in_the_moment_of_its_turn_passes_the_worker_on() -> None:
    async with Site(function("f"), memory_mb=128) as site:
        site.host.run_s = 1.0
        first, second, third = (site.begin("f") for _ in range(3))

        def answer(*_: object) -> CallResult:
            if not second.done():  # after the hand-over that follows, and before `second` hears of it
                asyncio.get_running_loop().call_soon(second.cancel)
            return CallResult(0.1, b"1")

        site.host.reply = answer
        await asyncio.wait([first, second, third])
        assert second.cancelled()
        assert third.result().answer.failure is None
        assert site.host.spawns == 1


@in_simulated_time
async def test_a_worker_goes_to_the_next_if_the_first_in_line_has_just_gone() -> None:
    async with Site(function("f"), memory_mb=128) as site:
        site.host.run_s = 1.0
        first, second, third = (site.begin("f") for _ in range(3))

        def answer(*_: object) -> CallResult:
            second.cancel()  # before the hand-over; it has had no chance to leave its place
            return CallResult(0.1, b"1")

        site.host.reply = answer
        await asyncio.wait([first, second, third])
        assert third.result().response_s == pytest.approx(2.01, abs=0.002)


@in_simulated_time
async def test_an_exception_of_the_handler_is_reported_and_the_worker_kept() -> None:
    async with Site(function("f")) as site:
        site.host.reply = lambda *_: CallResult(0.1, b"", "printed", CallFailure.HANDLER, "ValueError: no")
        for _ in range(3):
            report = await site.call("f")
            assert report.answer.failure is CallFailure.HANDLER
            assert report.answer.error == "ValueError: no"
            assert report.answer.output == "printed"
        assert site.host.spawns == 1


@in_simulated_time
async def test_calls_during_and_after_the_stop_of_the_node_are_told_of_it() -> None:
    async with Site(function("f"), memory_mb=128) as site:
        site.host.run_s = 60.0
        running, waiting = site.begin("f"), site.begin("f")
        await passes(1)
        await site.invoker.close()
        assert (await running).answer.failure is CallFailure.INTERRUPTED
        assert (await waiting).answer.failure is CallFailure.INTERRUPTED
        with pytest.raises(errors.Unavailable):
            await site.call("f")


@in_simulated_time
async def test_where_workers_have_no_memory_prewarming_says_that_functions_run_elsewhere() -> None:
    async with Site(function("f"), memory_mb=0) as site:
        for count in (0, 2):
            with pytest.raises(errors.Unavailable, match="on nodes of this cloud and not here"):
                await site.invoker.prewarm("f", count)


@in_simulated_time
async def test_calls_without_a_task_are_begun_once_a_worker_is_there() -> None:
    async with Site(function("f")) as site:
        await site.call_directly(CallRequest(FunctionName("f")))
        assert site.begun == 0  # it waits for the start of a worker
        waiting = [
            asyncio.ensure_future(site.call_directly(CallRequest(FunctionName("f")))) for _ in range(3)
        ]
        reports = await asyncio.gather(*waiting)
        assert (site.begun, site.host.spawns) == (3, 1)
        assert [report.is_warm for report in reports] == [True] * 3
        assert reports[0].queueing_s == 0.0 < reports[1].queueing_s < reports[2].queueing_s


@in_simulated_time
async def test_a_call_without_a_task_survives_an_update_while_it_waits() -> None:
    async with Site(function("f")) as site:
        site.host.run_s = 1.0
        await site.call("f")
        calls = [asyncio.ensure_future(site.call_directly(CallRequest(FunctionName("f")))) for _ in range(2)]
        await passes(0.5)
        new = site.registry.add(function("f", version=2))
        await site.invoker.updated(new)
        site.host.oldest["f"] = 2
        assert [report.answer.failure for report in await asyncio.gather(*calls)] == [None, None]

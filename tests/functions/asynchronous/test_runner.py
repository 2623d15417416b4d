"""An async call is run once and its result is told to who has its id, across restarts and under load."""

from __future__ import annotations

import asyncio
import random
import stat
from pathlib import Path

import pytest

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.asynchronous.runner import FILE_NAME, AsyncCallRunner
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.calls import CallFailure, CallReport, CallRequest, CallState
from tests.functions.asynchronous.callers import (
    Echo,
    Patient,
    answered,
    as_after_a_kill,
    ask,
    asynchronous,
    ended,
    refused,
)
from tests.support.disks import disk_full
from tests.support.waiting import eventually


async def test_a_call_is_told_as_queued_running_and_done(tmp_path: Path) -> None:
    invoker = Patient()
    async with asynchronous(tmp_path, invoker, is_run=False) as calls:
        id = await calls.accept(ask(b"1", "Hello"))
        assert id.startswith("Hello-")
        assert await calls.poll(id) == AsyncCallResult(CallState.QUEUED)
        running = asyncio.create_task(calls.run())
        await eventually(lambda: b"1" in invoker.under_way)
        assert await calls.poll(id) == AsyncCallResult(CallState.RUNNING)
        invoker.answer(b"1", answered(b'{"n": 9007199254740993}'))
        told = await eventually(lambda: ended(calls, id))
        assert told.state is CallState.DONE
        assert told.report.answer == answered(b'{"n": 9007199254740993}').answer
        assert (told.report.node, told.report.action) == ("here", "")
        running.cancel()
        await asyncio.wait([running])


async def test_who_polls_may_wait_for_the_end(tmp_path: Path) -> None:
    invoker = Patient()
    async with asynchronous(tmp_path, invoker) as calls:
        id = await calls.accept(ask(b"1"))
        await eventually(lambda: b"1" in invoker.under_way)
        assert await calls.poll(id, wait_s=0.01) == AsyncCallResult(CallState.RUNNING)
        waiting = [asyncio.create_task(calls.poll(id, wait_s=60)), asyncio.create_task(calls.result(id))]
        await asyncio.sleep(0)
        invoker.answer(b"1", answered(b"[1]"))
        told = await asyncio.gather(*waiting)
        assert [polled.state for polled in told if polled] == [CallState.DONE] * 2
        assert (await calls.result(id)) == told[0]
        assert await calls.poll("hello-none", wait_s=60) is None
        assert await calls.result("hello-none") is None


async def test_what_was_never_accepted_is_not_known(tmp_path: Path) -> None:
    async with asynchronous(tmp_path, Echo()) as calls:
        for id in ("hello-0", "", "x" * 100_000, "\0", "';--"):
            assert await calls.poll(id) is None


async def test_times_count_from_acceptance(tmp_path: Path) -> None:
    clock = ManualClock()
    invoker = Patient()
    async with asynchronous(tmp_path, invoker, clock, is_run=False) as calls:
        id = await calls.accept(ask(b"1"))
        clock.advance(10)
        running = asyncio.create_task(calls.run())
        await eventually(lambda: b"1" in invoker.under_way)
        clock.advance(2)
        invoker.answer(b"1", answered(b"1"))
        told = await eventually(lambda: ended(calls, id))
        assert (told.report.response_s, told.report.queueing_s) == (12.0, 10.25)
        running.cancel()
        await asyncio.wait([running])


async def test_thousands_accepted_at_once_each_get_their_own_result(tmp_path: Path) -> None:
    invoker = Echo()
    chance = random.Random(6)
    asks = [ask(b'"%d %s"' % (number, b"x" * chance.randrange(2000))) for number in range(3000)]
    async with asynchronous(tmp_path, invoker) as calls:
        ids = await asyncio.gather(*(calls.accept(one) for one in asks))
        assert len(set(ids)) == len(asks)
        for id, one in zip(ids, asks, strict=True):
            told = await eventually(lambda id=id: ended(calls, id))
            assert told.report.answer.result == one.params
    assert sorted(one.params for one in invoker.asked) == sorted(one.params for one in asks)


async def test_a_result_of_the_largest_size_comes_back_whole(tmp_path: Path) -> None:
    large = b'"' + b"x" * (16 * 1024 * 1024 - 2) + b'"'
    async with asynchronous(tmp_path, Echo()) as calls:
        id = await calls.accept(ask(large))
        told = await eventually(lambda: ended(calls, id))
        assert told.report.answer.result == large


@pytest.mark.parametrize(
    ("outcome", "failure", "error"),
    [
        (refused(CallFailure.HANDLER), CallFailure.HANDLER, "because"),
        (refused(CallFailure.TIMEOUT), CallFailure.TIMEOUT, "because"),
        (errors.NotFound("Function unknown."), CallFailure.GONE, "deleted"),
        (errors.TooLarge("it is too large"), CallFailure.INTERNAL, "it is too large"),
        (ZeroDivisionError("secret detail"), CallFailure.INTERNAL, "a fault of this node"),
    ],
)
async def test_a_call_that_fails_is_told_as_failed_with_the_reason(
    tmp_path: Path, outcome: Exception, failure: CallFailure, error: str
) -> None:
    invoker = Patient()
    async with asynchronous(tmp_path, invoker) as calls:
        id = await calls.accept(ask(b"1"))
        await eventually(lambda: b"1" in invoker.under_way)
        invoker.answer(b"1", outcome)
        told = await eventually(lambda: ended(calls, id))
        assert (told.state, told.report.answer.failure) == (CallState.FAILED, failure)
        assert error in told.report.answer.error
        assert "secret" not in told.report.answer.error


@pytest.mark.parametrize(
    "outcome",
    [
        errors.Overloaded("full", retry_after_s=0.01),
        errors.Unavailable("no node can be reached"),
        refused(CallFailure.NO_ROOM),
    ],
)
async def test_a_call_that_finds_no_room_waits_and_is_run_later(
    tmp_path: Path, outcome: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.functions.asynchronous.runner._RETRY_AFTER_S", 0.01)
    invoker = Patient()
    async with asynchronous(tmp_path, invoker) as calls:
        id = await calls.accept(ask(b"1"))
        for _ in range(3):
            await eventually(lambda: b"1" in invoker.under_way)
            invoker.answer(b"1", outcome)
            await eventually(lambda: b"1" not in invoker.under_way)
        await eventually(lambda: b"1" in invoker.under_way)
        invoker.answer(b"1", answered(b"1"))
        told = await eventually(lambda: ended(calls, id))
        assert (told.state, len(invoker.asked)) == (CallState.DONE, 4)


@pytest.mark.parametrize("outcome", [refused(CallFailure.NO_ROOM), errors.Unavailable("no node")])
async def test_a_call_for_which_there_is_never_room_fails_in_the_end(
    tmp_path: Path, outcome: CallReport | Exception
) -> None:
    clock, invoker = ManualClock(), Patient()
    async with asynchronous(tmp_path, invoker, clock, result_ttl_s=60.0) as calls:
        id = await calls.accept(ask(b"1"))
        await eventually(lambda: b"1" in invoker.under_way)
        clock.advance(61)
        invoker.answer(b"1", outcome)
        told = await eventually(lambda: ended(calls, id))
        assert told.report.answer.failure is CallFailure.NO_ROOM


async def test_a_response_time_counts_from_acceptance(tmp_path: Path) -> None:
    clock, invoker = ManualClock(), Echo()
    async with asynchronous(tmp_path, invoker, clock, is_run=False) as calls:
        late = await calls.accept(ask(b"1", max_response_s=5.0))
        soon = await calls.accept(ask(b"2", max_response_s=15.0))
        clock.advance(10)
        running = asyncio.create_task(calls.run())
        told = await eventually(lambda: ended(calls, late))
        assert told.report.answer.failure is CallFailure.TIMEOUT
        await eventually(lambda: ended(calls, soon))
        assert [(one.params, one.max_response_s) for one in invoker.asked] == [(b"2", 5.0)]
        running.cancel()
        await asyncio.wait([running])


async def test_a_function_with_many_calls_does_not_keep_out_one_with_few(tmp_path: Path) -> None:
    invoker = Echo()
    async with asynchronous(tmp_path, invoker, is_run=False, queue_length=4) as calls:
        for number in range(20):
            await calls.accept(ask(b"%d" % number, "many"))
        few = await calls.accept(ask(b"20", "few"))
        urgent = await calls.accept(ask(b"21", "many", qos_class=2))
        running = asyncio.create_task(calls.run())
        await eventually(lambda: ended(calls, few))
        await eventually(lambda: ended(calls, urgent))
        assert {one.params for one in invoker.asked[:3]} == {b"0", b"20", b"21"}
        running.cancel()
        await asyncio.wait([running])


async def test_no_more_wait_than_the_limit_and_a_place_that_is_free_is_given(tmp_path: Path) -> None:
    invoker = Patient()
    async with asynchronous(tmp_path, invoker, max_pending=3, within_s=0) as calls:
        done = await asyncio.gather(
            *(calls.accept(ask(b"%d" % number)) for number in range(5)), return_exceptions=True
        )
        assert [isinstance(one, str) for one in done] == [True, True, True, False, False]
        with pytest.raises(errors.Overloaded, match=r"functions\.max_pending") as caught:
            await calls.accept(ask(b"5"))
        assert caught.value.retry_after_s > 0
        await eventually(lambda: len(invoker.under_way) == 3)
        invoker.answer(b"0", answered(b"0"))
        await eventually(lambda: ended(calls, done[0]))
        await calls.accept(ask(b"6"))


async def test_a_namespace_that_has_its_share_waiting_does_not_keep_others_out(tmp_path: Path) -> None:
    invoker = Patient()
    async with asynchronous(tmp_path, invoker, max_pending=8, within_s=0) as calls:
        for number in range(2):
            await calls.accept(ask(b"%d" % number, "shop:sum"))
        with pytest.raises(errors.Overloaded, match=r"2 async calls of the namespace shop .*max_pending"):
            await calls.accept(ask(b"2", "shop:other"))
        await calls.accept(ask(b"3", "lab:sum"))
        for number in range(4, 8):
            await calls.accept(ask(b"%d" % number, "sum"))  # in the default one as many as fit
        await eventually(lambda: b"0" in {one.params for one in invoker.asked})
        invoker.answer(b"0", answered(b"0"))
        await eventually(lambda: _accepted(calls, ask(b"8", "shop:sum")))


async def _accepted(calls: AsyncCallRunner, request: CallRequest) -> bool:
    try:
        await calls.accept(request)
    except errors.Overloaded:
        return False
    return True


async def test_the_bytes_that_wait_of_a_namespace_are_its_share(tmp_path: Path) -> None:
    async with asynchronous(tmp_path, Echo(), is_run=False, result_bytes=800_000) as calls:
        await calls.accept(ask(b"x" * 60_000, "shop:sum"))
        with pytest.raises(errors.Overloaded, match=r"namespace shop .*functions\.result_bytes"):
            await calls.accept(ask(b"x" * 60_000, "shop:sum"))
        await calls.accept(ask(b"x" * 60_000, "lab:sum"))


async def test_the_bytes_that_wait_are_bounded(tmp_path: Path) -> None:
    async with asynchronous(tmp_path, Echo(), is_run=False, result_bytes=100_000) as calls:
        with pytest.raises(errors.TooLarge, match=r"functions\.result_bytes"):
            await calls.accept(ask(b"x" * 60_000))
        await calls.accept(ask(b"x" * 40_000))
        with pytest.raises(errors.Overloaded, match=r"functions\.result_bytes"):
            await calls.accept(ask(b"x" * 40_000))


async def test_the_oldest_results_go_for_new_ones_and_are_told_as_expired(tmp_path: Path) -> None:
    clock = ManualClock()
    async with asynchronous(tmp_path, Echo(), clock, result_bytes=100_000) as calls:
        ids = []
        for _ in range(12):
            clock.advance(1)
            ids.append(await calls.accept(ask(b"x" * 20_000)))
            await eventually(lambda: ended(calls, ids[-1]))
        states = [told.state for id in ids if (told := await calls.poll(id))]
        assert states == [CallState.EXPIRED] * 8 + [CallState.DONE] * 4


async def test_a_result_that_cannot_be_kept_is_a_failure_that_says_so(tmp_path: Path) -> None:
    invoker = Patient()
    async with asynchronous(tmp_path, invoker, result_bytes=100_000) as calls:
        id = await calls.accept(ask(b"1"))
        await eventually(lambda: b"1" in invoker.under_way)
        invoker.answer(b"1", answered(b"x" * 60_000))
        told = await eventually(lambda: ended(calls, id))
        assert (told.state, told.report.answer.failure) == (CallState.FAILED, CallFailure.RESULT)
        assert "functions.result_bytes" in told.report.answer.error
        assert told.report.answer.duration_s == 0.5


async def test_a_result_expires_and_is_later_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    async with asynchronous(tmp_path, Echo(), clock, result_ttl_s=100.0) as calls:
        id = await calls.accept(ask(b"1"))
        await eventually(lambda: ended(calls, id))
        clock.advance(99)
        await calls.sweep()
        assert (await calls.poll(id)) != AsyncCallResult(CallState.EXPIRED)
        clock.advance(2)
        await calls.sweep()
        assert await calls.poll(id) == AsyncCallResult(CallState.EXPIRED)
        clock.advance(101)
        await calls.sweep()
        assert await calls.poll(id) is None


async def test_after_a_clean_stop_what_waited_is_run_and_what_ended_is_told(tmp_path: Path) -> None:
    async with asynchronous(tmp_path, Echo(), is_run=True) as calls:
        done = await calls.accept(ask(b"1"))
        await eventually(lambda: ended(calls, done))
    async with asynchronous(tmp_path, Echo(), is_run=False) as calls:
        waiting = [await calls.accept(ask(b"%d" % number)) for number in range(2, 6)]
    invoker = Echo()
    async with asynchronous(tmp_path, invoker) as calls:
        assert await ended(calls, done)
        for id in waiting:
            await eventually(lambda id=id: ended(calls, id))
        assert [one.params for one in invoker.asked] == [b"2", b"3", b"4", b"5"]


async def test_at_a_clean_stop_running_calls_end_or_are_interrupted(tmp_path: Path) -> None:
    invoker = Patient()
    async with asynchronous(tmp_path, invoker, is_run=False, queue_length=8) as calls:
        running = asyncio.create_task(calls.run())
        quick, slow, waiting = [await calls.accept(ask(params)) for params in (b"1", b"2", b"3")]
        await eventually(lambda: len(invoker.under_way) == 2)
        running.cancel()
        await asyncio.wait([running])
        closing = asyncio.create_task(calls.close(within_s=0.2))
        await asyncio.sleep(0)
        with pytest.raises(errors.Unavailable, match="stopping"):
            await calls.accept(ask(b"4"))
        invoker.answer(b"1", answered(b"1"))
        await closing
    async with asynchronous(tmp_path, invoker, is_run=False) as calls:
        told = await ended(calls, quick)
        assert told is not None
        assert told.state is CallState.DONE
        cut = await ended(calls, slow)
        assert cut is not None
        assert cut.report is not None
        assert cut.report.answer.failure is CallFailure.INTERRUPTED
        assert "call again" in cut.report.answer.error
        assert await calls.poll(waiting) == AsyncCallResult(CallState.QUEUED)


async def test_after_a_kill_what_waited_is_run_once_and_what_ran_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    invoker = Patient()
    async with asynchronous(tmp_path / "first", invoker, queue_length=8, within_s=0) as calls:
        ids = [await calls.accept(ask(b"%d" % number)) for number in range(4)]
        await eventually(lambda: len(invoker.under_way) == 2)
        invoker.answer(b"0", answered(b"0"))
        await eventually(lambda: ended(calls, ids[0]))
        await eventually(lambda: len(invoker.under_way) == 2)
        second = as_after_a_kill(tmp_path / "first", tmp_path / "second")
    again = Echo()
    async with asynchronous(second, again) as calls:
        told = [await eventually(lambda id=id: ended(calls, id)) for id in ids]
        assert [one.state for one in told] == ["done", "failed", "failed", "done"]
        assert [one.params for one in again.asked] == [b"3"]


async def test_a_caller_who_leaves_takes_no_call_with_it(tmp_path: Path) -> None:
    invoker = Echo()
    async with asynchronous(tmp_path, invoker) as calls:
        accepting = asyncio.create_task(calls.accept(ask(b"1")))
        await asyncio.sleep(0)
        accepting.cancel()
        await eventually(lambda: [one.params for one in invoker.asked] == [b"1"])
        with pytest.raises(asyncio.CancelledError):
            await accepting


async def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    async with asynchronous(tmp_path, Echo()) as calls:
        await calls.accept(ask(b'"secret"'))
        modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        assert modes == {0o600}


async def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database" * 1000)
    with pytest.raises(errors.FailedPrecondition, match=r"is damaged.*move it"):
        async with asynchronous(tmp_path, Echo()):
            pass


async def test_a_full_disk_refuses_new_calls_and_loses_no_result(tmp_path: Path) -> None:
    invoker = Patient()
    async with asynchronous(tmp_path, invoker) as calls:
        id = await calls.accept(ask(b"1"))
        await eventually(lambda: b"1" in invoker.under_way)
        with disk_full():
            with pytest.raises(errors.Unavailable, match="nothing was changed"):
                await calls.accept(ask(b"x" * 100_000))
            invoker.answer(b"1", answered(b"y" * 100_000))
            await eventually(lambda: not invoker.under_way)
            assert await calls.poll(id) == AsyncCallResult(CallState.RUNNING)
        told = await eventually(lambda: ended(calls, id))
        assert told.report.answer.result == b"y" * 100_000
        await calls.accept(ask(b"2"))
        await eventually(lambda: b"2" in invoker.under_way)
        invoker.answer(b"2", answered(b"2"))


async def test_a_call_that_cannot_be_marked_as_running_is_not_run_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.functions.asynchronous.runner._RETRY_AFTER_S", 0.01)
    invoker = Echo()
    async with asynchronous(tmp_path, invoker, is_run=False) as calls:
        id = await calls.accept(ask(b"1" * 100_000))
        with disk_full((tmp_path / f"{FILE_NAME}-wal").stat().st_size):
            running = asyncio.create_task(calls.run())
            await eventually(lambda: calls._pause is not None)
            assert (invoker.asked, await calls.poll(id)) == ([], AsyncCallResult(CallState.QUEUED))
        await eventually(lambda: ended(calls, id))
        assert len(invoker.asked) == 1
        running.cancel()
        await asyncio.wait([running])


async def test_a_call_with_an_id_of_the_callers_own_is_accepted_once(tmp_path: Path) -> None:
    invoker = Patient()
    async with asynchronous(tmp_path, invoker) as calls:
        assert await calls.accept(ask(b"1"), id="hello-mine") == "hello-mine"
        await eventually(lambda: b"1" in invoker.under_way)
        assert await calls.accept(ask(b"1"), id="hello-mine") == "hello-mine"
        invoker.answer(b"1", answered(b"[1]"))
        await eventually(lambda: ended(calls, "hello-mine"))
        assert await calls.accept(ask(b"1"), id="hello-mine") == "hello-mine"
    async with asynchronous(tmp_path, invoker) as calls:  # also after a restart
        assert await calls.accept(ask(b"1"), id="hello-mine") == "hello-mine"
        assert (await calls.poll("hello-mine")).state is CallState.DONE
    assert len(invoker.asked) == 1

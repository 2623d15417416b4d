"""Background loops never die in silence."""

from __future__ import annotations

import asyncio

import pytest

from skerry.kit import metrics
from skerry.kit.backoff import Backoff
from skerry.kit.tasks import (
    CriticalTaskEnded,
    TaskSupervisor,
    cancel_and_wait,
    failure_of,
    in_thread,
    map_in_turns,
    race,
    run_to_completion,
    run_together,
)
from tests.support.waiting import PATIENCE_S, eventually

AT_ONCE = Backoff(first_s=0.0)


def deaths(loop: str) -> float:
    return metrics.REGISTRY.get_sample_value("skerry_loop_deaths_total", {"loop": loop}) or 0.0


async def test_a_loop_that_raises_is_counted_and_started_again() -> None:
    runs = 0

    async def stumble() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise RuntimeError("tripped")
        await asyncio.Event().wait()

    before = deaths("test.stumble")
    async with TaskSupervisor("test", backoff=AT_ONCE) as keep:
        keep.forever("stumble", stumble)
        await eventually(lambda: runs == 3)
    assert deaths("test.stumble") - before == 2


async def test_a_loop_that_returns_is_taken_as_dead_too() -> None:
    runs = 0

    async def leave() -> None:
        nonlocal runs
        runs += 1
        if runs > 1:
            await asyncio.Event().wait()

    async with TaskSupervisor("test", backoff=AT_ONCE) as keep:
        keep.forever("leave", leave)
        await eventually(lambda: runs == 2)


async def test_a_critical_loop_that_dies_brings_its_owner_down() -> None:
    async def die() -> None:
        raise RuntimeError("gone")

    async with TaskSupervisor("test") as keep:
        keep.forever("heart", die, critical=True)
        with pytest.raises(CriticalTaskEnded, match=r"test\.heart ended: RuntimeError\('gone'\)"):
            await asyncio.wait_for(keep.failed(), PATIENCE_S)


async def test_who_waits_for_what_a_dead_loop_would_do_is_told_so_and_not_left_waiting() -> None:
    async def die() -> None:
        raise RuntimeError("unreadable")

    async def ready() -> str:
        return "ready"

    async with TaskSupervisor("test") as keep:
        assert await keep.unless_failed(ready()) == "ready"
        keep.forever("heart", die, critical=True)
        never = asyncio.Event()
        with pytest.raises(CriticalTaskEnded, match="unreadable"):
            await asyncio.wait_for(keep.unless_failed(never.wait()), PATIENCE_S)


async def test_leaving_the_keeper_cancels_every_loop_and_waits_for_it() -> None:
    ended: list[str] = []

    async def linger(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # a loop may need a moment to put things away
            ended.append(name)

    async with TaskSupervisor("test") as keep:
        keep.forever("a", lambda: linger("a"))
        keep.once("b", linger("b"))
        await asyncio.sleep(0)
    assert sorted(ended) == ["a", "b"]


async def test_a_background_task_that_fails_is_counted() -> None:
    async def fail() -> None:
        raise ValueError("no")

    before = deaths("test.fail")
    async with TaskSupervisor("test") as keep:
        keep.once("fail", fail())
        await eventually(lambda: deaths("test.fail") > before)


async def test_an_unharmed_keeper_reports_no_failure() -> None:
    async with TaskSupervisor("test") as keep:
        waiting = asyncio.ensure_future(keep.failed())
        await asyncio.sleep(0)
        assert not waiting.done()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_what_is_given_up_has_ended_whichever_way() -> None:
    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("no")

    tasks = [asyncio.ensure_future(fail()), asyncio.ensure_future(asyncio.Event().wait())]
    await asyncio.sleep(0)
    await cancel_and_wait(tasks)
    assert isinstance(tasks[0].exception(), ValueError)
    assert tasks[1].cancelled()


async def test_what_must_be_finished_is_finished_however_often_we_are_cancelled() -> None:
    go_on, ended = asyncio.Event(), []

    async def work() -> None:
        await go_on.wait()
        ended.append(True)

    task = asyncio.ensure_future(run_to_completion(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_what_is_finished_in_peace_has_its_result_or_its_error() -> None:
    async def work(error: Exception | None) -> int:
        if error is not None:
            raise error
        return 7

    assert await run_to_completion(work(None)) == 7
    with pytest.raises(ValueError, match="no"):
        await run_to_completion(work(ValueError("no")))


async def test_a_race_has_the_result_of_the_first_and_the_others_have_ended() -> None:
    ended: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("linger")

    async def win() -> int:
        await asyncio.sleep(0)
        return 7

    async def fail() -> None:
        raise ValueError("no")

    assert await race(linger(), win()) == 7
    assert ended == ["linger"]
    with pytest.raises(ValueError, match="no"):
        await race(linger(), fail(), win())
    assert ended == ["linger", "linger"]


async def test_of_those_that_end_together_the_first_in_order_counts() -> None:
    loop = asyncio.get_running_loop()
    one, two = loop.create_future(), loop.create_future()
    two.set_exception(ValueError("no"))
    one.set_result(1)
    assert await race(one, two) == 1


async def test_a_race_that_is_cancelled_leaves_nothing_running_but_what_is_shielded() -> None:
    ended: list[bool] = []
    shielded: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    running = asyncio.ensure_future(race(linger(), asyncio.shield(shielded)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await cancel_and_wait([running])
    assert running.cancelled()
    assert ended == [True]
    assert not shielded.done()


async def test_what_goes_on_beside_ends_a_race_only_by_failing() -> None:
    async def work(error: Exception | None) -> int:
        if error is not None:
            raise error
        return 7

    go_on = asyncio.Event()

    async def main() -> str:
        await go_on.wait()
        return "main"

    running = asyncio.ensure_future(race(main(), failure_of(work(None))))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not running.done()
    go_on.set()
    assert await running == "main"
    with pytest.raises(ValueError, match="no"):
        await race(asyncio.Event().wait(), failure_of(work(ValueError("no"))))


async def test_what_runs_together_runs_to_its_end_and_one_failure_ends_all() -> None:
    done: list[str] = []

    async def finish(name: str) -> None:
        await asyncio.sleep(0)
        done.append(name)

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # it takes a moment to end
            done.append("ended")

    async def fail() -> None:
        raise RuntimeError("tripped")

    await run_together(finish("one"), finish("two"))
    assert done == ["one", "two"]
    with pytest.raises(RuntimeError, match="tripped"):
        await run_together(wait_for_ever(), fail())
    assert done == ["one", "two", "ended"]


async def test_steps_that_are_not_to_be_broken_end_before_a_cancel_shows() -> None:
    begun, end, steps = asyncio.Event(), asyncio.Event(), []

    async def work() -> None:
        begun.set()
        await end.wait()
        steps.append(await in_thread(lambda: "done"))

    task = asyncio.create_task(run_to_completion(work()))
    await begun.wait()
    task.cancel()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["done"]


async def test_a_long_list_is_made_in_turns_and_in_order() -> None:
    now, turns = 0.0, 0

    def double(number: int) -> int:
        nonlocal now
        now += 0.002
        return number * 2

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    assert await map_in_turns(double, range(10), monotonic=lambda: now) == tuple(range(0, 20, 2))
    await cancel_and_wait((other,))
    assert turns == 3  # after each 6 ms

"""Stalls of the event loop: they are seen, named and counted, and the machine's own load is left out."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time

from structlog.testing import capture_logs

from skerry.kit import loop_monitor, thread_times
from skerry.kit.loop_monitor import (
    NO_CALLBACK,
    REST_S,
    REST_SHARE,
    STALL_S,
    WORK_S,
    AverageShare,
    CollectionPauses,
    LoopWatchdog,
    Pauses,
    Sample,
    Stall,
    StallLog,
    ThreadDelays,
    describe,
    own_seconds,
)
from skerry.kit.thread_times import ThreadClock, ThreadTimes


def spin(seconds: float) -> None:
    """Use the processor for so long, however long that takes."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def stalls_of(work: float) -> list[Stall]:
    found: list[Stall] = []
    arrived = asyncio.Event()

    def report(stall: Stall) -> None:
        found.append(stall)
        arrived.set()

    with LoopWatchdog(asyncio.get_running_loop(), report):
        spin(work)
        await arrived.wait()
    return found


async def test_a_callback_that_keeps_the_loop_is_a_stall_with_its_name_and_length() -> None:
    stall = (await stalls_of(6 * STALL_S))[0]
    assert stall.seconds >= STALL_S
    assert stall.ran_s >= 6 * STALL_S
    assert f"{__name__}.spin" in stall.culprit
    assert stall.stack.startswith(f"{__name__}.spin:")
    assert f"{__name__}.stalls_of:" in stall.stack


async def test_nothing_of_the_watchdog_stays_behind() -> None:
    callbacks, threads = list(gc.callbacks), threading.active_count()
    with LoopWatchdog(asyncio.get_running_loop()):
        assert len(gc.callbacks) == len(callbacks) + 1
        assert threading.active_count() == threads + 1
    assert gc.callbacks == callbacks
    assert threading.active_count() == threads


def test_short_turns_now_and_then_are_rest() -> None:
    """Ten milliseconds twice a second, as the checks of many instances, are 2 % of a processor."""
    share, shares = AverageShare(), []
    for _ in range(10):
        shares += [share.add(WORK_S, ran_s=WORK_S)]
        shares += [share.add(WORK_S, ran_s=0.0) for _ in range(49)]
    assert max(shares[-100:]) < REST_SHARE
    for _ in range(10):
        shares = [share.add(REST_S, ran_s=0.01), share.add(REST_S, ran_s=0.0)]
        assert max(shares) < REST_SHARE


def test_work_after_a_long_rest_is_noticed_at_the_next_heartbeat() -> None:
    share = AverageShare()
    for _ in range(100):
        share.add(REST_S, ran_s=0.0)
    assert share.add(REST_S, ran_s=REST_S / 2) >= REST_SHARE


def test_time_without_a_processor_is_nobodys_stall() -> None:
    assert own_seconds(0.08, ThreadTimes(ran_s=0.01, waited_s=0.07), 0.0, ThreadDelays()) < STALL_S
    assert own_seconds(0.08, ThreadTimes(ran_s=0.08), 0.0, ThreadDelays()) == 0.08


def test_a_loop_that_is_blocked_by_a_thread_without_a_processor_does_not_stall_by_itself() -> None:
    nothing = ThreadTimes()
    waiting = ThreadDelays(loop=nothing, longest_wait_s=0.06)
    assert own_seconds(0.1, nothing, 0.08, waiting) < STALL_S
    # One that ran meanwhile was not blocked by the other.
    working = ThreadDelays(loop=ThreadTimes(ran_s=0.08), longest_wait_s=0.06)
    assert own_seconds(0.1, ThreadTimes(ran_s=0.1), 0.08, working) == 0.1


def test_blocking_without_a_busy_thread_is_a_stall() -> None:
    assert own_seconds(0.1, ThreadTimes(), 0.08, ThreadDelays()) == 0.1


def test_delays_of_threads_are_those_between_two_moments_and_of_threads_that_were_there_at_both() -> None:
    before = {1: ThreadTimes(1.0, 1.0), 2: ThreadTimes(5.0, 5.0), 4: ThreadTimes(9.0, 9.0)}
    after = {1: ThreadTimes(1.5, 1.25), 2: ThreadTimes(5.0, 8.0), 3: ThreadTimes(7.0, 7.0)}
    assert ThreadDelays.between(1, before, after) == ThreadDelays(ThreadTimes(0.5, 0.25), 3.0)


def test_the_culprit_is_the_innermost_function_of_the_program_with_what_it_called() -> None:
    def called_by_skerry() -> Sample:
        return describe(sys._getframe())

    inside = {"__name__": "skerry.market.prices", "called": called_by_skerry}
    exec("def price_all():\n    return called()\n", inside)
    sample = inside["price_all"]()  # type: ignore[operator]
    assert sample.culprit.startswith("skerry.market.prices.price_all (")
    assert "called_by_skerry" in sample.culprit
    assert "< skerry.market.prices.price_all:2 <" in sample.stack


async def test_a_loop_between_two_callbacks_has_no_other_culprit() -> None:
    frame = sys._getframe()
    while frame.f_globals["__name__"] != "asyncio.events":
        assert frame.f_back is not None
        frame = frame.f_back
    assert describe(frame).culprit == NO_CALLBACK


def test_a_stall_is_counted_and_logged_with_its_culprit_once_a_second() -> None:
    now = 100.0
    record = StallLog(lambda: now)
    stall = Stall(0.0712, 0.07, 0.001, 0.0, "skerry.market.prices.price_all", "a < b")
    counted = _counted()
    with capture_logs() as lines:
        record(stall)
        record(stall)
        now += 1.0
        record(stall)
    assert _counted() == counted + 3
    assert [(line["event"], line["culprit"], line["seconds"], line["unlogged"]) for line in lines] == [
        ("loop.stalled", "skerry.market.prices.price_all", 0.071, 0),
        ("loop.stalled", "skerry.market.prices.price_all", 0.071, 1),
    ]


def _counted() -> float:
    (family,) = loop_monitor.STALLS.collect()
    return next(sample.value for sample in family.samples if sample.name.endswith("_count"))


def test_pauses_of_the_collector_add_up_until_they_are_taken() -> None:
    pauses = CollectionPauses()
    gc.callbacks.append(pauses)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(pauses)
    taken = pauses.take()
    assert taken.all_s > 0.0
    assert taken.oldest == 1
    assert pauses.take() == Pauses(0.0, 0)


def test_the_times_of_threads_are_those_of_the_kernel() -> None:
    mine = threading.get_native_id()
    clock = ThreadClock(mine)
    before = clock.read()
    spin(0.005)
    spent = clock.read().since(before)
    clock.close()
    assert spent.ran_s >= 0.004
    assert thread_times.read_all()[mine].ran_s >= spent.ran_s


def test_a_kernel_that_does_not_count_reports_no_waiting() -> None:
    clock = ThreadClock(thread=0)  # there is no such thread
    assert clock.read().waited_s == 0.0
    assert clock.read().ran_s > 0.0
    clock.close()

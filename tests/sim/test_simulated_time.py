"""Simulated time: it jumps, it creeps, it is the same again, and it says when nothing can happen."""

from __future__ import annotations

import asyncio
import time

import pytest

from skerry.sim import simulated_time


def test_a_day_passes_in_a_moment() -> None:
    async def sleep() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    assert simulated_time.run(sleep()) == pytest.approx(86_400, abs=0.001)
    assert time.monotonic() - began < 60


def test_timers_come_in_the_order_of_their_times() -> None:
    async def race() -> list[int]:
        order: list[int] = []

        async def after(seconds: int) -> None:
            await asyncio.sleep(seconds)
            order.append(seconds)

        await asyncio.gather(*(after(seconds) for seconds in (3, 1, 2)))
        return order

    assert simulated_time.run(race()) == [1, 2, 3]


def test_the_clock_tells_the_time_of_the_loop() -> None:
    async def look() -> tuple[float, float]:
        clock = simulated_time.LoopClock(asyncio.get_running_loop())
        now, monotonic = clock.now(), clock.monotonic()
        await asyncio.sleep(90)
        return clock.now() - now, clock.monotonic() - monotonic

    assert simulated_time.run(look()) == pytest.approx((90, 90), abs=0.001)


def test_who_waits_for_what_never_comes_is_told() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(simulated_time.SimulationDeadlock):
        simulated_time.run(wait())


def test_who_looks_again_and_again_for_a_moment_finds_it_reached() -> None:
    """Without time that creeps, one who wakes a rounding error too early would look for ever."""

    async def spin() -> None:
        clock = simulated_time.LoopClock(asyncio.get_running_loop())
        deadline = clock.now() + 1e-5
        while clock.now() < deadline:  # noqa: ASYNC110 - to spin is the point
            await asyncio.sleep(0)

    simulated_time.run(spin())

"""The time in which a server could hear its nodes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skerry.control.nodes.pause_aware_clock import MAX_STEP_S, TICK_S, PauseAwareClock
from skerry.kit.clock import ManualClock


def test_goes_with_the_clock_while_the_process_runs() -> None:
    clock = ManualClock()
    attention = PauseAwareClock(clock)
    for _ in range(100):
        clock.advance(TICK_S)
        attention.tick()
    clock.advance(0.25)
    assert attention.monotonic() == 100 * TICK_S + 0.25


def test_counts_little_of_a_pause_whoever_asks_first_after_it() -> None:
    clock = ManualClock()
    attention = PauseAwareClock(clock)
    clock.advance(3600)
    assert attention.monotonic() == MAX_STEP_S
    attention.tick()
    assert attention.monotonic() == MAX_STEP_S


@given(st.lists(st.tuples(st.floats(0, 10), st.booleans())))
def test_never_goes_back_and_never_faster_than_the_clock(moves: list[tuple[float, bool]]) -> None:
    clock = ManualClock()
    attention = PauseAwareClock(clock)
    for seconds, ticks in moves:
        before, clock_before = attention.monotonic(), clock.monotonic()
        clock.advance(seconds)
        if ticks:
            attention.tick()
        assert 0 <= attention.monotonic() - before <= clock.monotonic() - clock_before + 1e-6

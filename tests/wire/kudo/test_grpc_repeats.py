"""The back-off of repeated Creates: times and counts, without a server."""

from __future__ import annotations

import pytest

from skerry.kit.clock import ManualClock
from skerry.model.settings import FleetSettings
from skerry.wire.kudo.grpc_repeats import RepeatBackoff

SETTINGS = FleetSettings(restart_base_s=1.0, restart_cap_s=300.0, restart_reset_s=600.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def backoff(clock: ManualClock) -> RepeatBackoff:
    return RepeatBackoff(clock, SETTINGS)


def repeats_at_once(backoff: RepeatBackoff, clock: ManualClock, count: int) -> list[float]:
    """The holds of a client that creates again as soon as a stream has ended."""
    holds = []
    for _ in range(count):
        holds.append(backoff.next_hold_s("web-1"))
        clock.advance(holds[-1])
    return holds


def test_each_repeat_is_held_twice_as_long_up_to_the_cap(backoff: RepeatBackoff, clock: ManualClock) -> None:
    assert repeats_at_once(backoff, clock, 12) == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_ten_minutes_of_repeats_are_a_handful_of_calls(backoff: RepeatBackoff, clock: ManualClock) -> None:
    started, calls = clock.monotonic(), 0
    while clock.monotonic() - started < 600:
        clock.advance(backoff.next_hold_s("web-1"))
        calls += 1
    assert calls == 11


def test_who_comes_back_after_the_pause_is_not_held(backoff: RepeatBackoff, clock: ManualClock) -> None:
    assert repeats_at_once(backoff, clock, 2) == [0, 1]
    for _ in range(3):
        clock.advance(2)
        assert backoff.next_hold_s("web-1") == 0


def test_the_count_begins_anew_after_a_long_rest(backoff: RepeatBackoff, clock: ManualClock) -> None:
    repeats_at_once(backoff, clock, 9)
    clock.advance(600)
    assert repeats_at_once(backoff, clock, 3) == [0, 1, 2]


def test_instances_are_counted_apart(backoff: RepeatBackoff, clock: ManualClock) -> None:
    repeats_at_once(backoff, clock, 5)
    assert backoff.next_hold_s("web-2") == 0


def test_many_at_once_are_never_held_longer_than_the_cap(backoff: RepeatBackoff) -> None:
    assert max(backoff.next_hold_s("web-1") for _ in range(2000)) == 300


def test_a_connection_with_very_many_held_streams_keeps_calls_free(backoff: RepeatBackoff) -> None:
    contexts = [backoff.held("one", 300.0) for _ in range(130)]
    assert [context.__enter__() for context in contexts] == [300.0] * 128 + [10.0] * 2
    with backoff.held("other", 300.0) as hold_s:
        assert hold_s == 300.0
    for context in contexts:
        context.__exit__(None, None, None)
    with backoff.held("one", 300.0) as hold_s:
        assert hold_s == 300.0


def test_what_is_remembered_of_instances_is_bounded(backoff: RepeatBackoff) -> None:
    for number in range(20_000):
        backoff.next_hold_s(f"web-{number}")
    assert len(backoff._answered) == 10_000

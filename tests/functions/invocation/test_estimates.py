"""When a start is worth it, by what was measured."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from skerry.functions.invocation import estimates
from skerry.functions.invocation.estimates import MovingAverage, waits_for_workers, workers_needed


def wanted(waiting: int, workers: int, run_s: float | None, init_s: float, **more: float) -> int:
    terms = {"seats": 1, "starting": 0, "stalled_s": 0.0, "crowded_s": 0.0} | more
    return workers_needed(waiting=waiting, workers=workers, run_s=run_s, init_s=init_s, **terms)  # type: ignore[arg-type]


def test_a_function_without_a_worker_gets_one() -> None:
    assert wanted(50, 0, None, 0.1) == 1
    assert wanted(50, 0, 0.001, 0.1) == 1


def test_short_runs_are_waited_for_and_long_ones_are_not() -> None:
    assert wanted(10, 2, 0.001, 0.1) == 2
    assert wanted(10, 2, 1.0, 0.1) == 12
    assert wanted(10, 2, 0.05, 0.1) == 5


def test_calls_that_fit_into_one_worker_together_are_counted_together() -> None:
    assert wanted(10, 2, 1.0, 0.1, seats=5) == 4


def test_workers_on_their_way_are_counted() -> None:
    assert wanted(10, 10, 1.0, 0.1, starting=10) == 10


def test_a_line_that_stands_still_gets_twice_as_many_and_a_lasting_one_one_more() -> None:
    assert wanted(9, 2, None, 0.1, stalled_s=0.05) == 2
    assert wanted(9, 2, None, 0.1, stalled_s=0.2) == 4
    assert wanted(9, 2, 0.001, 0.1, crowded_s=0.5) == 2
    assert wanted(9, 2, 0.001, 0.1, crowded_s=1.5) == 3
    assert wanted(9, 9, 0.001, 0.1, crowded_s=1.5) == 9


@pytest.mark.parametrize(
    ("workers", "processors", "run_s", "handler_s", "waits"),
    [
        (1, 2, 0.001, 0.0001, True),
        (2, 2, 0.001, 0.0001, False),
        (2, 8, 0.001, 0.0001, True),
        (2, 2, 0.001, 0.0009, True),
        (9, 2, None, None, True),
    ],
)
def test_with_workers_for_all_processors_calls_wait_for_more_only_if_most_of_a_run_is_the_handler(
    workers: int, processors: int, run_s: float | None, handler_s: float | None, waits: bool
) -> None:
    found = waits_for_workers(workers=workers, processors=processors, run_s=run_s, handler_s=handler_s)
    assert found is waits


@given(
    waiting=st.integers(1, 500),
    seats=st.integers(1, 50),
    idle=st.integers(0, 50),
    starting=st.integers(0, 50),
    run_s=st.none() | st.floats(0, 1e4),
    init_s=st.floats(0, 1e3),
    stalled_s=st.floats(0, 1e3),
    crowded_s=st.floats(0, 1e3),
)
def test_never_more_than_a_place_for_each_and_never_none(
    waiting: int,
    seats: int,
    idle: int,
    starting: int,
    run_s: float | None,
    init_s: float,
    stalled_s: float,
    crowded_s: float,
) -> None:
    more = (
        workers_needed(
            waiting=waiting,
            seats=seats,
            workers=idle + starting,
            starting=starting,
            run_s=run_s,
            init_s=init_s,
            stalled_s=stalled_s,
            crowded_s=crowded_s,
        )
        - idle
        - starting
    )
    assert (more + starting - 1) * seats < waiting or more <= 0
    if not idle and not starting:
        assert more >= 1


def test_a_start_is_expected_to_take_what_it_took_or_what_others_took() -> None:
    own, others = MovingAverage(), MovingAverage()
    unknown = estimates.expected_init_s(own, None)
    assert estimates.expected_init_s(own, others) == unknown > 0
    others.add(3.0)
    assert estimates.expected_init_s(own, others) == 3.0
    own.add(1.0)
    own.add(2.0)
    assert 1.0 < estimates.expected_init_s(own, others) < 2.0


def test_one_that_stands_out_moves_the_average_little_and_many_move_it_soon() -> None:
    run = MovingAverage()
    for _ in range(5):
        run.add(0.001)
    run.add(10.0)
    assert run.value is not None
    assert run.value < 0.003
    for _ in range(20):
        run.add(10.0)
    assert run.value > 5.0


def test_who_has_waited_long_compared_with_a_start_or_for_half_its_time_is_overdue() -> None:
    assert not estimates.is_overdue(waited_s=0.5, may_wait_s=30, init_s=0.1)
    assert estimates.is_overdue(waited_s=1.1, may_wait_s=30, init_s=0.1)
    assert estimates.is_overdue(waited_s=0.5, may_wait_s=0.9, init_s=0.1)


@pytest.mark.parametrize(("pace_s", "expected"), [(None, 1.0), (0.01, 1.0), (0.2, 20.0), (5.0, 30.0)])
def test_a_refused_call_may_come_again_when_those_before_it_are_through(
    pace_s: float | None, expected: float
) -> None:
    assert estimates.retry_after_s(waiting=100, pace_s=pace_s, at_most_s=30.0) == expected

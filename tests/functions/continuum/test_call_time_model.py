"""The model of call times: it approaches the true times, follows changes, and forgets old ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given

from skerry.functions.continuum.call_time_model import (
    CallObservation,
    CallTimeModel,
    CallTimePrediction,
    observation_of,
)
from skerry.functions.continuum.candidates import CallDemand, Candidate, CandidateView
from skerry.model.calls import CallFailure, CallReport, CallResult
from skerry.model.ids import FunctionName
from tests.functions.continuum import making
from tests.functions.continuum.making import demand, full, here, place

NEAR, FAR = place("near"), place("far", rtt_s=0.1)


@dataclass
class Node:
    call_times: CallTimeModel

    def see(self, where: Candidate, times: int = 1, **fields: float | None) -> None:
        for _ in range(times):
            self.call_times.record(demand(), where, CallObservation(**{"run_s": 0.05, **fields}))

    def expect(self, where: Candidate, **fields: object) -> CallTimePrediction:
        return self.call_times.predict(demand(**fields), where)


@pytest.fixture
def node() -> Node:
    return Node(CallTimeModel())


def test_of_a_function_that_was_never_called_something_is_expected_all_the_same(node: Node) -> None:
    expected = node.expect(NEAR)
    assert expected.run_s > 0
    assert expected.spread > 0
    assert expected.known == 0
    assert expected.network_s == pytest.approx(NEAR.rtt_s)


def test_run_times_are_learnt_for_each_place(node: Node) -> None:
    for number in range(200):
        node.see(NEAR, run_s=0.2 + 0.1 * (number % 3 - 1))
        node.see(FAR, run_s=2.0)
    assert node.expect(NEAR).run_s == pytest.approx(0.2, rel=0.2)
    assert node.expect(FAR).run_s == pytest.approx(2.0, rel=0.1)


def test_the_spread_is_that_of_the_calls(node: Node) -> None:
    warm = place("near", warm=1)
    for number in range(200):
        node.see(warm, run_s=1.0 + 0.5 * (-1) ** number)
    assert node.expect(warm).spread == pytest.approx(0.5, rel=0.15)


def test_what_was_true_once_is_forgotten(node: Node) -> None:
    node.see(NEAR, times=500, run_s=5.0)
    node.see(NEAR, times=150, run_s=0.1)
    assert node.expect(NEAR).run_s < 0.3


def test_a_place_of_which_nothing_is_known_is_expected_to_be_like_the_others(node: Node) -> None:
    node.see(NEAR, times=50, run_s=0.7, start_s=0.4)
    expected = node.expect(FAR)
    assert expected.run_s == pytest.approx(0.7, rel=0.1)
    assert expected.start_s == pytest.approx(0.4 * 0.9, rel=0.1)


def test_a_place_that_was_slow_looks_better_with_every_call_that_went_elsewhere(node: Node) -> None:
    node.see(NEAR, times=20, run_s=0.1)
    node.see(FAR, times=20, run_s=3.0)
    before = node.expect(FAR)
    node.see(NEAR, times=20_000, run_s=0.1)
    after = node.expect(FAR)
    assert before.run_s > 2.5
    assert after.run_s < 1.0
    assert after.known < before.known / 10


def test_a_worker_that_is_idle_saves_the_start_unless_it_was_always_gone(node: Node) -> None:
    warm = place("near", warm=2)
    node.see(NEAR, times=30, start_s=1.0)
    assert node.expect(warm).start_s < 0.2 < node.expect(NEAR).start_s
    node.see(warm, times=30, start_s=1.0)
    assert node.expect(warm).start_s > 0.9


def test_a_seat_in_a_busy_worker_saves_the_start_and_the_queue(node: Node) -> None:
    node.see(NEAR, times=30, start_s=1.0)
    expected = node.expect(full("near", seats=1))
    assert expected.start_s < 0.2
    assert expected.queue_s == 0


def test_the_queue_of_a_full_place_is_as_long_as_it_was_for_each_that_waits(node: Node) -> None:
    node.see(full("near", waiting=9), times=50, queue_s=1.0)
    assert node.expect(full("near", waiting=19)).queue_s == pytest.approx(2.0, rel=0.1)
    assert node.expect(NEAR).queue_s == 0


def test_each_class_has_a_queue_of_its_own(node: Node) -> None:
    crowded = full("near", waiting=9)
    for _ in range(50):
        node.call_times.record(demand(qos_class=0), crowded, CallObservation(queue_s=10.0, run_s=0.1))
        node.call_times.record(demand(qos_class=2), crowded, CallObservation(queue_s=0.1, run_s=0.1))
    assert node.expect(crowded, qos_class=0).queue_s > 5
    assert node.expect(crowded, qos_class=2).queue_s < 0.5
    guessed_s = 0.1 / 4 * 10  # ten runs before it, on four cores
    assert node.expect(crowded, qos_class=255).queue_s == pytest.approx(guessed_s)


def test_a_call_that_waited_in_vain_tells_of_the_queue_and_nothing_else(node: Node) -> None:
    node.see(NEAR, times=20, run_s=0.3)
    before = node.expect(NEAR).run_s
    crowded = full("near", waiting=0)
    node.see(crowded, times=20, run_s=None, queue_s=30.0)
    assert node.expect(crowded).queue_s > 25
    assert node.expect(crowded).run_s == before


def test_a_wide_way_and_a_narrow_one_are_told_apart_by_large_calls(node: Node) -> None:
    large = 1_000_000
    for _ in range(30):
        node.call_times.record(demand(), NEAR, CallObservation(run_s=0.1, network_s=NEAR.rtt_s + 0.002))
        node.call_times.record(
            demand(params_bytes=large), NEAR, CallObservation(run_s=0.1, network_s=NEAR.rtt_s + 0.502)
        )
    assert node.expect(NEAR).network_s == pytest.approx(NEAR.rtt_s + 0.002, rel=0.05)
    assert node.expect(NEAR, params_bytes=2 * large).network_s == pytest.approx(1.0, rel=0.1)
    assert node.expect(here(), params_bytes=large).network_s == 0


def test_a_place_that_refuses_is_expected_to_until_it_takes_calls_again(node: Node) -> None:
    for _ in range(5):
        node.call_times.record_refusal(NEAR)
    assert node.expect(NEAR).refusal > 0.7
    assert node.expect(FAR).refusal == 0
    node.see(NEAR, times=60)
    assert node.expect(NEAR).refusal < 0.1


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("field", ["queue_s", "start_s", "run_s", "network_s"])
def test_what_cannot_be_is_passed_over(node: Node, field: str, nonsense: float) -> None:
    node.see(NEAR, times=3)
    before = node.expect(NEAR)
    node.see(NEAR, **{field: nonsense})
    assert node.expect(NEAR) == before


def test_who_was_seen_least_recently_is_forgotten_first() -> None:
    call_times = CallTimeModel(max_functions=10, max_places=5)
    for name in range(30):
        for where in range(20):
            call_times.record(
                demand(function=FunctionName(f"f{name}")), place(f"n{where}"), CallObservation(run_s=0.1)
            )
            call_times.record(demand(function=FunctionName("f0")), place("n0"), CallObservation(run_s=0.1))
    assert len(call_times) == 10 * 5
    assert call_times.predict(demand(function=FunctionName("f0")), place("n0")).known > 1
    assert call_times.predict(demand(function=FunctionName("f29")), place("n19")).known > 0
    assert call_times.predict(demand(function=FunctionName("f29")), place("n1")).known == 0
    assert call_times.predict(demand(function=FunctionName("f1")), place("n19")).known == 0


@given(making.experiences(), making.demands, making.views())
def test_whatever_was_seen_every_expectation_is_a_time(
    call_times: CallTimeModel, ask: CallDemand, view: CandidateView
) -> None:
    for where in (view.here, *view.neighbours, *view.remote):
        if where.could_ever_run(ask):
            expected = call_times.predict(ask, where)
            parts = (expected.queue_s, expected.start_s, expected.run_s, expected.network_s, expected.spread)
            assert all(0 <= part < math.inf for part in parts)
            assert 0 <= expected.refusal <= 1


@pytest.mark.parametrize(
    ("report", "seen"),
    [
        (
            CallReport(CallResult(0.5), 0.7, is_warm=True, queueing_s=0.2),
            CallObservation(0.2, None, 0.5, 0.3),
        ),
        (CallReport(CallResult(0.5), 0.9, init_s=0.4), CallObservation(0.0, 0.4, 0.5, 0.1)),
        (
            CallReport(CallResult(0.0, failure=CallFailure.TIMEOUT), 1.0, queueing_s=1.0),
            CallObservation(1.0, 0.0, None, 0.0),
        ),
    ],
    ids=["warm", "cold", "never began"],
)
def test_a_report_tells_how_a_call_went(report: CallReport, seen: CallObservation) -> None:
    told = observation_of(report, 1.0)
    assert (told.queue_s, told.start_s, told.run_s) == (seen.queue_s, seen.start_s, seen.run_s)
    assert told.network_s == pytest.approx(seen.network_s)

"""Policies in simulation: the same calls for all, and who makes the most of them."""

from __future__ import annotations

import random

import pytest

from skerry.sim.continuum import call_generator
from skerry.sim.continuum.comparison import PolicyResult, compare
from skerry.sim.continuum.sites import Area, ContinuumTopology

SMALL = ContinuumTopology(
    (
        Area("harbour", 2, cpus=2, memory_mb=1024, remote="cloud", share=0.6),
        Area("market", 2, cpus=2, memory_mb=1024, remote="cloud", share=0.4),
        Area("cloud", 1, cpus=6, memory_mb=4096),
    )
)


def outcomes(*policies: str, load: float, seed: int = 1, for_s: float = 5.0) -> dict[str, PolicyResult]:
    tried = compare(policies, SMALL, load=load, for_s=for_s, seed=seed)
    return {outcome.policy: outcome for outcome in tried}


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_at_high_load_qosaware_beats_edgecloud_and_that_beats_default(seed: int) -> None:
    of = outcomes("default", "edgecloud", "qosaware", load=3, seed=seed, for_s=8)
    assert of["default"].utility < of["edgecloud"].utility < of["qosaware"].utility


def test_the_same_seed_is_the_same_day_whatever_else_is_tried() -> None:
    first = outcomes("edgecloud", "qosaware", load=2, for_s=2)
    again = outcomes("qosaware", "edgecloud", load=2, for_s=2)
    assert first == again
    assert first != outcomes("edgecloud", "qosaware", load=2, for_s=2, seed=2)


def test_each_policy_sends_calls_where_it_says() -> None:
    of = outcomes("default", "localonly", "cloudonly", "edgeonly", load=1.5, for_s=3)
    assert of["default"].offloaded == of["localonly"].offloaded == 0
    assert of["cloudonly"].offloaded > of["cloudonly"].calls * 0.9
    assert 0 < of["edgeonly"].offloaded < of["edgeonly"].calls / 2
    assert of["localonly"].dropped > of["default"].dropped


def test_where_there_is_room_for_all_nearly_every_call_is_in_time() -> None:
    for outcome in outcomes("edgecloud", "qosaware", load=0.3, for_s=30).values():
        assert outcome.calls > 100
        assert outcome.utility > 0.95
        assert outcome.dropped == 0
        assert 0 < outcome.p50_s <= outcome.p95_s


def test_a_day_without_calls_is_a_good_one() -> None:
    outcome = outcomes("qosaware", load=1e-6)["qosaware"]
    assert (outcome.calls, outcome.utility, outcome.p95_s) == (0, 1.0, 0.0)


def test_calls_come_as_often_as_the_load_says_and_most_to_the_crowded_node() -> None:
    harbour, market, _ = SMALL.areas
    shares = [*harbour.shares(), *market.shares()]
    calls = call_generator.draw_calls(shares, 8, load=1.5, for_s=1000, chance=random.Random(3))
    work = sum(call.run_s * (call.program.function.cpu or 0) / 1000 for call in calls)
    assert work / 1000 / 8 == pytest.approx(1.5, rel=0.15)
    hot_share = sum(call.node == "harbour-0" for call in calls) / len(calls)
    assert hot_share == pytest.approx(dict(shares)["harbour-0"] / sum(dict(shares).values()), rel=0.1)
    assert [call.at_s for call in calls] == sorted(call.at_s for call in calls)
    assert {call.program.qos_class for call in calls} == {0, 1, 2}

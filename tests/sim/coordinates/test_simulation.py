"""Coordinates of many nodes come to tell round trips, and go on doing so whatever happens."""

from __future__ import annotations

import pytest

from skerry.sim.coordinates.simulation import CoordinateRound, CoordinateScenario, CoordinateSimulation


def rounds(count: int, **plan: float) -> list[CoordinateRound]:
    return list(CoordinateSimulation(CoordinateScenario(**plan)).rounds(count))  # type: ignore[arg-type]  # whole where they must be


def test_a_thousand_nodes_predict_round_trips_although_triangles_are_violated() -> None:
    simulation = CoordinateSimulation(CoordinateScenario(nodes=1000, violated=0.2, jitter=0.2))
    assert simulation.latencies.violated == pytest.approx(0.2, abs=0.005)
    first, *_, last = simulation.rounds(60)
    assert first.median > 0.5
    assert last.median < 0.25
    assert last.p90 < 1.0


@pytest.fixture(scope="module")
def calm() -> list[CoordinateRound]:
    return rounds(80, nodes=150)


def test_at_rest_nodes_hardly_move(calm: list[CoordinateRound]) -> None:
    usual_s = CoordinateSimulation(CoordinateScenario(nodes=150)).usual_rtt_s
    for one in calm[-20:]:
        assert one.median < 0.2
        assert one.moved_s < 0.03 * usual_s
    assert calm[-1].moved_s < calm[0].moved_s / 5


def test_with_nodes_that_come_and_go_the_others_stay_where_they_are(calm: list[CoordinateRound]) -> None:
    """Two of a hundred each round: after these 80 rounds hardly any is as old as the simulation."""
    for one, without in list(zip(rounds(80, nodes=150, churn=0.02), calm, strict=True))[-20:]:
        assert one.median < 0.25
        assert one.moved_s < 5 * without.moved_s


def test_heavy_jitter_does_not_matter_much() -> None:
    for one in rounds(80, nodes=150, jitter=0.6)[-20:]:
        assert one.median < 0.25


def test_liars_do_not_matter_much() -> None:
    """One of ten says from the first round on that it is a second away, and that it is sure of it."""
    for one in rounds(120, nodes=150, liars=0.1)[-20:]:
        assert one.median < 0.25


def test_nobody_is_near_where_every_node_has_an_area_of_its_own() -> None:
    assert rounds(1, nodes=20, areas=100_000)[0].near is None


def test_the_same_plan_gives_the_same_rounds_and_another_seed_others() -> None:
    plan = {"nodes": 30, "churn": 0.1, "liars": 0.1}
    assert rounds(5, **plan) == rounds(5, **plan)
    assert rounds(5, **plan, seed=2) != rounds(5, **plan)

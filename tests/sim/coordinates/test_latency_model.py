"""Networks that do not exist have the shapes that they are said to have."""

from __future__ import annotations

import numpy as np
import pytest

from skerry.sim.coordinates.latency_model import LatencyModel


def drawn(*, nodes: int = 200, areas: int = 6, violated: float = 0.2, seed: int = 1) -> LatencyModel:
    return LatencyModel(nodes, areas, violated, np.random.default_rng(seed))


def test_the_way_back_is_as_long_and_nobody_is_nowhere() -> None:
    usual_s = drawn().usual_s
    assert np.array_equal(usual_s, usual_s.T)
    assert (np.diag(usual_s) == 0).all()
    assert (usual_s[~np.eye(200, dtype=bool)] >= 0.001).all()
    assert usual_s.max() < 10


@pytest.mark.parametrize("violated", [0.0, 0.05, 0.2, 0.3])
def test_as_many_triangles_are_violated_as_was_asked_for(violated: float) -> None:
    assert drawn(violated=violated).violated == pytest.approx(violated, abs=0.005)


def test_triangles_that_were_not_looked_at_are_violated_as_often() -> None:
    usual_s, chance = drawn(violated=0.2).usual_s, np.random.default_rng(9)
    one, other, third = chance.permuted(np.tile(np.arange(200), (20_000, 1)), axis=1)[:, :3].T
    sides = np.sort([usual_s[one, other], usual_s[other, third], usual_s[third, one]], axis=0)
    assert np.mean(sides[2] > sides[0] + sides[1]) == pytest.approx(0.2, abs=0.03)


def test_nodes_of_an_area_are_near_each_other() -> None:
    network = drawn()
    near = network.areas[:, None] == network.areas[None, :]
    apart = ~np.eye(200, dtype=bool)
    assert np.median(network.usual_s[near & apart]) * 5 < np.median(network.usual_s[~near])


def test_a_few_access_links_are_far_slower_than_most() -> None:
    """Within one area what differs is mostly the access link."""
    network = drawn(nodes=500, areas=1, violated=0.0)
    best_s = np.sort(network.usual_s, axis=1)[:, 1]
    assert np.quantile(best_s, 0.99) > 8 * np.median(best_s)


def test_measurements_lie_around_what_is_usual() -> None:
    network = drawn()
    ones, others = np.zeros(20_000, np.int64), np.ones(20_000, np.int64)
    shares = network.measure(ones, others, 0.2, np.random.default_rng(3)) / network.usual_s[0, 1]
    assert np.median(shares) == pytest.approx(1.0, abs=0.01)
    assert np.std(np.log(shares)) == pytest.approx(0.2, abs=0.01)


def test_another_seed_is_another_network_and_the_same_is_the_same() -> None:
    assert np.array_equal(drawn(seed=1).usual_s, drawn(seed=1).usual_s)
    assert not np.array_equal(drawn(seed=1).usual_s, drawn(seed=2).usual_s)

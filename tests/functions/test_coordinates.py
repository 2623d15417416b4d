"""Coordinates: what they predict, what they follow, and what they do not fall for."""

from __future__ import annotations

import math
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from skerry.functions.coordinates import (
    MAX_DISTANCE_S,
    MAX_ERROR,
    MAX_RTT_S,
    MIN_HEIGHT_S,
    START,
    Coordinate,
    Vivaldi,
    distance_s,
    is_sound,
)
from skerry.model.ids import NodeId

PEER = NodeId("peer")

places = st.floats(-MAX_DISTANCE_S, MAX_DISTANCE_S)
sound = st.builds(
    Coordinate,
    st.tuples(places, places, places),
    st.floats(MIN_HEIGHT_S, MAX_DISTANCE_S),
    st.floats(0.0, MAX_ERROR),
)
# Edges are more likely to break things than what lies between them.
EDGES = [0.0, 1e-300, 1.0, MAX_DISTANCE_S, -MAX_DISTANCE_S, 1e300, math.inf, math.nan]
claims = st.sampled_from(EDGES) | st.floats()
anything = st.builds(Coordinate, st.tuples(claims, claims, claims), claims, claims)
peers = st.integers(0, 3).map(lambda number: NodeId(f"n{number}"))
rtts = st.floats(0.0, MAX_RTT_S) | st.sampled_from([0.0, MAX_RTT_S])


def vivaldi(seed: int = 1) -> Vivaldi:
    return Vivaldi(random.Random(seed))


def at(x: float, y: float = 0.0, z: float = 0.0, height: float = 0.001, error: float = 0.1) -> Coordinate:
    return Coordinate((x, y, z), height, error)


def ring(count: int) -> dict[NodeId, Coordinate]:
    """Peers that are sure of their places, up and down around a point some way off the origin."""
    angles = [2 * math.pi * number / count for number in range(count)]
    return {
        NodeId(f"n{number}"): at(
            0.1 + 0.05 * math.cos(angle), 0.05 * math.sin(angle), 0.05 * (number % 3 - 1)
        )
        for number, angle in enumerate(angles)
    }


def settled(home: Coordinate, around: dict[NodeId, Coordinate], rounds: int = 60) -> Vivaldi:
    """A node that has found its place among others."""
    node = vivaldi()
    for _ in range(rounds):
        for peer, place in around.items():
            assert node.observe(peer, place, distance_s(home, place))
    return node


@given(sound, sound)
def test_the_way_back_is_as_long_and_never_shorter_than_the_access_links(
    one: Coordinate, other: Coordinate
) -> None:
    assert distance_s(one, other) == distance_s(other, one) >= one.height + other.height > 0


@given(sound, st.lists(st.tuples(peers, sound, rtts), max_size=60), st.integers())
def test_whatever_is_observed_a_coordinate_stays_sound(
    start: Coordinate, observed: list[tuple[NodeId, Coordinate, float]], seed: int
) -> None:
    node = vivaldi(seed)
    node.coordinate = start
    for peer, place, rtt_s in observed:
        assert node.observe(peer, place, rtt_s)
        assert is_sound(node.coordinate)
        assert node.coordinate.height >= MIN_HEIGHT_S


def test_nobody_is_pushed_over_the_edge() -> None:
    node = vivaldi()
    node.coordinate = at(MAX_DISTANCE_S, -MAX_DISTANCE_S, MAX_DISTANCE_S)
    assert node.observe(PEER, at(MAX_DISTANCE_S - 0.1, 0.1 - MAX_DISTANCE_S, MAX_DISTANCE_S - 0.1), MAX_RTT_S)
    assert is_sound(node.coordinate)


@given(peers, anything, st.floats() | rtts)
def test_what_cannot_be_is_refused_and_changes_nothing(peer: NodeId, place: Coordinate, rtt_s: float) -> None:
    node = vivaldi()
    can_be = is_sound(place) and 0.0 <= rtt_s <= MAX_RTT_S
    assert node.observe(peer, place, rtt_s) == can_be
    assert is_sound(node.coordinate)
    assert can_be or node.coordinate is START


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e9, -1e9])
def test_numbers_out_of_bounds_are_not_sound_anywhere(bad: float) -> None:
    good = at(0.1)
    assert is_sound(good)
    for axis in range(3):
        vector = tuple(bad if axis == one else 0.0 for one in range(3))
        assert not is_sound(Coordinate(vector, good.height, good.error))  # type: ignore[arg-type]  # three
    assert not is_sound(at(0.1, height=bad))
    assert not is_sound(at(0.1, error=bad))


def test_a_height_below_the_least_and_a_negative_error_are_not_sound() -> None:
    assert not is_sound(at(0.1, height=MIN_HEIGHT_S / 2))
    assert not is_sound(at(0.1, error=-0.01))


def test_a_node_starts_at_the_origin_knowing_nothing() -> None:
    assert vivaldi().coordinate == Coordinate((0.0, 0.0, 0.0), 1e-5, 1.5)


def test_two_at_the_same_point_part_in_some_direction() -> None:
    ways = []
    for seed in (1, 2):
        node = vivaldi(seed)
        node.observe(PEER, START, 0.1)
        assert math.hypot(*node.coordinate.vector) > 0.001
        ways.append(node.coordinate.vector)
    assert ways[0] != ways[1]


def test_a_node_finds_its_place_and_is_sure_of_it() -> None:
    home, around = at(0.11, 0.01, 0.01, height=0.004), ring(12)
    node = settled(home, around, rounds=150)
    for place in around.values():
        assert distance_s(node.coordinate, place) == pytest.approx(distance_s(home, place), rel=0.1)
    assert node.coordinate.error < 0.1


def step_s(own_error: float, peer_error: float) -> float:
    """How far a node goes that is wrong by 10 ms."""
    node = vivaldi()
    node.coordinate = at(0.0, error=own_error)
    assert node.observe(PEER, at(0.1, error=peer_error), distance_s(at(0.0), at(0.1)) + 0.01)
    return math.dist(node.coordinate.vector, (0.0, 0.0, 0.0))


def test_who_is_unsure_moves_farther_than_who_is_sure() -> None:
    assert 0 < step_s(0.1, 0.3) < step_s(0.3, 0.3) < step_s(1.0, 0.3)


def test_a_peer_gains_nothing_by_saying_that_it_is_surer_than_can_be() -> None:
    assert step_s(0.4, 0.0) == step_s(0.4, 0.2) > step_s(0.4, 0.4)


def test_even_two_that_are_quite_sure_can_still_move() -> None:
    assert step_s(0.0, 0.0) > 0


def test_a_slow_access_link_shows_as_height() -> None:
    around = ring(12)
    quick, slow = settled(at(0.1, height=0.0005), around), settled(at(0.1, height=0.04), around)
    assert slow.coordinate.height > 0.02 > 0.005 > quick.coordinate.height


def test_one_measurement_that_was_held_up_moves_nothing() -> None:
    home, around = at(0.1), ring(12)
    node = settled(home, around)
    twin = settled(home, around)
    peer, place = next(iter(around.items()))
    node.observe(peer, place, 5.0)
    twin.observe(peer, place, distance_s(home, place))
    assert node.coordinate == twin.coordinate


def test_a_network_that_changed_is_followed() -> None:
    around = ring(12)
    node, moved = settled(at(0.1), around), at(0.1, 0.0, 0.15)
    for _ in range(60):
        for peer, place in around.items():
            node.observe(peer, place, distance_s(moved, place))
    wrong = [
        abs(distance_s(node.coordinate, place) / distance_s(moved, place) - 1) for place in around.values()
    ]
    assert max(wrong) < 0.15


@pytest.mark.parametrize("lie_s", [0.02, 0.1, 1.0, 9.0])
def test_a_few_liars_cannot_drag_a_node_far(lie_s: float) -> None:
    """Three of fifteen agree to say that they are just there where it pulls the node along most."""
    home, around = at(0.1), ring(15)
    node = settled(home, around)
    liars = set(list(around)[::5])
    farthest = 0.0
    for _ in range(300):
        for peer, place in around.items():
            rtt_s = distance_s(home, place)
            if peer in liars:
                x, y, z = node.coordinate.vector
                place = Coordinate((min(x + rtt_s + lie_s, MAX_DISTANCE_S), y, z), MIN_HEIGHT_S, 0.0)
            node.observe(peer, place, rtt_s)
        farthest = max(farthest, math.dist(node.coordinate.vector, home.vector))
    assert farthest < 0.02


def test_a_liar_from_the_first_moment_on_is_outvoted() -> None:
    home, around = at(0.1), ring(15)
    node, liar = vivaldi(), next(iter(around))
    for _ in range(150):
        for peer, place in around.items():
            claim = at(-5.0, 5.0, 5.0, error=0.0) if peer == liar else place
            node.observe(peer, claim, 0.2 if peer == liar else distance_s(home, place))
    assert math.dist(node.coordinate.vector, home.vector) < 0.02


def test_no_step_is_long_whatever_is_claimed() -> None:
    node = vivaldi()
    for place in (at(MAX_DISTANCE_S, error=0.0), at(-MAX_DISTANCE_S, error=0.0)):
        before = node.coordinate
        node.observe(PEER, place, 0.01)
        assert math.dist(before.vector, node.coordinate.vector) <= 0.051


def test_what_drifts_off_is_drawn_back() -> None:
    """Two nodes that are content with each other but far from the origin."""
    nodes = {NodeId("a"): vivaldi(1), NodeId("b"): vivaldi(2)}
    one, other = nodes.values()
    one.coordinate, other.coordinate = at(5.0), at(5.05)
    rtt_s = distance_s(one.coordinate, other.coordinate)
    for _ in range(1000):
        one.observe(NodeId("b"), other.coordinate, rtt_s)
        other.observe(NodeId("a"), one.coordinate, rtt_s)
    assert 0.5 < one.coordinate.vector[0] < 4.5
    assert distance_s(one.coordinate, other.coordinate) == pytest.approx(rtt_s, rel=0.1)


def test_only_so_many_peers_are_remembered() -> None:
    node = vivaldi()
    for number in range(5_000):
        assert node.observe(NodeId(f"n{number}"), at(0.1), 0.1)
    assert len(node._rtts) <= 256
    assert len(node._misses) == len(node._ranked) <= 31

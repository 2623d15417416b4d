"""Large fleets: hundreds of nodes, and the sizes as shipped at which a fleet is searched in another way."""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.model.ids import InstanceId, NodeId
from skerry.schedule.requests import NodeView, PlacementPolicy, PlacementRequest
from skerry.schedule.results import Placement, PlacementFailure
from skerry.schedule.scheduler import COLUMNAR_FROM, LINEAR_BELOW, Scheduler
from tests.schedule.making import node, request

ZONES = ("edge", "cloud")


def random_view(chance: random.Random, number: int) -> NodeView:
    return node(
        f"n{number}",
        chance.choice([1000, 4000, 8000]),
        chance.choice([2048, 8192]),
        chance.choice([0, 50]),
        architecture=chance.choice(["amd64", "amd64", "arm64"]),
        unschedulable_reason=chance.choice(["", "", "", "", "is cordoned"]),
        addresses=chance.choice([1, 4, 253]),
        zone=chance.choice(ZONES),
    )


def random_ask(chance: random.Random, number: int) -> PlacementRequest:
    return request(
        f"i{number}",
        chance.choice([0, 100, 1000, 5000, 9000]),
        chance.choice([0, 128, 2048]),
        chance.choice([0, 0, 5]),
        *chance.choice([(), (), ("zone=edge",), ("zone!=edge", "zone=cloud")]),
        published=chance.choice(["", "", "80", "80 443"]),
        architecture=chance.choice(["", "", "arm64"]),
    )


def changes(chance: random.Random, size: int) -> Iterator[NodeView | NodeId | PlacementRequest | InstanceId]:
    """A fleet of `size` nodes comes, fills up, and half of it leaves again with what it has."""
    for number in range(size):
        yield random_view(chance, number)
        yield random_ask(chance, number)
    for number in range(size, 2 * size):
        yield random_ask(chance, number)
        if chance.random() < 0.3:
            yield InstanceId(f"i{chance.randrange(number)}")
        if chance.random() < 0.1:
            yield random_view(chance, chance.randrange(size))
    for number in chance.sample(range(size), size // 2):
        yield NodeId(f"n{number}")
        yield random_ask(chance, 2 * size + number)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(COLUMNAR_FROM - 2, COLUMNAR_FROM + 60))
def test_a_large_fleet_answers_as_a_plain_one_while_it_grows_fills_and_shrinks(seed: int, size: int) -> None:
    chance = random.Random(seed)
    plain, shipped = Scheduler(columnar_from=1_000_000), Scheduler()
    kinds = set()
    for change in changes(chance, size):
        for fleet in (plain, shipped):
            apply(fleet, change)
        if isinstance(change, PlacementRequest):
            policy = chance.choice(list(PlacementPolicy))
            answer = plain.place(change, policy)
            assert shipped.place(change, policy) == answer
            kinds.add((type(answer), shipped.has_columns))
            if isinstance(answer, Placement):
                for fleet in (plain, shipped):
                    fleet.bind(answer.node, change)
    assert {(Placement, False), (PlacementFailure, False)} <= kinds
    if size >= COLUMNAR_FROM:
        assert {(Placement, True), (PlacementFailure, True)} <= kinds
    assert not plain.has_columns


def apply(fleet: Scheduler, change: NodeView | NodeId | PlacementRequest | InstanceId) -> None:
    match change:
        case NodeView():
            fleet.set_node(change)
        case str() if change.startswith("n"):
            fleet.remove_node(NodeId(change))
        case str():
            fleet.unbind(InstanceId(change))


def test_the_sizes_at_which_the_search_changes_lie_apart() -> None:
    assert LINEAR_BELOW < COLUMNAR_FROM
    fleet = Scheduler()
    for number in range(COLUMNAR_FROM):
        fleet.set_node(node(f"n{number}"))
    assert fleet.has_columns
    for _ in range(3):
        fleet.remove_node(NodeId("n0"))
        assert fleet.has_columns
        fleet.set_node(node("n0"))
    for number in range(COLUMNAR_FROM - LINEAR_BELOW):
        fleet.remove_node(NodeId(f"n{number}"))
    assert not fleet.has_columns

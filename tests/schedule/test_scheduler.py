"""Which node is taken, by both ways of searching."""

from __future__ import annotations

from collections import Counter

import pytest

from skerry.model.ids import InstanceId, NodeId
from skerry.schedule.explanations import describe_failure
from skerry.schedule.requests import NodeView, PlacementPolicy
from skerry.schedule.results import Placement, PlacementFailure
from skerry.schedule.scheduler import Scheduler
from tests.schedule.making import fleet_of, node, put, request

BINPACK, SPREAD = PlacementPolicy.BINPACK, PlacementPolicy.SPREAD


@pytest.fixture(params=[False, True], ids=["plain", "columns"], name="columns")
def _columns(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_binpack_takes_the_fullest_node_that_has_room(columns: bool) -> None:
    fleet = fleet_of(node("a", 4000), node("b", 4000), node("c", 4000), searched_by_columns=columns)
    fleet.bind(NodeId("b"), request("one", 1000))
    fleet.bind(NodeId("c"), request("two", 3500))
    assert put(fleet, request("web", 1000)) == "b"
    assert put(fleet, request("small", 500)) == "c"


def test_spread_takes_the_emptiest_node(columns: bool) -> None:
    fleet = fleet_of(node("a", 4000), node("b", 4000), node("c", 8000), searched_by_columns=columns)
    fleet.bind(NodeId("a"), request("one", 1000))
    fleet.bind(NodeId("c"), request("two", 1500))
    assert [put(fleet, request(f"i{number}", 1000), SPREAD) for number in range(4)] == ["b", "c", "a", "b"]


def test_a_node_short_of_one_part_counts_as_full_however_much_it_has_of_the_others(columns: bool) -> None:
    fleet = fleet_of(node("a", 4000, 4000), node("b", 4000, 4000), searched_by_columns=columns)
    fleet.bind(NodeId("a"), request("one", 1800, 1800))
    fleet.bind(NodeId("b"), request("two", 100, 3600))
    assert put(fleet, request("web", 100, 100)) == "b"


@pytest.mark.parametrize("policy", [BINPACK, SPREAD])
def test_of_equals_the_first_by_id_is_taken_whatever_the_order_of_coming(
    columns: bool, policy: PlacementPolicy
) -> None:
    for order in ("abc", "cba", "bac"):
        fleet = fleet_of(*(node(name) for name in order), searched_by_columns=columns)
        assert put(fleet, request("web", 100), policy) == "a"


def test_a_node_that_has_exactly_enough_is_taken_and_then_full(columns: bool) -> None:
    fleet = fleet_of(node("a", 1000, 1000, 10), searched_by_columns=columns)
    assert put(fleet, request("web", 1000, 1000, 10)) == "a"
    for more in (request("x", 1), request("x", 0, 1), request("x", 0, 0, 1)):
        assert isinstance(fleet.place(more, BINPACK), PlacementFailure)
    assert put(fleet, request("nothing")) == "a"


def test_a_node_without_a_disk_is_taken_by_what_wants_none(columns: bool) -> None:
    """A share of nothing is no number to compare with; such a node must neither vanish nor win for it."""
    fleet = fleet_of(node("a", 4000, 4096, 0), node("b", 4000, 4096, 100), searched_by_columns=columns)
    fleet.bind(NodeId("b"), request("one", 1000))
    assert put(fleet, request("web", 500)) == "b"
    fleet.remove_node(NodeId("b"))
    assert put(fleet, request("other", 500)) == "a"
    assert isinstance(fleet.place(request("third", 0, 0, 1), BINPACK), PlacementFailure)


@pytest.mark.parametrize("policy", [BINPACK, SPREAD])
def test_instances_that_ask_for_nothing_are_spread(columns: bool, policy: PlacementPolicy) -> None:
    fleet = fleet_of(*(node(name) for name in "abc"), searched_by_columns=columns)
    taken = Counter(put(fleet, request(f"i{number}"), policy) for number in range(12))
    assert taken == {"a": 4, "b": 4, "c": 4}


def test_replicas_are_spread_over_the_values_of_a_label_before_nodes(columns: bool) -> None:
    zones = {"a": "east", "b": "east", "c": "east", "d": "west"}
    fleet = fleet_of(*(node(name, zone=zone) for name, zone in zones.items()), searched_by_columns=columns)
    where = [put(fleet, request(f"i{n}", 100, group="shop", spread=("zone",))) for n in range(6)]
    assert [zones[name] for name in where] == ["east", "west", "east", "west", "east", "west"]
    assert where[::2] == ["a", "b", "c"]


def test_no_node_gets_more_replicas_of_a_group_than_it_may_have_and_says_so(columns: bool) -> None:
    fleet = fleet_of(node("a", 9000), node("b", 9000), searched_by_columns=columns)
    for number in range(4):
        put(fleet, request(f"i{number}", 100, group="shop", max_per_node=2))
    failure = fleet.place(request("fifth", 100, group="shop", max_per_node=2), BINPACK)
    assert isinstance(failure, PlacementFailure)
    assert describe_failure(failure) == "2 nodes: has 2 of its replicas, and no node may have more"
    assert put(fleet, request("other", 100, group="desk", max_per_node=2)) == "a"
    fleet.unbind(InstanceId("i0"))
    assert put(fleet, request("fifth", 100, group="shop", max_per_node=2)) == "a"


@pytest.mark.parametrize("policy", PlacementPolicy)
def test_copies_of_a_workload_go_to_nodes_with_the_fewest_of_them_first(
    columns: bool, policy: PlacementPolicy
) -> None:
    fleet = fleet_of(node("a", 4000), node("b", 8000), node("c", 1000), searched_by_columns=columns)
    where = [put(fleet, request(f"copy{n}", 300, group="shop"), policy) for n in range(9)]
    assert [sorted(where[at : at + 3]) for at in (0, 3, 6)] == [["a", "b", "c"]] * 3
    # `c` is full: among the others there are no fewer copies than three, so the policy decides.
    assert put(fleet, request("tenth", 300, group="shop"), policy) == (
        "a" if policy is PlacementPolicy.BINPACK else "b"
    )


def test_copies_of_another_workload_or_of_none_do_not_count(columns: bool) -> None:
    fleet = fleet_of(node("a"), node("b"), searched_by_columns=columns)
    assert put(fleet, request("one", 100, group="shop")) == "a"
    assert put(fleet, request("two", 100, group="desk")) == "a"
    assert put(fleet, request("three", 100)) == "a"
    assert put(fleet, request("four", 100, group="shop")) == "b"


def test_a_copy_that_left_counts_no_more(columns: bool) -> None:
    fleet = fleet_of(node("a"), node("b"), searched_by_columns=columns)
    for name in ("one", "two"):
        put(fleet, request(name, 100, group="shop"))
    fleet.unbind(InstanceId("one"))
    assert put(fleet, request("three", 100, group="shop")) == "a"
    fleet.remove_node(NodeId("a"))
    assert put(fleet, request("four", 100, group="shop")) == "b"
    fleet.set_node(node("a"))
    assert put(fleet, request("five", 100, group="shop")) == "a"


def test_a_port_that_is_taken_sends_a_copy_to_a_node_with_more_of_them(columns: bool) -> None:
    fleet = fleet_of(node("a"), node("b"), searched_by_columns=columns)
    fleet.bind(NodeId("b"), request("web", published="80"))
    fleet.bind(NodeId("a"), request("first", group="shop"))
    assert put(fleet, request("second", 100, published="80", group="shop")) == "a"


def test_a_node_takes_no_more_instances_than_it_has_addresses(columns: bool) -> None:
    fleet = fleet_of(node("a", addresses=2), searched_by_columns=columns)
    put(fleet, request("one"))
    put(fleet, request("two"))
    assert isinstance(fleet.place(request("three"), SPREAD), PlacementFailure)
    fleet.unbind(InstanceId("one"))
    assert put(fleet, request("three")) == "a"


@pytest.mark.parametrize(
    ("view", "taken"),
    [
        (node("a", unschedulable_reason="is cordoned"), "b"),
        (node("a", architecture="arm64"), "b"),
        (node("a", zone="cloud"), "b"),
        (node("a", zone="edge", speed="slow"), "b"),
        (node("a", zone="edge"), "a"),
    ],
)
def test_only_nodes_that_every_filter_lets_through_are_taken(
    columns: bool, view: NodeView, taken: str
) -> None:
    fleet = fleet_of(view, node("b", zone="edge", speed="fast"), searched_by_columns=columns)
    wanted = request("web", 100, 0, 0, "zone=edge", "speed!=slow", architecture="amd64")
    assert put(fleet, wanted) == taken


def test_a_node_that_changes_its_labels_is_seen_as_it_is_now(columns: bool) -> None:
    fleet = fleet_of(node("a", zone="edge"), node("b"), searched_by_columns=columns)
    wanted = request("web", 100, 0, 0, "zone=edge")
    assert put(fleet, wanted) == "a"
    fleet.set_node(node("a", zone="cloud"))
    fleet.set_node(node("b", zone="edge"))
    assert put(fleet, wanted) == "b"
    fleet.set_node(node("aa", zone="edge"))
    fleet.remove_node(NodeId("b"))
    assert put(fleet, wanted) == "aa"


def test_a_popular_port_is_found_free_wherever_it_is(columns: bool) -> None:
    names = [f"n{number:02}" for number in range(40)]
    fleet = fleet_of(*(node(name) for name in names), searched_by_columns=columns)
    took = [put(fleet, request(f"i{number}", 10, published="8080 8443")) for number in range(40)]
    assert sorted(took) == names
    assert isinstance(fleet.place(request("late", 10, published="8080"), BINPACK), PlacementFailure)
    fleet.unbind(InstanceId("i33"))
    assert put(fleet, request("late", 10, published="8443")) == took[33]
    fleet.set_node(node("n99"))
    assert put(fleet, request("later", 10, published="8080 8443")) == "n99"


def test_more_kinds_and_ports_than_are_remembered_are_still_told_apart() -> None:
    fleet = fleet_of(
        *(node(f"n{number}", rack=str(number)) for number in range(100)), searched_by_columns=True
    )
    for _ in range(2):
        for number in range(100):
            wanted = request("web", 1, 0, 0, f"rack={number}", published=str(1000 + number))
            placement = fleet.place(wanted, BINPACK)
            assert isinstance(placement, Placement)
            assert placement.node == f"n{number}"


def test_the_score_says_how_well_the_node_suited() -> None:
    fleet = fleet_of(node("a", 1000, 1000, 10))
    empty = fleet.place(request("web", 100), SPREAD)
    assert empty == Placement(NodeId("a"), 1.0)
    fleet.bind(NodeId("a"), request("half", 500))
    packed, spread = (fleet.place(request("web", 100), policy) for policy in (BINPACK, SPREAD))
    assert isinstance(packed, Placement)
    assert isinstance(spread, Placement)
    assert packed.score == pytest.approx(0.5, abs=0.01)
    assert packed.score + spread.score == 1


def test_a_fleet_never_goes_over_room_while_it_fills_up(columns: bool) -> None:
    fleet = fleet_of(
        *(node(f"n{number}", 1000, 1000, 10) for number in range(5)), searched_by_columns=columns
    )
    placed = 0
    for number in range(100):
        wanted = request(f"i{number}", 130, 90 + number, 1)
        placement = fleet.place(wanted, BINPACK)
        if isinstance(placement, Placement):
            assert fleet.free(placement.node).fits(wanted.resources)
            fleet.bind(placement.node, wanted)
            placed += 1
    assert 25 <= placed <= 35


def test_columns_are_taken_up_when_there_are_many_nodes_and_left_when_there_are_few() -> None:
    fleet = Scheduler(columnar_from=6, linear_below=3)
    searches = []
    for number in range(8):
        fleet.set_node(node(f"n{number}"))
        searches.append(fleet.has_columns)
    for number in range(8):
        fleet.remove_node(NodeId(f"n{number}"))
        searches.append(fleet.has_columns)
    assert searches == [False] * 5 + [True] * 7 + [False] * 4

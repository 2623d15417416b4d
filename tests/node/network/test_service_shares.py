"""Shares of copies: only ready ones, near ones first, and nobody is drowned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from skerry.model.ids import InstanceId, NodeId
from skerry.model.network_objects import EndpointState, NodeLocation, ServiceEndpoint
from skerry.node.network.service_shares import HEADROOM, OWN_NODE, NodeSurroundings, weights

NODES = [f"n{number}" for number in range(6)]
PLACES = st.dictionaries(st.sampled_from(NODES), st.sampled_from(["", "home", "cloud"]), min_size=1)
COPIES = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(EndpointState)), max_size=12)


def copies(*placed: tuple[str, EndpointState]) -> list[ServiceEndpoint]:
    return [
        ServiceEndpoint(InstanceId(f"i{number}"), NodeId(node), f"10.64.0.{number + 2}", state)
        for number, (node, state) in enumerate(placed)
    ]


def ready(*nodes: str) -> list[ServiceEndpoint]:
    return copies(*((node, EndpointState.READY) for node in nodes))


def surroundings(
    areas: Mapping[str, str], node: str = "n0", trips: Mapping[str, float] | None = None
) -> NodeSurroundings:
    locations = [NodeLocation(NodeId(each), each, area) for each, area in areas.items()]
    return NodeSurroundings.of(NodeId(node), locations, (trips or {}).get)


def by_node(placed: list[ServiceEndpoint], here: NodeSurroundings) -> dict[str, float]:
    """The share of each node with copies."""
    found = weights(placed, here)
    shares: Counter[str] = Counter()
    for each in placed:
        shares[each.node] += found.get(each.address, 0)  # type: ignore[assignment]
    return {node: share / sum(found.values()) for node, share in shares.items()}


@given(PLACES, COPIES, st.sampled_from(NODES))
def test_only_ready_copies_have_a_share_and_somebody_has_if_one_is_ready(areas, placed, node) -> None:
    endpoints = copies(*placed)
    found = weights(endpoints, surroundings(areas, node))
    open_to_new = {each.address for each in endpoints if each.state is EndpointState.READY}
    assert found.keys() <= open_to_new
    assert bool(found) == bool(open_to_new)
    assert all(weight >= 1 for weight in found.values())


@given(PLACES, COPIES, st.sampled_from(NODES))
def test_every_ready_copy_has_a_share_on_all_nodes_of_its_area(areas, placed, node) -> None:
    endpoints = copies(*placed)
    found = weights(endpoints, surroundings(areas, node))
    for each in endpoints:
        is_near = each.node == node or (node in areas and areas.get(each.node) == areas[node])
        if is_near and each.state is EndpointState.READY:
            assert each.address in found


@given(PLACES, COPIES, st.sampled_from(NODES))
def test_a_copy_beside_the_client_gets_at_most_four_times_the_share_of_others_in_the_area(
    areas, placed, node
) -> None:
    endpoints = copies(*placed)
    found = weights(endpoints, surroundings(areas, node))
    near = [
        found[each.address]
        for each in endpoints
        if each.address in found
        and (each.node == node or (node in areas and areas.get(each.node) == areas[node]))
    ]
    if near:
        assert max(near) <= OWN_NODE * (min(near) + 1)  # both are rounded


def test_copies_of_one_area_are_shared_and_the_own_node_is_preferred() -> None:
    here = surroundings({"n0": "home", "n1": "home", "n2": "home"})
    assert weights(ready("n1", "n2"), here) == {"10.64.0.2": 1, "10.64.0.3": 1}
    assert weights(ready("n0", "n1", "n2"), here) == {"10.64.0.2": 4, "10.64.0.3": 1, "10.64.0.4": 1}


def test_connections_stay_in_the_area_while_its_copies_can_bear_them() -> None:
    areas = {"n0": "home", "n1": "cloud", "n2": "cloud", "n3": "cloud"}
    here = surroundings(areas)
    assert by_node(ready("n0", "n1", "n2", "n3"), here) == {"n0": 1.0, "n1": 0.0, "n2": 0.0, "n3": 0.0}
    # The cloud's nodes keep to theirs, too.
    assert by_node(ready("n0", "n1"), surroundings(areas, "n1"))["n0"] == 0.0


def test_what_an_area_cannot_bear_spills_over() -> None:
    """Half of the nodes have a tenth of the copies."""
    areas = {"n0": "home", "n1": "home", "n2": "cloud", "n3": "cloud"}
    shares = by_node(
        ready("n0", *["n2", "n3", "n2", "n3", "n2", "n3", "n2", "n3", "n2"]), surroundings(areas)
    )
    assert abs(shares["n0"] - HEADROOM * 0.1 / 0.5) < 0.01
    assert abs(sum(shares.values()) - 1.0) < 1e-9


def test_without_a_ready_copy_in_the_area_the_nearest_others_take_over() -> None:
    areas = {"n0": "home", "n1": "cloud", "n2": "far", "n3": "moon"}
    assert by_node(ready("n1", "n2"), surroundings(areas)) == {"n1": 0.5, "n2": 0.5}
    near = surroundings(areas, trips={"n1": 0.010, "n2": 0.200})
    shares = by_node(ready("n1", "n2", "n3"), near)
    assert shares["n1"] > shares["n2"] > 0.0
    assert shares["n3"] == 0.0  # nobody knows how far it is
    assert by_node(ready("n1", "n2"), near) == {"n1": 1.0, "n2": 0.0}


def test_small_changes_of_a_round_trip_change_nothing() -> None:
    areas = {"n0": "home", "n1": "cloud", "n2": "far"}
    assert surroundings(areas, trips={"n1": 0.0101}) == surroundings(areas, trips={"n1": 0.0147})


def test_a_copy_to_which_no_packet_gets_has_no_share_unless_there_is_no_other() -> None:
    areas = {NodeId(node): "" for node in ("n0", "n1", "n2")}
    here = NodeSurroundings(NodeId("n0"), areas, unreachable=frozenset([NodeId("n1")]))
    shares = by_node(ready("n0", "n1", "n2"), here)
    assert [node for node, share in shares.items() if share] == ["n0", "n2"]
    assert by_node(ready("n1"), here) == {"n1": 1.0}

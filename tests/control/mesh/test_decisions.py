"""Paths through the mesh: what holds for every graph of links."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.control.mesh import decisions
from skerry.control.mesh.decisions import MeshGraph
from skerry.model.ids import NodeId
from skerry.model.mesh import MAX_ENDPOINTS, MeshLink, MeshNode

KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="


def nodes_of(count: int) -> list[NodeId]:
    return [NodeId(f"n{number}") for number in range(count)]


def graph_of(
    nodes: Collection[NodeId],
    up: Collection[tuple[NodeId, NodeId]],
    *,
    down: Collection[tuple[NodeId, NodeId]] = (),
    live: Collection[NodeId] | None = None,
    relays: Collection[NodeId] | None = None,
    public: Collection[NodeId] = (),
) -> MeshGraph:
    """Both ends of each link say the same."""
    links: dict[NodeId, dict[NodeId, MeshLink]] = {node: {} for node in nodes}
    for pairs, is_up in ((up, True), (down, False)):
        for one, other in pairs:
            links[one][other] = MeshLink(other, is_up)
            links[other][one] = MeshLink(one, is_up)
    return MeshGraph(
        nodes, links, nodes if live is None else live, nodes if relays is None else relays, public
    )


@st.composite
def graphs(draw: st.DrawFn) -> MeshGraph:
    nodes = nodes_of(draw(st.integers(1, 9)))
    pairs = list(combinations(nodes, 2))
    up = [pair for pair in pairs if draw(st.booleans())]
    relays = {node for node in nodes if draw(st.integers(0, 3))}
    public = {node for node in nodes if draw(st.booleans())}
    return graph_of(nodes, up, relays=relays, public=public)


def reachable(graph: MeshGraph, source: NodeId) -> set[NodeId]:
    """By links, where only relays forward."""
    found, queue = {source}, deque([source])
    while queue:
        at = queue.popleft()
        if at != source and at not in graph.relays:
            continue
        for other in graph.nodes:
            if other not in found and decisions.link_state(graph, at, other):
                found.add(other)
                queue.append(other)
    return found - {source}


Hops = Mapping[NodeId, Mapping[NodeId, NodeId]]


@given(graphs())
def test_exactly_the_nodes_that_links_and_relays_connect_have_a_path(graph: MeshGraph) -> None:
    hops = decisions.decide_next_hops(graph)
    for node in graph.nodes:
        assert hops[node].keys() == reachable(graph, node)


@given(graphs())
def test_no_path_has_a_loop_and_every_node_on_it_relays_and_is_linked_to_the_next(graph: MeshGraph) -> None:
    hops = decisions.decide_next_hops(graph)
    for one, other in permutations(graph.nodes, 2):
        if other not in hops[one]:
            continue
        between = decisions.path(hops, one, other)
        whole = [one, *between, other]
        assert len(set(whole)) == len(whole)
        assert set(between) <= set(graph.relays)
        assert all(decisions.link_state(graph, near, far) for near, far in pairwise(whole))


@given(graphs())
def test_the_way_back_is_the_way_there_which_is_what_wireguard_accepts(graph: MeshGraph) -> None:
    hops = decisions.decide_next_hops(graph)
    for one, other in combinations(graph.nodes, 2):
        if other in hops[one]:
            assert decisions.path(hops, one, other) == decisions.path(hops, other, one)[::-1]


@given(graphs())
def test_linked_nodes_use_their_link(graph: MeshGraph) -> None:
    hops = decisions.decide_next_hops(graph)
    for one, other in permutations(graph.nodes, 2):
        if decisions.link_state(graph, one, other):
            assert hops[one][other] == other


@given(graphs(), st.randoms())
def test_the_order_of_nodes_makes_no_difference(graph: MeshGraph, random: object) -> None:
    shuffled = list(graph.nodes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert decisions.decide_next_hops(graph._replace(nodes=shuffled)) == decisions.decide_next_hops(graph)


def test_a_public_relay_is_preferred_to_one_behind_nat() -> None:
    a, b, *relays = nodes_of(10)
    links = [(end, relay) for relay in relays for end in (a, b)]
    for chosen in relays:
        hops = decisions.decide_next_hops(graph_of([a, b, *relays], links, public={chosen}))
        assert decisions.path(hops, a, b) == [chosen]


def test_when_a_relay_fails_only_its_pairs_get_another() -> None:
    far, near = nodes_of(12)[:6], nodes_of(12)[6:9]
    relays = nodes_of(12)[9:]
    links = [(end, relay) for relay in relays for end in (*far, *near)]
    nodes = [*far, *near, *relays]
    before = decisions.decide_next_hops(graph_of(nodes, links))
    lost = decisions.path(before, far[0], near[0])[0]
    after = decisions.decide_next_hops(graph_of(nodes, [pair for pair in links if lost not in pair]))
    for one in far:
        for other in near:
            was, now = decisions.path(before, one, other), decisions.path(after, one, other)
            assert lost not in now
            assert was == now or lost in was


@pytest.mark.parametrize(
    ("mine", "theirs", "live", "state"),
    [
        (None, None, "ab", None),
        (True, None, "ab", True),
        (True, True, "ab", True),
        (True, False, "ab", False),
        (True, False, "a", True),  # the other says what was before it was away
        (True, False, "b", False),
        (True, True, "", True),  # the last that is known
        (False, None, "", False),
    ],
)
def test_a_link_is_up_if_no_live_end_says_otherwise(
    mine: bool | None, theirs: bool | None, live: str, state: bool | None
) -> None:
    a, b = NodeId("a"), NodeId("b")
    links = {a: {b: MeshLink(b, mine)}, b: {a: MeshLink(a, theirs)}}
    graph = MeshGraph([a, b], links, set(live), [], [])
    assert decisions.link_state(graph, a, b) is state


def node(*addresses: str, endpoints: tuple[str, ...] = ()) -> MeshNode:
    return MeshNode(NodeId("n"), KEY, 51825, addresses, endpoints)


def test_endpoints_are_tried_from_the_most_to_the_least_likely() -> None:
    found = decisions.candidate_endpoints(
        node("10.0.0.5", "192.168.1.7", "2001:db8::7", endpoints=("203.0.113.9:4000",)),
        "198.51.100.7",
        ["198.51.100.7:33333"],
        near=["192.168.1.9"],
    )
    assert found == (
        "203.0.113.9:4000",
        "192.168.1.7:51825",
        "198.51.100.7:51825",
        "198.51.100.7:33333",
        "10.0.0.5:51825",
    )


def test_global_ipv6_addresses_come_before_translated_ones_if_both_ends_have_one() -> None:
    there = node("192.168.1.7", "2001:db8::7", "fd00::7")
    seen = ["198.51.100.7:33333"]
    found = decisions.candidate_endpoints(there, "198.51.100.7", seen, near=["192.168.9.9", "2600::1"])
    assert found == (
        "198.51.100.7:51825",
        "[2001:db8::7]:51825",
        "198.51.100.7:33333",
        "192.168.1.7:51825",
        "[fd00::7]:51825",
    )
    without = decisions.candidate_endpoints(there, "198.51.100.7", seen, near=["192.168.9.9", "fd00:1::1"])
    assert "[2001:db8::7]:51825" not in without


@pytest.mark.parametrize(
    "observed", ["", "unix", "127.0.0.1", "::1", "0.0.0.0", "169.254.1.1", "example.org"]
)
def test_an_address_that_nobody_can_dial_is_no_endpoint(observed: str) -> None:
    assert decisions.candidate_endpoints(node("10.0.0.5"), observed, []) == ("10.0.0.5:51825",)


def test_there_are_no_more_endpoints_than_a_node_may_have() -> None:
    seen = [f"198.51.100.{number}:5" for number in range(50)]
    assert len(decisions.candidate_endpoints(node("10.0.0.5"), "", seen)) == MAX_ENDPOINTS


def test_a_node_is_public_if_it_is_seen_at_its_own_address_or_says_so() -> None:
    assert decisions.is_public(node("198.51.100.7"), "198.51.100.7")
    assert not decisions.is_public(node("192.168.1.7"), "198.51.100.7")
    assert decisions.is_public(node("192.168.1.7", endpoints=("198.51.100.7:1",)), "198.51.100.7")

"""Why not: every node speaks, every filter says no in words and in numbers, and the count adds up."""

from __future__ import annotations

import msgspec
import pytest

from skerry.model.ids import InstanceId, NodeId
from skerry.model.ports import Protocol
from skerry.schedule import explanations
from skerry.schedule.requests import NodeView, PlacementPolicy, PlacementRequest
from skerry.schedule.results import (
    AddressesExhausted,
    ArchitectureMismatch,
    ChecksUnsupported,
    ConstraintMismatch,
    FeatureMissing,
    InsufficientResources,
    NodeFeasibility,
    NodeMismatch,
    OwnNodeRequired,
    PlacementFailure,
    PortConflict,
    Rejection,
    RejectionCount,
    Unschedulable,
)
from tests.schedule.making import fleet_of, node, request, resources


@pytest.mark.parametrize(
    ("view", "wanted", "rejection", "words"),
    [
        (
            node("a", 500, 64, 0),
            request("web", 1000, 128, 0),
            InsufficientResources(resources(500, 64, 0), resources(500, 64, 0)),
            "lacks 500 milli-cores of cpu, 64 MB of memory (free: 500 milli-cores of cpu, 64 MB of memory)",
        ),
        (
            node("a", 0, 0, 0),
            request("web", 0, 0, 3),
            InsufficientResources(resources(0, 0, 3), resources()),
            "lacks 3 GB of disk (free: nothing)",
        ),
        (
            node("a", architecture="arm64"),
            request("web", architecture="amd64"),
            ArchitectureMismatch("arm64", "amd64"),
            "architecture is arm64, amd64 is wanted",
        ),
        (
            node("a", architecture=""),
            request("web", architecture="amd64"),
            ArchitectureMismatch("", "amd64"),
            "architecture is unknown, amd64 is wanted",
        ),
        (
            msgspec.structs.replace(node("a"), is_borrowed=True),
            request("web", published="8080:80"),
            OwnNodeRequired(),
            "is borrowed, and takes nothing that publishes ports or is lent on",
        ),
        (
            msgspec.structs.replace(node("a"), runs_checks=False),
            msgspec.structs.replace(request("web"), needs_checks=True),
            ChecksUnsupported(),
            "runs no health checks; upgrade Skerry there",
        ),
        (
            node("a"),
            msgspec.structs.replace(request("web"), node="edge-1"),
            NodeMismatch("edge-1"),
            "is not node edge-1",
        ),
        (
            node("a"),
            msgspec.structs.replace(request("web"), features=("init",)),
            FeatureMissing("init"),
            "has no init program for containers; install catatonit there",
        ),
        (
            node("a"),
            msgspec.structs.replace(request("web"), features=("options",)),
            FeatureMissing("options"),
            "does not know the options that it has; upgrade Skerry there",
        ),
        (
            node("a"),
            msgspec.structs.replace(request("web"), features=("later",)),
            FeatureMissing("later"),
            "does not have the feature later; upgrade Skerry there",
        ),
        (
            node("a", zone="cloud"),
            request("web", 0, 0, 0, "zone=edge"),
            ConstraintMismatch("zone", "cloud", "edge", is_equal=True),
            'label zone is "cloud", "edge" is wanted',
        ),
        (
            node("a"),
            request("web", 0, 0, 0, "zone=edge"),
            ConstraintMismatch("zone", "", "edge", is_equal=True),
            'label zone is not set, "edge" is wanted',
        ),
        (
            node("a", speed="slow"),
            request("web", 0, 0, 0, "speed!=slow"),
            ConstraintMismatch("speed", "slow", "slow", is_equal=False),
            'label speed is "slow", which is not wanted',
        ),
        (
            node("a", zone="cloud"),
            request("web", 0, 0, 0, "zone="),
            ConstraintMismatch("zone", "cloud", "", is_equal=True),
            'label zone is "cloud", none is wanted',
        ),
        (
            node("a", unschedulable_reason="is cordoned"),
            request("web"),
            Unschedulable("is cordoned"),
            "is cordoned",
        ),
        (
            node("a", addresses=0),
            request("web"),
            AddressesExhausted(0),
            "has no address left (all 0 are taken)",
        ),
    ],
)
def test_a_filter_that_says_no_says_why(
    view: NodeView, wanted: PlacementRequest, rejection: Rejection, words: str
) -> None:
    [feasibility] = fleet_of(view).explain(wanted)
    assert feasibility.rejections == (rejection,)
    assert (
        explanations.describe_rejection(rejection) == explanations.describe_feasibility(feasibility) == words
    )


def test_a_port_that_is_taken_names_the_holder() -> None:
    fleet = fleet_of(node("a"))
    fleet.bind(NodeId("a"), request("x", published="8080:80"))
    [feasibility] = fleet.explain(request("web", published="9000 8080:8081 8080:53/udp"))
    assert feasibility.rejections == (PortConflict(8080, Protocol.TCP, InstanceId("x")),)
    assert explanations.describe_feasibility(feasibility) == "port 8080/tcp is taken by instance x"


def test_a_node_that_can_take_it_says_so() -> None:
    [feasibility] = fleet_of(node("a", 100, 200, 3)).explain(request("web", 100))
    assert feasibility.fits
    assert explanations.describe_feasibility(feasibility) == (
        "can take it (free: 100 milli-cores of cpu, 200 MB of memory, 3 GB of disk)"
    )


def test_a_node_says_every_no_in_the_order_of_the_filters() -> None:
    view = node(
        "a", 10, 10, 1, architecture="arm64", unschedulable_reason="is draining", addresses=1, zone="cloud"
    )
    fleet = fleet_of(view)
    fleet.bind(NodeId("a"), request("x", 10, published="80"))
    wanted = request("web", 100, 0, 0, "zone=edge", "rack=1", published="80", architecture="amd64")
    [feasibility] = fleet.explain(wanted)
    assert explanations.describe_feasibility(feasibility) == (
        'architecture is arm64, amd64 is wanted; label zone is "cloud", "edge" is wanted; '
        'label rack is not set, "1" is wanted; is draining; has no address left (all 1 are taken); '
        "lacks 100 milli-cores of cpu (free: 10 MB of memory, 1 GB of disk); "
        "port 80/tcp is taken by instance x"
    )


def test_every_node_is_mentioned_by_id() -> None:
    names = ["b", "d", "a", "c"]
    fleet = fleet_of(*(node(name, unschedulable_reason="is lost" if name == "d" else "") for name in names))
    assert [feasibility.node for feasibility in fleet.explain(request("web", 4000))] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("columns", [False, True], ids=["plain", "columns"])
def test_the_count_puts_together_what_differs_only_by_degree(columns: bool) -> None:
    fleet = fleet_of(
        node("a", 100, 4096),
        node("b", 500, 1000),
        node("c", 400, 10),
        node("d", unschedulable_reason="is cordoned"),
        node("e", architecture="arm64", unschedulable_reason="is cordoned"),
        node("f"),
        node("g"),
        node("h", addresses=2),
        searched_by_columns=columns,
    )
    fleet.bind(NodeId("f"), request("x", published="80"))
    fleet.bind(NodeId("g"), request("y", published="80 81"))
    fleet.bind(NodeId("h"), request("z"))
    fleet.bind(NodeId("h"), request("zz"))
    failure = fleet.place(
        request("web", 1000, 1000, published="81 80", architecture="amd64"), PlacementPolicy.BINPACK
    )
    assert isinstance(failure, PlacementFailure)
    assert failure.nodes == 8
    assert failure.reasons == (
        RejectionCount(2, InsufficientResources(resources(500), resources(500, 4096, 100))),
        RejectionCount(1, ArchitectureMismatch("arm64", "amd64")),
        RejectionCount(1, Unschedulable("is cordoned")),
        RejectionCount(1, AddressesExhausted(2)),
        RejectionCount(1, InsufficientResources(resources(600, 990), resources(400, 10, 100))),
        RejectionCount(1, PortConflict(80, Protocol.TCP, None)),
        RejectionCount(1, PortConflict(81, Protocol.TCP, None)),
    )
    assert explanations.describe_failure(failure) == (
        "2 nodes: lacks at least 500 milli-cores of cpu; 1 node: architecture is arm64, amd64 is wanted; "
        "1 node: is cordoned; 1 node: has no address left (all 2 are taken); "
        "1 node: lacks 600 milli-cores of cpu, 990 MB of memory; "
        "1 node: port 80/tcp is taken; 1 node: port 81/tcp is taken"
    )


def test_a_fleet_without_nodes_says_so() -> None:
    failure = fleet_of().place(request("web"), PlacementPolicy.SPREAD)
    assert failure == PlacementFailure(0, ())
    assert explanations.describe_failure(failure) == "there are no nodes"


def test_a_node_that_gives_no_reason_still_gets_a_sentence() -> None:
    view = NodeView(NodeId("a"), resources(1), is_schedulable=False)
    [feasibility] = fleet_of(view).explain(request("web"))
    assert explanations.describe_feasibility(feasibility) == "takes nothing new"


def test_a_verdict_goes_through_json_with_the_name_of_its_filter() -> None:
    fleet = fleet_of(node("a", 10, unschedulable_reason="is lost"))
    fleet.bind(NodeId("a"), request("x", published="80"))
    [feasibility] = fleet.explain(
        request("web", 100, 0, 0, "zone=edge", published="80", architecture="arm64")
    )
    encoded = msgspec.json.encode(feasibility)
    assert [no["filter"] for no in msgspec.json.decode(encoded)["rejections"]] == [
        "architecture",
        "label",
        "takes_work",
        "room",
        "port",
    ]
    assert msgspec.json.decode(encoded, type=NodeFeasibility) == feasibility


def test_a_request_for_one_node_tells_of_that_node_alone_or_that_it_is_not_there() -> None:
    fleet = fleet_of(node("a"), node("b", 100), node("c"))
    there = fleet.place(msgspec.structs.replace(request("web", 500), node="b"), PlacementPolicy.SPREAD)
    assert isinstance(there, PlacementFailure)
    assert explanations.describe_failure(there) == "1 node: lacks 400 milli-cores of cpu"
    nowhere = fleet.place(msgspec.structs.replace(request("web", 500), node="edge-9"), PlacementPolicy.SPREAD)
    assert isinstance(nowhere, PlacementFailure)
    assert explanations.describe_failure(nowhere) == (
        "there is no node edge-9; it waits for one of that name or id"
    )

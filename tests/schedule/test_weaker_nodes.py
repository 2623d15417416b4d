"""Nodes that run without root get nothing that they cannot give, and say why."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skerry.model.container_options import NodeFeature
from skerry.model.devices import DeviceRequest
from skerry.model.enforcement import AS_ROOT, Isolation, LimitMeans, Limits, NodeEnforcement
from skerry.model.ids import InstanceId
from skerry.model.resources import Gigabytes, Resources
from skerry.model.workloads import InstanceSpec, UserNamespaceMode
from skerry.schedule.explanations import describe_failure, describe_rejection
from skerry.schedule.filters import requirement
from skerry.schedule.requests import ANY_NODE, PlacementPolicy, PlacementRequest, VolumePlace
from skerry.schedule.results import Placement, PlacementFailure
from tests.schedule.making import fleet_of, node, request

WEAKER = NodeEnforcement(
    Isolation.USER_NAMESPACE,
    Limits(LimitMeans.CGROUP, LimitMeans.CGROUP, LimitMeans.CGROUP),
    user_ids=65536,
    first_port=1024,
)
ROOTLESS = replace(node("laptop"), weaker=WEAKER, features=(NodeFeature.DEVICES,), devices=("a.b/gpu=0",))
ROOT = replace(node("server"), features=tuple(NodeFeature), devices=("a.b/gpu=0",))
POLICY = PlacementPolicy.BINPACK
PLAIN = request("i")
ASKS = {
    "cannot limit disk": request("i", disk=1),
    "has no volumes and mounts": replace(PLAIN, features=(NodeFeature.VOLUMES,)),
    "gives no devices to containers": replace(PLAIN, devices=(DeviceRequest("a.b/gpu", 1),)),
    "has no containers whose root is the node's root": replace(PLAIN, is_host_root=True),
    "runs nothing for other clouds": replace(PLAIN, is_leased=True),
    "port 80 cannot be published there, only 1024 and above": request("i", published="8080:80 80:80"),
}


@pytest.mark.parametrize("reason", ASKS)
@pytest.mark.parametrize("searched_by_columns", [False, True])
def test_what_a_node_without_root_cannot_give_is_placed_elsewhere_and_the_reason_is_said_once(
    reason: str, searched_by_columns: bool
) -> None:
    wanted = ASKS[reason]
    both = fleet_of(ROOTLESS, ROOT, searched_by_columns=searched_by_columns)
    placed = both.place(wanted, POLICY)
    assert isinstance(placed, Placement)
    assert placed.node == "server"
    alone = fleet_of(ROOTLESS, searched_by_columns=searched_by_columns).place(wanted, POLICY)
    assert isinstance(alone, PlacementFailure)
    [said] = [reason.rejection for reason in alone.reasons]
    assert describe_rejection(said) == describe_failure(alone).removeprefix("1 node: ")
    assert describe_rejection(said).startswith("runs without root, and ")
    assert reason in describe_rejection(said)
    [rejection] = requirement(wanted.requirement_key).rejections(ROOTLESS)
    assert rejection == said


@pytest.mark.parametrize("searched_by_columns", [False, True])
def test_what_needs_nothing_of_root_goes_to_a_node_without_it(searched_by_columns: bool) -> None:
    fleet = fleet_of(ROOTLESS, searched_by_columns=searched_by_columns)
    placed = fleet.place(request("web", 100, 64, published="8080:80"), POLICY)
    assert isinstance(placed, Placement)
    assert placed.node == "laptop"


def test_a_machine_that_lets_users_listen_below_1024_publishes_there() -> None:
    view = replace(ROOTLESS, weaker=replace(WEAKER, first_port=80))
    assert isinstance(fleet_of(view).place(request("web", published="80:80"), POLICY), Placement)
    assert isinstance(fleet_of(view).place(request("dns", published="53:53/udp"), POLICY), PlacementFailure)


def test_the_data_of_a_volume_needs_a_node_with_volumes() -> None:
    wanted = PlacementRequest(InstanceId("v"), volumes=(VolumePlace("data", "laptop"),))
    [rejection] = requirement(wanted.requirement_key).rejections(ROOTLESS)
    assert describe_rejection(rejection) == "runs without root, and has no volumes and mounts"


def test_a_spec_whose_root_is_the_nodes_needs_root_and_others_need_nothing() -> None:
    plain = InstanceSpec("web", "example.org/web:1")
    private = PlacementRequest.of(InstanceId("i"), plain)
    assert private.requirement_key.abilities == ()
    host = PlacementRequest.of(InstanceId("i"), replace(plain, userns=UserNamespaceMode.HOST))
    assert host.is_host_root
    assert host.shape != private.shape
    disk = PlacementRequest.of(InstanceId("i"), replace(plain, resources=Resources(disk=Gigabytes(1))))
    assert disk.requirement_key != ANY_NODE


def test_root_allows_everything() -> None:
    for wanted in ASKS.values():
        assert all(AS_ROOT.allows(each) for each in wanted.abilities)

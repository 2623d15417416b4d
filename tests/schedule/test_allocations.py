"""Accounting: what a fleet knows after changes in any order."""

from __future__ import annotations

import pytest

from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.resources import NO_RESOURCES
from skerry.model.workloads import InstanceSpec
from skerry.schedule.requests import PlacementPolicy, PlacementRequest
from skerry.schedule.results import Placement, PlacementFailure, PortConflict
from skerry.schedule.scheduler import Scheduler
from tests.schedule.making import fleet_of, node, put, request, resources

A, B = NodeId("a"), NodeId("b")
WEB = InstanceId("web")


def test_a_binding_takes_its_room_and_an_unbinding_gives_it_back() -> None:
    fleet = fleet_of(node("a", 4000, 4096, 100))
    fleet.bind(A, request("web", 1500, 1000, 10))
    assert fleet.free(A) == resources(2500, 3096, 90)
    assert fleet.node_of(WEB) == A
    fleet.unbind(WEB)
    assert fleet.free(A) == resources(4000, 4096, 100)
    assert fleet.node_of(WEB) is None


def test_placing_binds_nothing() -> None:
    fleet = fleet_of(node("a"))
    assert isinstance(fleet.place(request("web", 1000), PlacementPolicy.BINPACK), Placement)
    assert fleet.node_of(WEB) is None
    assert fleet.free(A) == resources(4000, 4096, 100)


def test_binding_again_counts_once_and_moves() -> None:
    fleet = fleet_of(node("a"), node("b"))
    for _ in range(3):
        fleet.bind(A, request("web", 1000))
    assert fleet.free(A).cpu == 3000
    fleet.bind(B, request("web", 500))
    assert (fleet.free(A).cpu, fleet.free(B).cpu) == (4000, 3500)


def test_unbinding_what_is_nowhere_changes_nothing() -> None:
    fleet = fleet_of(node("a"))
    fleet.unbind(WEB)
    assert fleet.free(A) == resources(4000, 4096, 100)


def test_a_binding_may_be_told_before_its_node() -> None:
    fleet = fleet_of()
    fleet.bind(A, request("web", 1000))
    assert fleet.node_of(WEB) == A
    fleet.set_node(node("a", 4000))
    assert fleet.free(A).cpu == 3000


def test_a_node_that_leaves_and_returns_has_what_is_bound_to_it() -> None:
    fleet = fleet_of(node("a", 4000), node("b", 4000))
    fleet.bind(A, request("web", 3000, published="80"))
    fleet.bind(A, request("gone", 500))
    fleet.remove_node(A)
    assert fleet.node_of(WEB) == A
    fleet.unbind(InstanceId("gone"))
    assert put(fleet, request("other", 2000)) == B
    fleet.set_node(node("a", 4000))
    assert fleet.free(A).cpu == 1000
    assert put(fleet, request("third", 100, published="80")) == B


def test_a_node_that_is_not_there_has_no_room_to_tell() -> None:
    fleet = fleet_of()
    fleet.bind(A, request("web"))
    with pytest.raises(errors.NotFound):
        fleet.free(A)
    fleet.remove_node(A)
    assert len(fleet) == 0


def test_a_node_that_shrinks_under_what_it_has_gives_nothing_and_owes_nothing() -> None:
    fleet = fleet_of(node("a", 4000, 4096, 100))
    fleet.bind(A, request("web", 3000, 100, 1))
    fleet.set_node(node("a", 2000, 4096, 100))
    assert fleet.free(A) == resources(0, 3996, 99)
    assert isinstance(fleet.place(request("one", 1), PlacementPolicy.BINPACK), PlacementFailure)
    assert put(fleet, request("two", 0, 100)) == A
    fleet.set_node(node("a", 4000, 4096, 100))
    assert fleet.free(A).cpu == 1000


def test_a_view_told_again_changes_nothing() -> None:
    fleet = fleet_of(node("a", 4000), node("a", 4000))
    assert len(fleet) == 1
    assert fleet.free(A).cpu == 4000


def test_a_port_that_two_hold_is_free_when_both_are_gone() -> None:
    """Two holders can come of an adoption; the accounts must survive it in any order."""
    fleet = fleet_of(node("a"))
    fleet.bind(A, request("one", published="80"))
    fleet.bind(A, request("two", published="80"))
    assert holders(fleet, request("web", published="80")) == ["one"]
    fleet.unbind(InstanceId("one"))
    assert holders(fleet, request("web", published="80")) == ["two"]
    fleet.unbind(InstanceId("two"))
    assert put(fleet, request("web", published="80")) == A


def holders(fleet: Scheduler, wanted: PlacementRequest) -> list[str | None]:
    """Who has the ports that are wanted, on the only node."""
    [feasibility] = fleet.explain(wanted)
    return [no.by for no in feasibility.rejections if isinstance(no, PortConflict)]


def test_the_same_port_of_another_protocol_is_another_port() -> None:
    fleet = fleet_of(node("a"))
    fleet.bind(A, request("one", published="53/udp"))
    assert put(fleet, request("two", published="53")) == A


def test_an_instance_does_not_stand_in_its_own_way() -> None:
    fleet = fleet_of(node("a", 1000))
    mine = request("web", 800, published="80")
    fleet.bind(A, mine)
    assert isinstance(fleet.place(mine, PlacementPolicy.BINPACK), Placement)
    assert [feasibility.fits for feasibility in fleet.explain(mine)] == [True]
    assert fleet.node_of(WEB) == A
    assert fleet.free(A).cpu == 200


def test_an_ask_is_what_the_spec_wants() -> None:
    spec = InstanceSpec(
        name="web",
        uri="example.org/web",
        resources=resources(100),
        architecture="arm64",
        constraints=("zone=edge",),
    )
    made = PlacementRequest.of(WEB, spec)
    assert (made.resources, made.architecture, made.constraints) == (resources(100), "arm64", ("zone=edge",))
    assert made.shape == PlacementRequest.of(InstanceId("other"), spec).shape
    assert made.shape != request("web", 101).shape


def test_many_bindings_given_back_leave_not_a_trace() -> None:
    fleet = fleet_of(node("a", 4000, 4096, 100))
    names = [InstanceId(f"i{number}") for number in range(50)]
    for number, name in enumerate(names):
        fleet.bind(A, request(name, number, 2 * number, 1, published=str(1000 + number)))
    for name in names:
        fleet.unbind(name)
    assert fleet.free(A) == resources(4000, 4096, 100)
    fleet.remove_node(A)
    assert isinstance(fleet.place(request("web"), PlacementPolicy.SPREAD), PlacementFailure)
    assert fleet.explain(request("web", 0)) == []
    assert request("web").resources == NO_RESOURCES

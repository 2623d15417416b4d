"""The ways of searching against each other and against a model, at random.

Three fleets get the same changes: one looks at every node, one has columns from its first node on, one goes
to and fro between the two. The model keeps nothing but facts and works everything out anew for every
question, so whatever a fleet forgot to count, counted twice or searched differently shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from skerry.model import ports
from skerry.model.devices import DeviceRequest
from skerry.model.ids import InstanceId, NodeId
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.model.workloads import Constraint
from skerry.schedule.requests import HostPort, NodeView, PlacementPolicy, PlacementRequest
from skerry.schedule.results import (
    FILTERS,
    DevicesUnavailable,
    InsufficientResources,
    Placement,
    PlacementFailure,
    PortConflict,
    Rejection,
)
from skerry.schedule.scheduler import Scheduler
from tests.schedule.making import resources

NODES = [NodeId(f"n{number}") for number in range(12)]
INSTANCES = [InstanceId(f"i{number}") for number in range(40)]

# Few sizes, so that there are ties; and some that fill a node to the last bit.
rooms_of_nodes = st.builds(
    resources, st.sampled_from([0, 1000, 3000]), st.sampled_from([0, 1024, 4096]), st.sampled_from([0, 10])
)
rooms_of_asks = st.builds(
    resources,
    st.sampled_from([0, 0, 1, 500, 1000, 2**31 - 1]),
    st.sampled_from([0, 512, 1024]),
    st.sampled_from([0, 1]),
)
DEVICES = ("a.com/gpu=0", "a.com/gpu=1", "b.com/gpu=0", "b.com/nic=0")
views = st.builds(
    NodeView,
    st.sampled_from(NODES),
    rooms_of_nodes,
    architecture=st.sampled_from(["amd64", "arm64", ""]),
    labels=st.dictionaries(st.sampled_from(["zone", "rack"]), st.sampled_from(["a", "b"])),
    is_schedulable=st.sampled_from([True, True, True, False]),
    unschedulable_reason=st.sampled_from(["is cordoned", "is lost"]),
    addresses=st.sampled_from([0, 2, 253, 253]),
    is_borrowed=st.booleans(),
    runs_checks=st.booleans(),
    name=st.sampled_from(["north", "south"]),
    features=st.sampled_from([(), ("options",), ("options", "init")]),
    devices=st.sampled_from([(), DEVICES[:1], DEVICES[:3], DEVICES]),
)
requests = st.builds(
    PlacementRequest,
    st.sampled_from(INSTANCES),
    rooms_of_asks,
    ports=st.lists(st.sampled_from(["80", "443", "53/udp"]).map(ports.parse), unique=True, max_size=2).map(
        tuple
    ),
    architecture=st.sampled_from(["", "", "", "amd64"]),
    constraints=st.sampled_from([(), (), (), ("zone=a",), ("zone!=a", "rack=b")]),
    is_leased=st.sampled_from([False, False, False, True]),
    group=st.sampled_from([None, "shop", "shop", "desk"]),
    spread=st.sampled_from([(), (), ("zone",), ("zone", "rack")]),
    max_per_node=st.sampled_from([0, 0, 0, 1, 2]),
    needs_checks=st.booleans(),
    node=st.sampled_from(["", "", "", "north", NODES[0], "nowhere"]),
    features=st.sampled_from([(), (), ("options",), ("options", "init")]),
    devices=st.sampled_from(
        [(), (), ("a.com/gpu",), ("gpu:2",), ("gpu", "a.com/gpu", "a.com/gpu=1"), ("b.com/nic=0",)]
    ).map(lambda texts: tuple(map(DeviceRequest.parse, texts))),
)
policies = st.sampled_from(PlacementPolicy)


class Model:
    """Facts only."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, NodeView] = {}
        self.node_of: dict[InstanceId, tuple[NodeId, PlacementRequest]] = {}

    def on(self, node: NodeId, asking: PlacementRequest | None = None) -> list[PlacementRequest]:
        """What is bound to a node, without the one that asks."""
        mine = None if asking is None else asking.instance
        return [
            request for where, request in self.node_of.values() if where == node and request.instance != mine
        ]

    def free(self, node: NodeId, asking: PlacementRequest | None = None) -> Resources:
        used = [request.resources for request in self.on(node, asking)]  # more than a room can say, perhaps
        has = self.nodes[node].resources
        return resources(
            max(0, has.cpu - sum(taken.cpu for taken in used)),
            max(0, has.memory - sum(taken.memory for taken in used)),
            max(0, has.disk - sum(taken.disk for taken in used)),
        )

    def fits(self, node: NodeId, request: PlacementRequest) -> bool:
        view, others = self.nodes[node], self.on(node, request)
        taken: set[HostPort] = {host_port for other in others for host_port in other.host_ports}
        return (
            view.is_schedulable
            and len(others) < view.addresses
            and self.free(node, request).fits(request.resources)
            and taken.isdisjoint(request.host_ports)
            and request.architecture in ("", view.architecture)
            and all(Constraint.parse(text).holds(view.labels) for text in request.constraints)
            and not (view.is_borrowed and (request.ports or request.is_leased))
            and (view.runs_checks or not request.needs_checks)
            and request.node in ("", view.name, view.id)
            and set(request.features) <= set(view.features)
            and self.has_devices(node, request)
            and not (request.max_per_node and self.replicas([node], request) >= request.max_per_node)
        )

    def has_devices(self, node: NodeId, request: PlacementRequest) -> bool:
        """By trying: some choice of free devices meets all that it requests."""
        held = {device for other in self.on(node, request) for device in other.assigned_devices}
        free = [device for device in self.nodes[node].devices if device not in held]
        return any(is_met(request.devices, choice) for choice in itertools.permutations(free))

    def emptiness(self, node: NodeId, request: PlacementRequest) -> int:
        """The product of the free shares, as the docs have it."""
        view, free = self.nodes[node], self.free(node, request)
        left = view.addresses - len(self.on(node, request))
        parts = [
            (have, all_)
            for (_, _, have), (_, _, all_) in zip(free.parts(), view.resources.parts(), strict=True)
        ]
        product = 1
        for have, all_ in [*parts, (left, view.addresses)]:
            product *= 1 + (have * 2**15 // all_ if all_ else 2**15)
        return product

    def place(self, request: PlacementRequest, policy: PlacementPolicy) -> NodeId | None:
        sign = 1 if policy is PlacementPolicy.BINPACK and request.resources != NO_RESOURCES else -1
        fitting = [node for node in self.nodes if self.fits(node, request)]
        return min(
            fitting,
            key=lambda node: (self.crowding(node, request), sign * self.emptiness(node, request), node),
            default=None,
        )

    def crowding(self, node: NodeId, request: PlacementRequest) -> tuple[int, ...]:
        """How many others of its group are on nodes with the same labels, and on the node itself."""
        alike = [
            [other for other in NODES if self.label(other, label) == self.label(node, label)]
            for label in request.spread
        ]
        return tuple(self.replicas(nodes, request) for nodes in [*alike, [node]])

    def label(self, node: NodeId, label: str) -> str:
        return self.nodes[node].labels.get(label, "") if node in self.nodes else ""

    def replicas(self, nodes: list[NodeId], request: PlacementRequest) -> int:
        """How many others of its group are on these nodes."""
        others = [other for node in nodes for other in self.on(node, request)]
        return sum(request.group is not None and other.group == request.group for other in others)


class Searches(RuleBasedStateMachine):
    """The same changes and the same questions to all."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.fleets = (
            Scheduler(columnar_from=1_000_000),
            Scheduler(columnar_from=1, linear_below=0),
            Scheduler(columnar_from=6, linear_below=3),
        )

    @rule(view=views)
    def a_node_comes_or_changes(self, view: NodeView) -> None:
        self.model.nodes[view.id] = view
        for fleet in self.fleets:
            fleet.set_node(view)

    @rule(node=st.sampled_from(NODES))
    def a_node_leaves_with_what_it_has(self, node: NodeId) -> None:
        self.model.nodes.pop(node, None)
        for fleet in self.fleets:
            fleet.remove_node(node)

    @rule(request=requests, policy=policies)
    def an_instance_is_placed(self, request: PlacementRequest, policy: PlacementPolicy) -> None:
        answer = self.requested(request, policy)
        if isinstance(answer, Placement):
            others = self.model.on(answer.node, request)
            assert is_met(request.devices, answer.devices)
            assert set(answer.devices) <= set(self.model.nodes[answer.node].devices)
            assert {device for other in others for device in other.assigned_devices}.isdisjoint(
                answer.devices
            )
            self.an_instance_is_bound(answer.node, request.holding(answer.devices))

    @rule(node=st.sampled_from(NODES), request=requests)
    def an_instance_is_bound(self, node: NodeId, request: PlacementRequest) -> None:
        """Anywhere: a fleet records what others decided, be it wise or not."""
        self.model.node_of[request.instance] = (node, request)
        for fleet in self.fleets:
            fleet.bind(node, request)

    @rule(instance=st.sampled_from(INSTANCES))
    def an_instance_ends(self, instance: InstanceId) -> None:
        self.model.node_of.pop(instance, None)
        for fleet in self.fleets:
            fleet.unbind(instance)

    @rule(request=requests, policy=policies)
    def a_question_is_asked(self, request: PlacementRequest, policy: PlacementPolicy) -> None:
        self.requested(request, policy)

    def requested(self, request: PlacementRequest, policy: PlacementPolicy) -> Placement | PlacementFailure:
        """The answer of all, which must be one, and what the explanation of each node says."""
        plain, *others = [(fleet.place(request, policy), fleet.explain(request)) for fleet in self.fleets]
        assert all(other == plain for other in others)
        answer, verdicts = plain
        assert [feasibility.node for feasibility in verdicts] == sorted(self.model.nodes)
        for feasibility in verdicts:
            assert feasibility.free == self.model.free(feasibility.node, request)
            assert feasibility.fits == self.model.fits(feasibility.node, request)
            assert all(fleet.fits(feasibility.node, request) == feasibility.fits for fleet in self.fleets)
        expected = self.model.place(request, policy)
        if isinstance(answer, Placement):
            assert answer.node == expected
        else:
            assert expected is None
            check_counts(answer, [feasibility.rejections[0] for feasibility in verdicts])
        return answer

    @invariant()
    def the_accounts_are_true(self) -> None:
        for fleet in self.fleets:
            assert len(fleet) == len(self.model.nodes)
            assert {node: fleet.free(node) for node in self.model.nodes} == {
                node: self.model.free(node) for node in self.model.nodes
            }
            for instance in INSTANCES:
                where, _ = self.model.node_of.get(instance, (None, None))
                assert fleet.node_of(instance) == where

    def teardown(self) -> None:
        """A fleet that learns of all this at once, and in another order, answers the same."""
        fresh = Scheduler(columnar_from=6, linear_below=3)
        for node, request in reversed(self.model.node_of.values()):
            fresh.bind(node, request)
        for view in reversed(self.model.nodes.values()):
            fresh.set_node(view)
        for policy in PlacementPolicy:
            request = PlacementRequest(InstanceId("last"), resources(500, 512))
            assert fresh.place(request, policy) == self.fleets[0].place(request, policy)
            assert fresh.explain(request) == self.fleets[0].explain(request)


def is_met(wanted: tuple[DeviceRequest, ...], devices: Sequence[str]) -> bool:
    """True if `devices` begin with what is wanted, in this order: so many, of one kind each."""
    left = list(devices)
    for one in wanted:
        given, left = left[: one.count], left[one.count :]
        kinds = {device.partition("=")[0] for device in given}
        if one.name:
            is_right = given == [str(one)]
        else:
            names = kinds if "/" in one.kind else {kind.split("/")[1] for kind in kinds}
            is_right = names == {one.kind}
        if len(given) < one.count or len(kinds) != 1 or not is_right:
            return False
    return True


def check_counts(failure: PlacementFailure, firsts: list[Rejection]) -> None:
    """Every node is counted once, under its first refusal, and the commonest come first."""
    assert failure.nodes == len(firsts) == sum(reason.nodes for reason in failure.reasons)
    counts = [reason.nodes for reason in failure.reasons]
    assert counts == sorted(counts, reverse=True)
    for kind in FILTERS:
        of_kind = [first for first in firsts if isinstance(first, kind)]
        reasons = [reason for reason in failure.reasons if isinstance(reason.rejection, kind)]
        assert len(of_kind) == sum(reason.nodes for reason in reasons)
        for reason in reasons:
            same = [first for first in of_kind if is_like(first, reason.rejection)]
            assert len(same) == reason.nodes
            if isinstance(reason.rejection, InsufficientResources):
                lacks = [first.lack for first in same if isinstance(first, InsufficientResources)]
                assert reason.rejection.lack == resources(
                    min(lack.cpu for lack in lacks),
                    min(lack.memory for lack in lacks),
                    min(lack.disk for lack in lacks),
                )


def is_like(one: Rejection, other: Rejection) -> bool:
    """True if two refusals differ at most by degree."""
    if isinstance(one, InsufficientResources) and isinstance(other, InsufficientResources):
        parts = zip(one.lack.parts(), other.lack.parts(), strict=True)
        return all((mine > 0) == (yours > 0) for (_, _, mine), (_, _, yours) in parts)
    if isinstance(one, PortConflict) and isinstance(other, PortConflict):
        return (one.port, one.protocol) == (other.port, other.protocol)
    if isinstance(one, DevicesUnavailable) and isinstance(other, DevicesUnavailable):
        return (one.device, one.wanted) == (other.device, other.wanted)
    return one == other


def test_every_way_of_searching_gives_the_answers_of_the_model() -> None:
    run_state_machine_as_test(
        Searches,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )

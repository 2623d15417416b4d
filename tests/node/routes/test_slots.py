"""Copies in the slots of a backend, and the commands that change them."""

from __future__ import annotations

from hypothesis import given, strategies

from skerry.model.ids import InstanceId, Namespace, NodeId, ServiceId
from skerry.model.network_objects import EndpointState, ServiceAddress, ServiceEndpoint, ServicePort
from skerry.model.ports import Protocol
from skerry.node.routes import slots
from skerry.node.routes.slots import Copy, Slots

A, B = Copy("a", "10.0.0.1", 80), Copy("b", "10.0.0.2", 80)


def test_a_copy_keeps_its_slot_and_a_new_one_gets_a_free_one() -> None:
    first = slots.assign(Slots(), [A, B])
    assert first.copies[:3] == (A, B, None)
    assert slots.assign(first, [B]).copies[:2] == (None, B)
    c = Copy("c", "10.0.0.3", 80)
    assert slots.assign(slots.assign(first, [B]), [B, c]).copies[:3] == (None, B, c)


def test_the_slot_that_has_just_become_free_is_given_out_last() -> None:
    has, given = Slots(), []
    for number in range(10):
        has = slots.assign(has, [Copy(f"c{number}", "10.0.0.1", 80)])
        given.append(has.last)
    assert given == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1], "requests of before may hold a connection to it"


def test_commands_set_the_address_before_the_slot_is_used() -> None:
    before, after = slots.assign(Slots(), [A]), slots.assign(Slots(), [B])
    assert list(slots.commands("r", Slots(), before)) == [
        "set server r/c1 addr 10.0.0.1 port 80",
        "set server r/c1 state ready",
    ]
    assert list(slots.commands("r", before, after)) == [
        "set server r/c1 state maint",
        "set server r/c1 addr 10.0.0.2 port 80",
        "set server r/c1 state ready",
    ]
    draining = Slots((Copy("a", "10.0.0.1", 80, EndpointState.DRAINING), *before.copies[1:]))
    assert list(slots.commands("r", before, draining)) == ["set server r/c1 state drain"]
    assert list(slots.commands("r", before, Slots())) == ["set server r/c1 state maint"]
    assert list(slots.commands("r", before, before)) == []
    assert len(list(slots.commands("r", None, before))) == 2 + 7, "whatever it has: all slots"


@given(strategies.lists(strategies.sets(strategies.integers(0, 40)), max_size=8))
def test_all_copies_have_one_slot_each_and_slots_never_become_fewer(steps: list[set[int]]) -> None:
    has = Slots()
    for step in steps:
        copies = [Copy(str(n), f"10.0.0.{n}", 80) for n in sorted(step)]
        after = slots.assign(has, copies)
        assert sorted(one.instance for one in after.copies if one) == sorted(str(n) for n in step)
        assert len(after.copies) >= len(has.copies)
        kept = {one.instance: n for n, one in enumerate(has.copies) if one}
        assert all(kept.get(one.instance, n) == n for n, one in enumerate(after.copies) if one), (
            "a copy stays where it is"
        )
        has = after


def test_the_port_of_a_route_is_one_of_the_service_or_of_its_copies() -> None:
    ends = tuple(
        ServiceEndpoint(InstanceId(name), NodeId("n"), f"10.0.0.{n}", state)
        for n, (name, state) in enumerate(
            [("a", EndpointState.READY), ("b", EndpointState.DRAINING), ("c", EndpointState.NOT_READY)], 1
        )
    )
    ports = (ServicePort(53, protocol=Protocol.UDP), ServicePort(80, 8080), ServicePort(9000))
    service = ServiceAddress(ServiceId("s"), "web", Namespace("default"), ports=ports, endpoints=ends)
    assert [(one.instance, one.port) for one in slots.copies_of(service, 0)] == [("a", 8080), ("b", 8080)]
    assert {one.port for one in slots.copies_of(service, 80)} == {8080}
    assert {one.port for one in slots.copies_of(service, 9000)} == {9000}
    assert {one.port for one in slots.copies_of(service, 7777)} == {7777}
    assert slots.copies_of(None, 0) == []


def test_copies_on_unreachable_nodes_take_no_requests_while_there_are_others() -> None:
    ends = tuple(
        ServiceEndpoint(InstanceId(name), NodeId(node), f"10.0.0.{n}", state)
        for n, (name, node, state) in enumerate(
            [
                ("a", "n1", EndpointState.READY),
                ("b", "n2", EndpointState.READY),
                ("c", "n3", EndpointState.DRAINING),
            ],
            1,
        )
    )
    service = ServiceAddress(ServiceId("s"), "web", Namespace("default"), endpoints=ends)

    def ready(*away: str) -> list[str]:
        copies = slots.copies_of(service, 80, frozenset(map(NodeId, away)))
        assert len(copies) == 3
        return [one.instance for one in copies if one.state is EndpointState.READY]

    assert ready() == ["a", "b"]
    assert ready("n2", "n3") == ["a"]
    assert ready("n1", "n2") == ["a", "b"], "none is left, so all are tried"

"""The witness objects to everything that never may happen, and to nothing else."""

from __future__ import annotations

from itertools import count

import pytest
from msgspec.structs import replace

from skerry.control.instance_index import PREFIX as INSTANCES
from skerry.kit import json_codec
from skerry.kit.clock import ManualClock
from skerry.model.ids import InstanceId, NodeId
from skerry.model.nodes import Node
from skerry.model.ports import parse
from skerry.model.statuses import DesiredStatus, InstanceStatus, NodeStatus
from skerry.model.workloads import Instance, ObservedState
from skerry.sim.cluster.invariants import InvariantChecker
from skerry.sim.cluster.node import SimulatedNode
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Batch, Change, Entry
from tests.sim.making import machine, order, resources, spec

ONE = InstanceId("one")


class Checked:
    """A witness that is told what happened, one thing at a time."""

    def __init__(self) -> None:
        self.machines: dict[NodeId, SimulatedNode] = {}
        self.checker = InvariantChecker(MemoryStore(ManualClock()), self.machines.get, reserve_percent=10)
        self._revisions = count(1)
        for name in ("a", "b"):
            self.machines[NodeId(name)] = machine(name=name, observer=self.checker)
            self.write(
                f"node/{name}",
                Node(NodeId(name), name, 0.0, 0.0, NodeStatus.READY, resources=resources(1000)),
            )

    def write(self, key: str, value: object | None) -> None:
        revision = next(self._revisions)
        entry = None if value is None else Entry(key, json_codec.encode(value), revision, revision)
        self.checker.observe(Batch(revision, (Change(key, entry),)))

    def put(self, instance: Instance) -> Instance:
        self.write(INSTANCES + instance.id, instance)
        return instance

    def remove(self, id: str) -> None:
        self.write(INSTANCES + id, None)

    def run(self, name: str, generation: int = 1) -> None:
        """Let a machine start what it is ordered."""
        one = self.machines[NodeId(name)]
        one.take([order(generation=generation)], 0.0, is_full=False)
        while (at := one.wakes_at) is not None:
            one.act(at)

    @property
    def violations(self) -> str:
        return "; ".join(self.checker.violations)


@pytest.fixture
def checked() -> Checked:
    return Checked()


def bound(id: str = "one", node: str | None = "a", cpu: int = 100, **more: object) -> Instance:
    status = more.pop("status", InstanceStatus.RUNNING if node else InstanceStatus.SCHEDULING)
    actor = more.pop("actor", "skerry")
    observed = ObservedState(status, 0.0, actor=actor)  # type: ignore[arg-type] # tests say what they mean
    where = None if node is None else NodeId(node)
    return Instance(InstanceId(id), spec(cpu), 0.0, observed, node=where, **more)  # type: ignore[arg-type] # the same


def test_a_node_that_is_full_is_no_offence_and_one_that_is_over_its_room_is(checked: Checked) -> None:
    checked.put(bound("one", cpu=800))
    checked.put(bound("two", cpu=100))
    assert checked.violations == "", "a tenth of 1000 is left to the node itself"
    checked.put(bound("three", cpu=1))
    assert "node a lacks 1 milli-cores of cpu" in checked.violations


def test_what_is_over_takes_no_room_and_what_leaves_takes_what_it_had(checked: Checked) -> None:
    checked.put(bound("one", cpu=900, status=InstanceStatus.FAILED))
    checked.put(bound("two", cpu=800, leaving=spec(500)))
    checked.put(bound("three", cpu=400))
    assert checked.violations == ""


def test_a_port_that_is_given_twice_is_a_violation(checked: Checked) -> None:
    for id in ("one", "two"):
        one = bound(id)
        checked.put(replace(one, spec=replace(one.spec, ports=(parse("8080:80"),))))
    assert "port 8080/tcp of node a is given out twice" in checked.violations


def test_a_generation_that_goes_back_is_a_violation(checked: Checked) -> None:
    checked.put(bound(generation=3))
    checked.put(bound(generation=2))
    assert "went back from generation 3 to 2" in checked.violations


def test_to_go_from_node_to_node_at_once_is_a_violation(checked: Checked) -> None:
    checked.put(bound(node="a"))
    checked.put(bound(node="b", generation=2))
    assert "went from a to b at once" in checked.violations


def test_who_is_called_back_is_a_violation(checked: Checked) -> None:
    checked.put(bound(desired=DesiredStatus.DESTROYED))
    checked.put(bound(desired=DesiredStatus.RUNNING))
    assert "is wanted again" in checked.violations


def test_two_copies_are_a_violation(checked: Checked) -> None:
    checked.put(bound(node="a"))
    checked.run("a")
    checked.write("instance/two", bound("two", node="b"))
    checked.put(bound(node=None, actor="node/a"))
    assert "left a by its report, and runs there" in checked.violations
    checked.put(bound(node="b", generation=2))
    checked.run("b", generation=2)
    assert "runs twice: generation 1 on a, 2 on b" in checked.violations


def test_a_copy_that_was_given_up_may_run_beside_its_successor_until_it_is_told(checked: Checked) -> None:
    checked.put(bound(node="a"))
    checked.run("a")
    checked.put(bound(node=None, generation=2))
    checked.put(bound(node="b", generation=2))
    checked.run("b", generation=2)
    assert checked.violations == ""


def test_a_successor_of_the_successor_may_not(checked: Checked) -> None:
    checked.put(bound(node="a"))
    checked.put(bound(node=None, generation=2))
    checked.put(bound(node="b", generation=2))
    checked.run("b", generation=2)
    checked.machines[NodeId("a")].wipe()
    checked.run("a", generation=3)
    assert "runs twice" in checked.violations


def test_to_remove_what_is_bound_is_a_violation_and_to_remove_what_is_stale_is_not(checked: Checked) -> None:
    checked.put(bound(node="a"))
    checked.run("a")
    checked.put(bound(node=None, generation=2))
    checked.put(bound(node="a", generation=2))
    checked.machines[NodeId("a")].take([], 9.0, is_full=True)
    assert list(checked.checker.wrong_removals()) == [], "it was another copy"
    checked.machines[NodeId("a")].wipe()
    checked.run("a", generation=2)
    checked.machines[NodeId("a")].take([], 9.0, is_full=True)
    assert list(checked.checker.wrong_removals()) == ["a was ordered to remove one, which is bound to it"]


def test_an_instance_that_is_gone_without_a_request_is_a_violation_and_with_one_it_is_not(
    checked: Checked,
) -> None:
    checked.put(bound("one"))
    checked.put(bound("two"))
    checked.checker.requested(InstanceId("two"), DesiredStatus.DESTROYED)
    checked.remove("two")
    assert checked.violations == ""
    checked.remove("one")
    assert "one is gone without a request" in checked.violations


def test_a_request_that_was_acknowledged_must_stand(checked: Checked) -> None:
    checked.put(bound(desired=DesiredStatus.RUNNING))
    checked.checker.requested(ONE, DesiredStatus.STOPPED)
    checked.checker.acknowledged(ONE, DesiredStatus.STOPPED)
    assert list(checked.checker.unfulfilled()) == ["one is to be STOPPED, and is RUNNING"]
    checked.put(bound(desired=DesiredStatus.STOPPED))
    assert list(checked.checker.unfulfilled()) == []


def test_a_request_of_which_nobody_knows_may_come_true_later(checked: Checked) -> None:
    checked.put(bound())
    checked.checker.requested(ONE, DesiredStatus.DESTROYED)
    checked.checker.requested(ONE, DesiredStatus.RUNNING)
    checked.checker.acknowledged(ONE, DesiredStatus.RUNNING)
    checked.remove("one")
    assert list(checked.checker.unfulfilled()) == []


def test_a_request_that_was_refused_may_not(checked: Checked) -> None:
    checked.put(bound())
    checked.checker.requested(ONE, DesiredStatus.RUNNING)
    checked.checker.acknowledged(ONE, DesiredStatus.RUNNING)
    take_back = checked.checker.requested(ONE, DesiredStatus.DESTROYED)
    take_back()
    checked.remove("one")
    assert list(checked.checker.unfulfilled()) == ["one is to be RUNNING, and is not there"]
    assert "without a request" in checked.violations

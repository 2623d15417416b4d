"""Steps of an instance: each wish, loss and change by itself, from every status it can come in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.control.instances import transitions
from skerry.control.instances.transitions import InstanceTransition
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance
from tests.control.worlds import instance, spec

BOUND = [status for status in InstanceStatus if status is not InstanceStatus.SCHEDULING]


def kinds(step: InstanceTransition) -> list[str]:
    return [telling.kind for telling in step.events]


def unbound(one: Instance) -> InstanceTransition:
    return transitions.unbind(one, at=2.0, reason="node n is lost", actor="skerry")


@pytest.mark.parametrize("status", [status for status in BOUND if status not in TERMINAL])
def test_off_its_node_an_instance_becomes_what_is_wished_of_it(status: InstanceStatus) -> None:
    goals = {DesiredStatus.RUNNING: InstanceStatus.SCHEDULING, DesiredStatus.STOPPED: InstanceStatus.STOPPED}
    if status is not InstanceStatus.DESTROYING:
        for desired, goal in goals.items():
            step = unbound(instance(status=status, desired=desired, node="n"))
            assert (step.after.observed.status, step.is_purged) == (goal, False)
    step = unbound(instance(status=status, desired=DesiredStatus.DESTROYED, node="n"))
    assert (step.after.observed.status, step.is_purged) == (InstanceStatus.TERMINATED, True)


@pytest.mark.parametrize("status", BOUND)
def test_the_copy_after_a_move_has_a_higher_generation_and_no_trace_of_the_one_before(
    status: InstanceStatus,
) -> None:
    desired = DesiredStatus.DESTROYED if status is InstanceStatus.DESTROYING else DesiredStatus.RUNNING
    after = unbound(instance(status=status, desired=desired, node="n", ip="10.0.0.1", leaving=spec())).after
    assert (after.generation, after.node, after.ip, after.leaving) == (2, None, "", None)


def test_every_status_on_the_way_is_told() -> None:
    assert kinds(
        unbound(instance(status=InstanceStatus.RUNNING, desired=DesiredStatus.STOPPED, node="n"))
    ) == [
        "stopping",
        "stopped",
    ]


def test_what_is_over_stays_as_it_ended_and_goes_only_if_that_is_wished() -> None:
    step = unbound(instance(status=InstanceStatus.FAILED, node="n"))
    assert (step.after.observed.status, step.is_purged, step.events) == (InstanceStatus.FAILED, False, ())
    assert unbound(
        instance(status=InstanceStatus.FAILED, node="n", desired=DesiredStatus.DESTROYED)
    ).is_purged


def test_a_wish_for_what_is_nowhere_is_granted_at_once() -> None:
    stopped = transitions.set_desired(instance(), DesiredStatus.STOPPED, at=2.0, actor="me")
    assert stopped is not None
    assert stopped.after.observed.status is InstanceStatus.STOPPED
    assert kinds(stopped) == ["wished", "stopped"]
    again = transitions.set_desired(stopped.after, DesiredStatus.RUNNING, at=2.0, actor="me")
    assert again is not None
    assert again.after.observed.status is InstanceStatus.SCHEDULING
    gone = transitions.set_desired(instance(), DesiredStatus.DESTROYED, at=2.0, actor="me")
    assert gone is not None
    assert gone.is_purged
    assert kinds(gone) == ["wished", "destroying", "terminated"]


def test_a_wish_for_what_is_on_a_node_is_left_to_the_node() -> None:
    step = transitions.set_desired(
        instance(status=InstanceStatus.RUNNING, node="n"), DesiredStatus.STOPPED, at=2.0, actor="me"
    )
    assert step is not None
    assert (step.after.observed.status, step.after.desired) == (InstanceStatus.RUNNING, DesiredStatus.STOPPED)


def test_what_is_to_be_destroyed_says_so_at_once() -> None:
    step = transitions.set_desired(
        instance(status=InstanceStatus.RUNNING, node="n"), DesiredStatus.DESTROYED, at=2.0, actor="me"
    )
    assert step is not None
    assert (step.after.observed.status, step.is_purged) == (InstanceStatus.DESTROYING, False)


def test_the_same_wish_again_changes_nothing() -> None:
    assert transitions.set_desired(instance(), DesiredStatus.RUNNING, at=2.0, actor="me") is None


@pytest.mark.parametrize("status", sorted(TERMINAL))
@pytest.mark.parametrize("desired", [DesiredStatus.RUNNING, DesiredStatus.STOPPED])
def test_what_is_over_cannot_be_started_or_stopped(status: InstanceStatus, desired: DesiredStatus) -> None:
    with pytest.raises(errors.FailedPrecondition, match="final; create a new instance"):
        transitions.set_desired(instance(status=status), desired, at=2.0, actor="me")


def test_another_spec_makes_the_copy_leave_and_keeps_what_it_takes_on_the_books() -> None:
    before = instance(status=InstanceStatus.RUNNING, node="n", what=spec(cpu=100))
    step = transitions.change_spec(before, spec(cpu=200), workload=None, version=0, actor="me")
    assert step is not None
    assert (step.after.spec, step.after.leaving) == (spec(cpu=200), spec(cpu=100))
    assert (step.after.generation, step.after.node) == (2, "n")
    twice = transitions.change_spec(step.after, spec(cpu=300), workload=None, version=0, actor="me")
    assert twice is not None
    assert (twice.after.leaving, twice.after.generation) == (spec(cpu=100), 3)


def test_another_spec_for_what_is_nowhere_is_just_taken() -> None:
    step = transitions.change_spec(instance(), spec(cpu=200), workload=None, version=0, actor="me")
    assert step is not None
    assert (step.after.spec, step.after.leaving, step.after.generation) == (spec(cpu=200), None, 2)


def test_the_same_spec_again_is_no_change() -> None:
    assert transitions.change_spec(instance(), spec(), workload=None, version=0, actor="me") is None


@pytest.mark.parametrize(
    "before",
    [
        instance(status=InstanceStatus.FAILED),
        instance(status=InstanceStatus.DESTROYING, desired=DesiredStatus.DESTROYED, node="n"),
    ],
)
def test_what_is_over_or_to_go_takes_no_other_spec(before: Instance) -> None:
    with pytest.raises(errors.FailedPrecondition):
        transitions.change_spec(before, spec(cpu=200), workload=None, version=0, actor="me")


def test_who_leaves_keeps_its_status_and_says_why() -> None:
    before = instance(status=InstanceStatus.RUNNING, node="n")
    step = transitions.evict(before, reason="node n is being drained")
    assert step is not None
    assert (step.after.observed.status, step.after.observed.reason) == (
        InstanceStatus.RUNNING,
        "node n is being drained",
    )
    assert (step.after.leaving, step.after.generation) == (before.spec, 2)
    assert transitions.evict(step.after, reason="again") is None


wishes = st.sampled_from(DesiredStatus).map(
    lambda desired: lambda one: transitions.set_desired(one, desired, at=2.0, actor="me")
)
losses = st.just(unbound)
leaves = st.just(lambda one: transitions.evict(one, reason="drain") if one.node else None)
changes = st.integers(1, 3).map(
    lambda cpu: lambda one: transitions.change_spec(one, spec(cpu=cpu), workload=None, version=0, actor="me")
)
binds = st.just(
    lambda one: (
        transitions.bind(one, NodeId("n"), at=2.0)
        if one.node is None and one.observed.status is InstanceStatus.SCHEDULING
        else None
    )
)


@given(st.lists(st.one_of(wishes, losses, leaves, changes, binds), max_size=30))
def test_no_order_of_steps_breaks_an_instance(steps: list[object]) -> None:
    one = instance()
    for take in steps:
        try:
            step = take(one)
        except errors.FailedPrecondition:
            continue  # said so, and left it as it was
        if step is None:
            continue
        assert step.after.generation >= one.generation
        assert step.after.leaving is None or step.after.node is not None
        if step.after.node is None and step.after.desired is DesiredStatus.RUNNING:
            assert step.after.observed.status is InstanceStatus.SCHEDULING
        if step.is_purged:
            assert step.after.desired is DesiredStatus.DESTROYED
            return
        one = step.after

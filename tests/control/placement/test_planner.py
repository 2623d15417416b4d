"""Decisions on given moments: who is placed where, who waits and why, who is replaced and when."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skerry.control.instance_index import InstanceIndex, InstanceRecord
from skerry.control.placement.planner import (
    MAX_TERMINAL_INSTANCES,
    PlacementPlan,
    PlacementPlanner,
    PlannedTransition,
    decide,
)
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.nodes import Liveness
from skerry.model.ports import parse
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.schedule.requests import PlacementPolicy
from tests.control.worlds import condition, held, instance, spec

NOW = 100.0
LOST = Liveness.LOST


def where(decided: list[PlannedTransition]) -> dict[str, str | None]:
    return {known.value.id: step.after.node for known, step in decided}


def who(decided: list[PlannedTransition]) -> list[str]:
    return [known.value.id for known, _ in decided]


def aged(id: str, age: float, cpu: int = 100) -> InstanceRecord:
    return held(replace(instance(id, what=spec(cpu=cpu)), created_at=age))


def on_node(
    id: str, node: str, status: InstanceStatus = InstanceStatus.RUNNING, **more: object
) -> InstanceRecord:
    return held(instance(id, status, node=node, **more))


class Desk:
    """A decider whose decisions are applied as they are made, as a runner would."""

    def __init__(self, *known: InstanceRecord, rate: float = 20.0) -> None:
        self.index = InstanceIndex(known)
        self.planner = PlacementPlanner(self.index, policy=PlacementPolicy.BINPACK, replacements_per_s=rate)

    def plan(self, now: float = NOW, limit: int = 1000) -> PlacementPlan:
        plan = self.planner.plan(now, limit)
        for before, step in plan.decided:
            after = None if step.is_purged else held(step.after, before.revision + 1)
            self.change(before, after)
        self.planner.done(known.value.id for known, _ in plan.decided)
        return plan

    def change(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        self.index.update(before, after)
        self.planner.instance_changed(before, after)


def test_an_instance_is_placed_where_it_fits() -> None:
    plan = decide(NOW, [held(instance("one"))], [condition("small", cpu=50), condition("large")])
    assert where(plan.bindings) == {"one": "large"}
    (_, step), *_ = plan.bindings
    assert step.after.observed.status is InstanceStatus.SCHEDULED


def copies(count: int, **more: object) -> list[InstanceRecord]:
    return [held(instance(f"copy{number}", workload="shop", **more)) for number in range(count)]


def test_copies_of_a_workload_are_spread_over_nodes_and_other_instances_are_packed() -> None:
    nodes = [condition(name) for name in ("a", "b", "c")]
    plan = decide(NOW, [*copies(3), held(instance("x")), held(instance("y"))], nodes)
    placed = where(plan.bindings)
    assert {placed[f"copy{number}"] for number in range(3)} == {"a", "b", "c"}
    assert placed["x"] == placed["y"]


def test_a_copy_of_a_lost_node_goes_where_the_fewest_copies_are() -> None:
    names = ("a", "b", "c")
    nodes = [*map(condition, names), condition("gone", liveness=LOST)]
    stay = [on_node(f"on-{name}", name, workload="shop") for name in ("a", "c")]
    lost = on_node("lost", "gone", workload="shop")
    desk = Desk(*stay, on_node("other", "a"), lost)
    for one in nodes:
        desk.planner.node_changed(one.view.id, one)
    desk.planner.begin()
    desk.plan()
    assert where(desk.plan().bindings) == {"lost": "b"}


def test_copies_are_packed_if_that_is_set() -> None:
    index = InstanceIndex(copies(3))
    planner = PlacementPlanner(
        index, policy=PlacementPolicy.BINPACK, replacements_per_s=20.0, spread_copies=False
    )
    for name in ("a", "b", "c"):
        planner.node_changed(NodeId(name), condition(name))
    planner.begin()
    assert len(set(where(planner.plan(NOW, 100).bindings).values())) == 1


def test_the_eldest_gets_the_room() -> None:
    young, old = aged("a", 2.0), aged("b", 1.0)
    plan = decide(NOW, [young, old], [condition("n", cpu=100)])
    assert where(plan.bindings) == {"b": "n"}
    assert who(plan.pending) == ["a"]


def test_who_finds_no_place_is_told_why_by_filter_and_amount() -> None:
    nodes = [condition("small", cpu=50), condition("shut", unschedulable_reason="is cordoned")]
    plan = decide(NOW, [held(instance("one"))], nodes)
    ((_, step),) = plan.pending
    assert step.after.observed.status is InstanceStatus.SCHEDULING
    assert step.after.observed.reason == "1 node: is cordoned; 1 node: lacks 50 milli-cores of cpu"
    assert plan.wake_at is None, "it waits for capacity, not for time"


def test_two_with_the_same_published_port_go_to_two_nodes() -> None:
    web = spec(ports=(parse("8080:80"),))
    known = [held(instance("a", what=web)), held(instance("b", what=web)), held(instance("c", what=web))]
    plan = decide(NOW, known, [condition("m"), condition("n")])
    assert sorted(filter(None, where(plan.bindings).values())) == ["m", "n"]
    assert len(plan.pending) == 1


def test_nothing_is_decided_about_what_is_as_it_should_be() -> None:
    known = [
        on_node("runs", "n"),
        on_node("stopped", "n", InstanceStatus.STOPPED, desired=DesiredStatus.STOPPED),
        held(instance("never-placed", InstanceStatus.STOPPED, desired=DesiredStatus.STOPPED)),
        on_node("failed", "n", InstanceStatus.FAILED),
        on_node("going", "n", InstanceStatus.DESTROYING, desired=DesiredStatus.DESTROYED),
    ]
    plan = decide(NOW, known, [condition("n")])
    assert (plan.decided, plan.wake_at) == ([], None)


def test_what_is_stopped_keeps_its_room_and_what_is_over_does_not() -> None:
    new = held(instance("new", what=spec(cpu=1000)))
    stopped = on_node("old", "n", InstanceStatus.STOPPED, desired=DesiredStatus.STOPPED)
    assert not decide(NOW, [new, stopped], [condition("n")]).bindings
    assert decide(NOW, [new, on_node("old", "n", InstanceStatus.FAILED)], [condition("n")]).bindings


def test_what_is_stopped_and_will_not_be_started_again_gives_its_room_to_others() -> None:
    ended = on_node(
        "ended",
        "n1",
        InstanceStatus.STOPPED,
        desired=DesiredStatus.STOPPED,
        what=spec(cpu=1000),
        retiring_at=1.0,
        is_released=True,
    )
    plan = decide(NOW, [ended, held(instance("next", what=spec(cpu=1000)))], [condition("n1")])
    assert where(plan.bindings) == {"next": "n1"}
    with pytest.raises(errors.FailedPrecondition, match="about to be destroyed"):
        ended.value.with_desired(DesiredStatus.RUNNING)


def test_a_suspect_node_keeps_what_it_has_and_gets_nothing_new() -> None:
    known = [on_node("old", "n"), held(instance("new"))]
    plan = decide(NOW, known, [condition("n", liveness=Liveness.SUSPECT)])
    assert who(plan.decided) == ["new"]
    assert who(plan.pending) == ["new"]


def test_what_was_on_a_lost_node_is_placed_elsewhere_in_a_new_generation() -> None:
    desk = Desk(on_node("one", "gone"))
    desk.planner.node_changed(NodeId("gone"), condition("gone", liveness=LOST))
    desk.planner.node_changed(NodeId("n"), condition("n"))
    desk.planner.begin()
    assert who(desk.plan().replacements) == ["one"]
    assert where(desk.plan().bindings) == {"one": "n"}
    known = desk.index.get("one")
    assert known is not None
    assert known.value.generation == 2


def test_an_unregistered_node_is_as_good_as_lost() -> None:
    plan = decide(NOW, [on_node("one", "unknown")], [condition("n")])
    assert who(plan.replacements) == ["one"]


def test_replacements_are_as_many_as_the_rate_allows_and_the_next_turn_is_when_the_next_is_due() -> None:
    desk = Desk(*(on_node(f"i{number}", "gone") for number in range(50)), rate=10.0)
    desk.planner.node_changed(NodeId("gone"), condition("gone", liveness=LOST))
    desk.planner.node_changed(NodeId("small"), condition("small", cpu=1))
    desk.planner.begin()
    first = desk.plan(now=NOW)
    assert len(first.replacements) == 10
    while (plan := desk.plan(now=NOW)).wake_at == NOW:
        assert not plan.replacements
    assert plan.wake_at is not None
    assert abs(plan.wake_at - (NOW + 0.1)) < 1e-6
    assert len(desk.plan(now=NOW + 0.1).replacements) == 1
    assert len(desk.plan(now=NOW + 1000).replacements) == 10, (
        "a long rest allows no more than a second's worth"
    )


def test_nothing_is_replaced_while_no_node_at_all_is_heard() -> None:
    desk = Desk(on_node("one", "a"), on_node("two", "b"))
    for name in ("a", "b"):
        desk.planner.node_changed(NodeId(name), condition(name, liveness=LOST))
    desk.planner.begin()
    plan = desk.plan()
    assert not plan.decided
    assert plan.wake_at is None
    desk.planner.node_changed(
        NodeId("b"), condition("b")
    )  # it is back, with what it had; the other one is not
    assert who(desk.plan().replacements) == ["one"]
    assert len(desk.index.on_node(NodeId("b"))) == 1


def test_what_is_not_to_run_does_not_count_against_the_rate() -> None:
    stopped = [
        on_node(f"i{number}", "gone", InstanceStatus.STOPPED, desired=DesiredStatus.STOPPED)
        for number in range(50)
    ]
    plan = decide(NOW, stopped, [condition("gone", liveness=LOST)], replacements_per_s=1.0)
    assert len(plan.replacements) == 50


def test_a_node_that_comes_back_in_time_keeps_what_was_not_replaced_yet() -> None:
    desk = Desk(*(on_node(f"i{number}", "n") for number in range(5)), rate=1.0)
    desk.planner.node_changed(NodeId("n"), condition("n", liveness=LOST))
    desk.planner.node_changed(NodeId("small"), condition("small", cpu=1))
    desk.planner.begin()
    assert len(desk.plan().replacements) == 1
    desk.planner.node_changed(NodeId("n"), condition("n"))
    assert not desk.plan(now=NOW + 100).replacements
    assert len(desk.index.on_node(NodeId("n"))) >= 4


def test_what_is_to_be_destroyed_goes_with_a_lost_node() -> None:
    known = [
        on_node("going", "n", InstanceStatus.DESTROYING, desired=DesiredStatus.DESTROYED),
        on_node("failed", "n", InstanceStatus.FAILED, desired=DesiredStatus.DESTROYED),
        on_node("kept", "n", InstanceStatus.FAILED),
    ]
    plan = decide(NOW, known, [condition("n", liveness=LOST)])
    assert {known.value.id: step.is_purged for known, step in plan.replacements} == {
        "going": True,
        "failed": True,
    }


def test_a_drained_node_gives_up_what_has_somewhere_to_go_and_keeps_the_rest_until_its_time() -> None:
    desk = Desk(*(on_node(f"i{number}", "old", what=spec(cpu=400)) for number in range(2)))
    desk.planner.node_changed(NodeId("old"), condition("old", drain_by=NOW + 60))
    desk.planner.node_changed(NodeId("new"), condition("new", cpu=500))
    desk.planner.begin()
    plan = desk.plan()
    assert who(plan.evictions) == ["i0"], "there is room for one elsewhere"
    while (plan := desk.plan()).wake_at == NOW:
        assert not plan.decided
    assert plan.wake_at == NOW + 60
    assert who(desk.plan(now=NOW + 60).evictions) == ["i1"]


def test_room_is_kept_for_who_leaves_and_given_back_if_it_does_not_come() -> None:
    desk = Desk(on_node("mover", "old", what=spec(cpu=400)))
    desk.planner.node_changed(NodeId("old"), condition("old", drain_by=NOW + 60))
    desk.planner.node_changed(NodeId("new"), condition("new", cpu=500))
    desk.planner.begin()
    assert desk.plan().evictions
    desk.change(None, held(instance("late", what=spec(cpu=400))))
    assert not desk.plan().bindings
    moving = desk.index.get("mover")
    desk.change(moving, None)
    assert where(desk.plan().bindings) == {"late": "new"}


def test_a_changed_spec_stays_where_it_was_if_it_fits_there() -> None:
    desk = Desk(on_node("one", "roomy", leaving=spec(), generation=2))
    for name, cpu in (("roomy", 1000), ("tight", 100)):
        desk.planner.node_changed(NodeId(name), condition(name, cpu=cpu))
    desk.planner.begin()
    assert not desk.plan().decided
    left = desk.index.get("one")
    assert left is not None
    desk.change(left, held(instance("one", generation=3), 2))
    assert where(desk.plan().bindings) == {"one": "roomy"}, "binpack alone would have chosen the tight one"


def test_a_copy_that_came_back_larger_unseen_takes_its_new_room() -> None:
    """A server that does not lead may hear of two copies on one node without what was between them."""
    before = on_node("one", "n", what=spec(cpu=100))
    desk = Desk(before)
    desk.planner.node_changed(NodeId("n"), condition("n", cpu=1000))
    desk.planner.begin()
    desk.plan()
    desk.change(before, held(replace(before.value, spec=spec(cpu=900), generation=3), 2))
    two = held(instance("two", what=spec(cpu=200)))
    desk.change(None, two)
    assert where(desk.plan().bindings) == {}


def test_who_waits_is_woken_by_capacity_that_could_hold_it_and_by_nothing_else() -> None:
    desk = Desk(held(instance("big", what=spec(cpu=800))))
    desk.planner.node_changed(NodeId("n"), condition("n", cpu=500))
    desk.planner.begin()
    assert who(desk.plan().pending) == ["big"]
    while desk.plan().wake_at is not None:
        pass
    desk.planner.node_changed(NodeId("m"), condition("m", cpu=500))
    assert not desk.plan().decided
    desk.planner.node_changed(NodeId("m"), condition("m", cpu=900))
    assert where(desk.plan().bindings) == {"big": "m"}


def test_room_that_is_given_back_goes_to_who_waits() -> None:
    desk = Desk(on_node("old", "n", what=spec(cpu=900)), aged("new", 5.0, cpu=900))
    desk.planner.node_changed(NodeId("n"), condition("n"))
    desk.planner.begin()
    assert who(desk.plan().pending) == ["new"]
    desk.change(desk.index.get("old"), None)
    assert where(desk.plan().bindings) == {"new": "n"}


def test_what_did_not_happen_is_taken_back_and_decided_anew() -> None:
    desk = Desk(aged("one", 1.0, cpu=900), aged("two", 2.0, cpu=900))
    desk.planner.node_changed(NodeId("n"), condition("n"))
    desk.planner.begin()
    plan = desk.planner.plan(NOW, 10)
    assert where(plan.bindings) == {"one": "n"}
    assert not desk.planner.plan(NOW, 10).bindings, "its room is given away until it is known how it went"
    one = desk.index.get("one")
    assert one is not None
    desk.change(one, None)  # it was destroyed at the same time, so the transaction failed
    desk.planner.done(known.value.id for known, _ in plan.decided)
    assert where(desk.planner.plan(NOW, 10).bindings) == {"two": "n"}


def test_a_turn_is_bounded_and_says_if_there_is_more() -> None:
    desk = Desk(*(aged(f"i{number:03}", float(number)) for number in range(100)))
    desk.planner.node_changed(NodeId("n"), condition("n", cpu=100_000))
    desk.planner.begin()
    plans = [desk.plan(limit=30)]
    while plans[-1].wake_at == NOW:
        plans.append(desk.plan(limit=30))
    sizes = [len(plan.bindings) for plan in plans]
    assert max(sizes) == 30
    assert sum(sizes) == 100


def test_a_thousand_who_wait_for_the_same_are_tried_once(monkeypatch) -> None:
    desk = Desk(*(aged(f"i{number:04}", float(number), cpu=900) for number in range(1000)))
    desk.planner.node_changed(NodeId("n"), condition("n", cpu=10))
    desk.planner.begin()
    searches = []
    search = desk.planner._scheduler.place
    monkeypatch.setattr(
        desk.planner._scheduler, "place", lambda ask, policy: searches.append(ask) or search(ask, policy)
    )
    while desk.plan(limit=60).wake_at is not None:
        pass
    assert len(searches) == 1
    assert all("lacks 890" in known.value.observed.reason for known in desk.index)


def test_of_what_is_over_only_so_much_is_kept_and_the_first_to_end_go_first() -> None:
    over = [
        held(instance(f"i{number:04}", InstanceStatus.FAILED)) for number in range(MAX_TERMINAL_INSTANCES + 3)
    ]
    plan = decide(NOW, over, [])
    assert who(plan.expirations) == ["i0000", "i0001", "i0002"]
    assert all(step.is_purged for _, step in plan.expirations)


def test_what_is_over_and_still_on_a_node_is_first_removed_there() -> None:
    over = [
        on_node(f"i{number:04}", "n", InstanceStatus.TERMINATED)
        for number in range(MAX_TERMINAL_INSTANCES + 1)
    ]
    plan = decide(NOW, over, [condition("n")])
    ((_, step),) = plan.expirations
    assert (step.is_purged, step.after.desired) == (False, DesiredStatus.DESTROYED)


def test_explaining_does_not_move_anything() -> None:
    desk = Desk(on_node("one", "n", what=spec(cpu=900)))
    desk.planner.node_changed(NodeId("n"), condition("n"))
    desk.planner.begin()
    known = desk.index.get("one")
    assert known is not None
    (verdict,) = desk.planner.explain(known.value)
    assert verdict.fits, "what it takes itself is not in its way"
    assert not desk.plan().decided


def test_a_server_that_does_not_lead_remembers_nothing_of_what_is_gone() -> None:
    desk = Desk()
    desk.planner.node_changed(NodeId("n"), condition("n"))
    for number in range(100):
        one = held(instance(f"i{number}"))
        desk.change(None, one)
        desk.change(one, None)
    assert not desk.planner._dirty

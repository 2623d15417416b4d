"""What is decided about services, case by case; that it never goes wrong is `test_properties`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skerry.control.services import decisions, rollouts
from skerry.control.services.copies import NodeAvailability
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.ports import PortMapping
from skerry.model.services import (
    DisruptionBudget,
    ServiceStatus,
    UpdateFailureAction,
    UpdateOrder,
    UpdatePolicy,
)
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance
from tests.control.services.worlds import World, make_service, revision, updated

QUICK = UpdatePolicy(min_ready_s=0.0, drain_s=0.0)


def well(replicas: int = 3, **fields: object) -> World:
    world = World(make_service(replicas, **fields))
    world.settle()
    assert len(world.ready) == replicas
    return world


def is_old(copy: Instance) -> bool:
    return copy.owner is not None and copy.owner.revision == 1


def test_a_new_service_gets_its_copies_and_is_healthy_when_they_are_ready() -> None:
    world = World(make_service(3, stable=None, rollout=rollouts.begin(1000.0)))
    plan = world.turn()
    assert [new.index for new in plan.creates] == [0, 1, 2]
    assert world.service.status(0) is ServiceStatus.STARTING
    world.settle()
    assert world.service.rollout is None
    assert world.service.stable == world.service.target
    assert world.service.status(len(world.ready)) is ServiceStatus.HEALTHY


def test_a_copy_that_is_over_is_replaced_after_pauses_that_grow() -> None:
    world = well(1)
    pauses = []
    for _ in range(12):
        (copy,) = world.existing
        world.run(copy)
        world.end(copy)
        ended_at = world.now
        while not world.existing:
            plan = world.turn()
            world.purge()
            if not plan.creates:
                assert plan.wake_at is not None
                world.now = plan.wake_at
        pauses.append(world.now - ended_at)
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == 300.0
    assert len(world.copies) == 2, "the copy, and the last that failed, for its logs"


def test_an_index_with_a_hole_is_filled_first() -> None:
    world = well(3)
    (copy,) = world.of_index(1)
    del world.copies[copy.id]
    assert [new.index for new in world.turn().creates] == [1]


def test_scaling_down_takes_the_least_ready_and_then_the_newest() -> None:
    world = well(4)
    for age, copy in enumerate(list(world.copies.values())):
        world.copies[copy.id] = replace(copy, created_at=float(age))
    world.check(world.of_index(1)[0], has_passed=False)
    world.service = replace(world.service, replicas=2)
    plan = world.turn()
    assert [copy.owner.index for copy in plan.destroys if copy.owner] == [1], "it served nobody"
    assert [copy.owner.index for copy in plan.retires if copy.owner] == [3]
    world.settle()
    assert sorted(copy.owner.index for copy in world.ready if copy.owner) == [0, 2]


def test_start_first_makes_the_new_copy_before_the_old_one_goes() -> None:
    world = well(3)
    world.service = updated(world.service, revision(2), world.now)
    plan = world.turn()
    assert (len(plan.creates), plan.retires, plan.destroys) == (1, [], [])
    assert world.turn().creates == [], "the surge is 1"
    world.make_ready()
    assert [copy.owner.revision for copy in world.turn().retires if copy.owner] == [1]
    world.settle()
    assert world.revisions() == [2, 2, 2]
    assert world.service.stable is not None
    assert world.service.stable.number == 2
    assert world.events == ["updated"]


def test_a_service_with_published_ports_is_updated_stop_first_and_says_so() -> None:
    ports = (PortMapping(8080, 80),)
    world = well(3, target=revision(1, ports=ports))
    bounds = world.service.bounds
    assert bounds.is_stop_first
    assert "8080" in bounds.reason
    world.service = updated(world.service, revision(2, ports=ports), world.now)
    plan = world.turn()
    assert (plan.creates, len(plan.retires)) == ([], 1)
    assert world.turn().creates == [], "not before the old copy is gone"
    world.purge()
    assert len(world.turn().creates) == 1
    world.settle()
    assert world.revisions() == [2, 2, 2]


def test_a_retired_copy_is_destroyed_when_it_has_drained() -> None:
    world = well(2, update=UpdatePolicy(min_ready_s=0.0, drain_s=7.0))
    world.service = replace(world.service, replicas=1)
    plan = world.turn()
    assert len(plan.retires) == 1
    plan = world.turn()
    assert plan.destroys == []
    assert plan.wake_at == world.now + 7.0
    world.now += 7.0
    assert len(world.turn().destroys) == 1


def test_a_copy_counts_only_when_it_has_been_ready_for_long_enough() -> None:
    world = well(1, update=UpdatePolicy(min_ready_s=10.0, drain_s=0.0))
    world.now += 60
    world.turn()
    world.service = updated(world.service, revision(2), world.now)
    world.turn()
    world.make_ready()
    plan = world.turn()
    assert plan.retires == []
    assert plan.wake_at == world.now + 10.0
    world.now += 10.0
    assert len(world.turn().retires) == 1


def test_a_bad_revision_is_reverted_and_no_good_copy_is_touched_before() -> None:
    world = well(3)
    good = {copy.id for copy in world.ready}
    world.service = updated(world.service, revision(2), world.now)
    world.settle(is_good=is_old)
    assert {copy.id for copy in world.ready} == good
    assert world.service.target.number == 1
    assert world.service.rollout is None
    assert world.events == ["failed", "reverting", "reverted"]


def test_a_revert_keeps_ready_copies_of_the_bad_revision_until_they_are_replaced() -> None:
    world = well(2)
    world.service = updated(world.service, revision(2), world.now)
    world.turn()
    world.make_ready()
    world.turn()
    world.turn()
    world.purge()  # one old copy is replaced by a good one of revision 2
    assert world.revisions() == [1, 2]
    world.turn()
    (bad,) = [copy for copy in world.existing if not is_old(copy) and not copy.is_ready]
    world.run(bad)
    world.copies[bad.id] = replace(world.copies[bad.id], restarts=3)
    plan = world.turn()
    assert world.service.target.number == 1
    assert plan.retires == []
    assert [copy.id for copy in plan.destroys] == [bad.id]
    assert len(world.ready) == 2
    world.settle()
    assert world.revisions() == [1, 1]


def test_copies_that_crash_too_often_fail_an_update_long_before_its_deadline() -> None:
    world = well(2)
    world.service = updated(world.service, revision(2), world.now)
    world.turn()
    (new,) = [copy for copy in world.existing if not is_old(copy)]
    world.run(new)
    world.copies[new.id] = replace(world.copies[new.id], restarts=3)
    world.turn()
    assert world.service.rollout is not None
    assert world.service.rollout.is_revert
    assert "failed 3 times" in world.service.rollout.reason


def test_restarts_from_before_an_update_do_not_count_against_it() -> None:
    world = well(2)
    for copy in list(world.copies.values()):
        world.copies[copy.id] = replace(copy, restarts=50)
    world.now += 1
    world.service = replace(updated(world.service, revision(2), world.now), target=world.service.target)
    world.turn()
    assert world.service.rollout is None, "it is done, and did not fail"


def test_an_update_that_is_told_to_pause_on_failure_stays_until_somebody_decides() -> None:
    policy = replace(QUICK, on_failure=UpdateFailureAction.PAUSE)
    world = well(2, update=policy)
    world.service = updated(world.service, revision(2), world.now)
    world.settle(is_good=is_old)
    assert world.service.status(2) is ServiceStatus.FAILED
    assert world.service.target.number == 2
    assert len([copy for copy in world.ready if is_old(copy)]) == 2


def test_a_first_revision_that_fails_goes_on_trying_and_completes_when_it_gets_well() -> None:
    world = World(make_service(1, stable=None, rollout=rollouts.begin(1000.0)))
    world.settle(is_good=lambda copy: False, turns=50)
    assert world.service.status(0) is ServiceStatus.FAILED
    world.settle()
    assert world.service.status(1) is ServiceStatus.HEALTHY


def test_canaries_go_first_and_wait_for_somebody() -> None:
    world = well(4, update=replace(QUICK, canary=1))
    world.service = updated(world.service, revision(2), world.now)
    world.settle()
    assert world.revisions() == [1, 1, 1, 2]
    assert world.service.status(4) is ServiceStatus.CANARY
    world.now += 10_000
    world.settle()
    assert world.revisions() == [1, 1, 1, 2], "whoever promotes has all the time they want"
    assert world.service.rollout is not None
    world.service = replace(world.service, rollout=rollouts.promote(world.service.rollout, world.now))
    world.settle()
    assert world.revisions() == [2, 2, 2, 2]


def test_canaries_are_promoted_by_themselves_after_a_time() -> None:
    world = well(3, update=replace(QUICK, canary=1, promote_after_s=60.0))
    world.service = updated(world.service, revision(2), world.now)
    begun = world.now
    world.settle()
    assert world.revisions() == [2, 2, 2]
    assert world.now >= begun + 60.0
    assert "promoted" in world.events


def test_during_canaries_another_copy_that_fails_is_replaced_by_the_old_revision() -> None:
    world = well(3, update=replace(QUICK, canary=1))
    world.service = updated(world.service, revision(2), world.now)
    world.settle()
    old = next(copy for copy in world.ready if is_old(copy))
    world.end(old)
    world.settle()
    assert world.revisions() == [1, 1, 2]


def test_a_paused_update_goes_no_further_and_failed_copies_are_still_replaced() -> None:
    world = well(3)
    world.service = updated(world.service, revision(2), world.now)
    world.turn()
    world.make_ready()
    world.service = replace(world.service, is_paused=True)
    world.settle()
    assert world.revisions() == [1, 1, 1, 2], "as it was when it was paused"
    (victim,) = world.of_index(2)
    world.end(victim)
    world.settle()
    assert len(world.ready) == 4
    world.service = replace(world.service, is_paused=False)
    world.settle()
    assert world.revisions() == [2, 2, 2]


def test_a_drain_starts_the_replacement_first() -> None:
    world = well(3)
    world.draining = {NodeId("n1")}
    plan = world.turn()
    assert ([new.index for new in plan.creates], plan.retires) == ([1], [])
    (new,) = [copy for copy in world.of_index(1) if copy.node is None]
    world.run(new, "n7")
    assert world.turn().retires == []
    world.check(new, has_passed=True)
    assert [copy.node for copy in world.turn().retires] == ["n1"]


def test_a_drain_without_a_place_for_the_replacement_waits_unless_the_budget_allows_more() -> None:
    world = well(3)
    world.draining = {NodeId("n1")}
    world.turn()
    assert world.turn().retires == []
    world.service = replace(world.service, budget=DisruptionBudget(max_unavailable=1))
    assert [copy.node for copy in world.turn().retires] == ["n1"]


def test_copies_on_nodes_that_are_silent_do_not_count_as_ready() -> None:
    world = well(2, update=replace(QUICK, max_surge=2))
    world.unreachable = {NodeId("n0")}
    world.service = updated(world.service, revision(2), world.now)
    world.turn()
    for copy in list(world.existing):
        if copy.node is None:
            world.run(copy, f"n{copy.owner.index + 5}" if copy.owner else "")
    new = next(copy for copy in world.of_index(1) if not is_old(copy))
    world.check(new, has_passed=True)
    assert [copy.node for copy in world.turn().retires] == [], "only 1 other would be ready"


def test_a_node_whose_clock_is_ahead_does_not_stop_an_update() -> None:
    world = well(1, update=UpdatePolicy(min_ready_s=5.0, drain_s=0.0))
    world.now += 100
    world.turn()
    world.service = updated(world.service, revision(2), world.now)
    world.turn()
    world.make_ready()
    (new,) = [copy for copy in world.existing if not is_old(copy)]
    ahead = replace(world.copies[new.id].observed, since=world.now + 7200)
    world.copies[new.id] = replace(world.copies[new.id], observed=ahead)
    assert len(world.turn().retires) == 1


def test_copies_on_nodes_that_are_silent_are_not_destroyed_for_an_update() -> None:
    """The server may be the one that is cut off, and all of them in service."""
    world = well(3, update=replace(QUICK, order=UpdateOrder.STOP_FIRST, max_unavailable=1))
    world.unreachable = {NodeId("n0"), NodeId("n1"), NodeId("n2")}
    world.service = updated(world.service, revision(2), world.now)
    plan = world.turn()
    assert (plan.retires, plan.destroys) == ([], [])
    world.unreachable.clear()
    world.settle()
    assert world.revisions() == [2, 2, 2]


def test_a_node_whose_clock_is_ahead_does_not_hold_up_the_next_copy() -> None:
    world = well(1)
    (copy,) = world.existing
    world.end(copy)
    ahead = replace(world.copies[copy.id].observed, since=world.now + 86_400)
    world.copies[copy.id] = replace(world.copies[copy.id], observed=ahead)
    world.now += 1.0
    (new,) = world.turn().creates
    assert new.attempt == 1


def test_a_copy_that_retires_goes_also_if_the_clock_is_set_back() -> None:
    world = well(2, update=replace(QUICK, drain_s=5.0))
    world.service = replace(world.service, replicas=1)
    assert len(world.turn().retires) == 1
    world.now -= 30.0
    assert world.turn().destroys == [], "perhaps another server leads, whose clock is behind"
    world.now -= 3600.0
    assert len(world.turn().destroys) == 1


def test_canaries_that_get_worse_after_a_long_wait_have_their_whole_deadline() -> None:
    world = well(3, update=replace(QUICK, canary=1))
    world.service = updated(world.service, revision(2), world.now)
    world.settle()
    world.now += 10_000
    canary = next(copy for copy in world.ready if not is_old(copy))
    world.check(canary, has_passed=False)
    world.turn()
    assert world.service.status(2) is ServiceStatus.CANARY
    world.now += world.service.update.deadline_s
    world.turn()
    assert world.service.status(2) is ServiceStatus.REVERTING


def test_the_time_in_which_nobody_led_does_not_count_against_an_update() -> None:
    world = well(1)
    world.service = updated(world.service, revision(2), world.now)
    world.turn()
    world.now += 86_400
    deadline_s = world.service.update.deadline_s
    copies = list(world.copies.values())
    nodes = NodeAvailability(watched_since=world.now)
    plan = decisions.decide(world.service, copies, nodes, world.now + deadline_s - 1)
    assert (plan.events, plan.wake_at) == ([], world.now + deadline_s)
    plan = decisions.decide(world.service, copies, nodes, world.now + deadline_s)
    assert [event.kind for event in plan.events] == ["failed", "reverting"]


def test_a_deleted_service_takes_its_copies_with_it_and_is_removed_when_they_are_gone() -> None:
    world = well(3)
    world.service = replace(world.service, is_deleting=True)
    plan = world.turn()
    assert len(plan.destroys) == 3
    assert not plan.is_removed
    assert world.turn().destroys == []
    world.purge()
    world.turn()
    assert world.is_removed


def test_nothing_is_decided_about_a_service_that_is_well() -> None:
    world = well(3)
    plan = world.decide()
    assert (plan.creates, plan.retires, plan.destroys) == ([], [], [])
    assert plan.service is world.service
    assert plan.wake_at is None


def test_a_service_of_thousands_is_created_in_turns() -> None:
    world = World(make_service(1000))
    assert len(world.turn().creates) == 64
    assert len(world.turn().creates) == 64


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_surge": 0, "max_unavailable": 0}, "both be 0"),
        ({"max_surge": "0%", "max_unavailable": "0%"}, "both be 0"),
        ({"order": UpdateOrder.START_FIRST, "max_surge": 0, "max_unavailable": 1}, "start-first"),
        ({"order": UpdateOrder.STOP_FIRST}, "stop-first"),
        ({"max_surge": "101%"}, "100%"),
        ({"max_surge": -1}, "number of copies"),
        ({"deadline_s": 0.0}, "deadline_s"),
        ({"deadline_s": 5.0, "min_ready_s": 5.0}, "min_ready_s"),
        ({"drain_s": float("nan")}, "drain_s"),
        ({"canary": -1}, "canary"),
    ],
)
def test_a_policy_that_could_never_be_carried_out_is_refused(fields: dict[str, object], word: str) -> None:
    with pytest.raises(errors.Invalid, match=word):
        UpdatePolicy(**fields)  # type: ignore[arg-type]


def test_a_million_replicas_and_more_canaries_than_copies_are_refused() -> None:
    with pytest.raises(errors.Invalid, match="10000"):
        make_service(1_000_000)
    with pytest.raises(errors.Invalid, match="canaries"):
        make_service(2, update=replace(QUICK, canary=3))


def test_a_copy_that_ends_well_is_replaced_too() -> None:
    world = well(1)
    (copy,) = world.existing
    world.end(copy, InstanceStatus.TERMINATED)
    world.settle()
    assert len(world.ready) == 1
    assert all(one.desired is DesiredStatus.RUNNING for one in world.existing)


def test_a_copy_that_somebody_stops_is_removed_and_replaced() -> None:
    world = well(2)
    (copy,) = world.of_index(1)
    world.copies[copy.id] = replace(copy, desired=DesiredStatus.STOPPED)
    plan = world.turn()
    assert [one.id for one in plan.destroys] == [copy.id]
    assert [new.index for new in plan.creates] == [1]
    world.settle()
    assert len(world.ready) == 2

"""Fates: the same for the same seed and run, and as common as they are said to be."""

from __future__ import annotations

from skerry.model.ids import InstanceId
from skerry.sim.cluster.fault_plan import (
    BAD_IMAGES,
    UNHEALTHY_FOR_S,
    FaultPlan,
    RandomFaultPlanner,
    RunKey,
    healthy_runs,
)


def runs(count: int) -> list[RunKey]:
    return [RunKey(InstanceId(f"i{number}"), 1, 1) for number in range(count)]


def test_a_run_has_the_same_fate_again_and_other_runs_have_others() -> None:
    one, again, other = RandomFaultPlanner(1), RandomFaultPlanner(1), RandomFaultPlanner(2)
    assert [one(run) for run in runs(50)] == [again(run) for run in runs(50)]
    assert [one(run) for run in runs(50)] != [other(run) for run in runs(50)]


def test_shares_are_about_what_they_are_said_to_be() -> None:
    fates = [RandomFaultPlanner(3, refused=0.1, crashed=0.2, ended=0.3)(run) for run in runs(4000)]
    refused = sum(bool(plan.refusal) for plan in fates)
    crashed = sum(plan.runs_s is not None and plan.exit_code != 0 for plan in fates)
    ended = sum(plan.runs_s is not None and plan.exit_code == 0 for plan in fates)
    assert [round(count / 4000, 1) for count in (refused, crashed, ended)] == [0.1, 0.2, 0.3]


def test_in_calm_everything_starts_and_runs_for_ever() -> None:
    calm = RandomFaultPlanner(3, refused=0.5, crashed=0.5, is_calm=True)
    for plan in map(calm, runs(100)):
        assert (plan.refusal, plan.runs_s) == ("", None)


def test_well_takes_the_time_it_is_given() -> None:
    assert healthy_runs(3.0)(runs(1)[0]).start_s == 3.0


def test_checks_pass_after_a_while_fail_for_another_and_pass_again() -> None:
    plan = FaultPlan(ready_s=1.0, unhealthy_after_s=5.0)
    asked_at = [100.0, 100.9, 101.0, 105.9, 106.0, 106.0 + UNHEALTHY_FOR_S]
    assert [plan.passes(100.0, at) for at in asked_at] == [False, False, True, True, False, True]
    assert not FaultPlan(ready_s=None).passes(100.0, 1e9)


def test_bad_images_never_work_not_even_in_calm() -> None:
    calm = RandomFaultPlanner(3, is_calm=True)
    for image in BAD_IMAGES:
        plan = calm(RunKey(InstanceId("one"), 1, 1, image))
        assert plan.refusal or plan.runs_s is not None or plan.ready_s is None

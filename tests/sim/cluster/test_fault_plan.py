"""Fates: the same for the same seed and run, and as common as they are said to be."""

from __future__ import annotations

from skerry.model.ids import InstanceId
from skerry.sim.cluster.fault_plan import RandomFaultPlanner, RunKey, healthy_runs


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

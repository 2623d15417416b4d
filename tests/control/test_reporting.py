"""What nodes report: which reports count, and what they may not touch."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from skerry.control import transitions
from skerry.control.reporting import Weight, fold, judge
from skerry.model.ids import InstanceId, NodeId
from skerry.model.orders import Report
from skerry.model.room import NOTHING
from skerry.model.statuses import ALLOWED, FINAL, Desired, Status
from skerry.model.workloads import Instance
from tests.control.worlds import alone, held, instance, room, spec, standing

NODE = NodeId("n")


def report(status: Status, *, generation: int = 1, at: float = 5.0, **more: object) -> Report:
    return Report(InstanceId("one"), generation, status, at, **more)


def weigh(one: Instance | None, told: Report, node: NodeId | None = NODE) -> Weight:
    return judge(one, node, told, 9.0).outcome.weight


def test_what_the_state_machine_allows_is_taken_with_its_time_reason_and_exit_code() -> None:
    one = instance(status=Status.RUNNING, node="n")
    _, step = judge(one, NODE, report(Status.CRASHED, reason="out of memory", exit_code=137, restarts=2), 9.0)
    assert step is not None
    seen = step.after.observed
    assert (seen.status, seen.since, seen.reason, seen.exit_code, seen.actor) == (
        Status.CRASHED,
        5.0,
        "out of memory",
        137,
        "node/n",
    )
    assert step.after.restarts == 2
    assert [(told.kind, told.reason, told.data) for told in step.told] == [
        ("crashed", "out of memory", {"exit_code": "137"})
    ]


OBSERVED = [status for status in Status if status is not Status.DESTROYING]


@pytest.mark.parametrize("now", OBSERVED)
def test_a_report_by_others_is_taken_exactly_if_the_status_may_follow(now: Status) -> None:
    one = instance(status=now, node="n")
    for then in set(Status) - {now, Status.SCHEDULING, Status.SCHEDULED}:
        outcome, _ = judge(one, NODE, report(then), 9.0, actor="somebody")
        assert (outcome.weight is Weight.APPLIED) is (then in ALLOWED[now]), f"{now} -> {then}"


@pytest.mark.parametrize("now", sorted(set(OBSERVED) - FINAL))
def test_a_node_that_forgot_what_it_had_to_tell_is_believed_and_the_way_there_is_told(now: Status) -> None:
    """A machine that was set up anew begins at the beginning, and so does not speak in the right order."""
    one = instance(status=now, node="n")
    for then in set(Status) - {now, Status.SCHEDULING, Status.SCHEDULED}:
        _, step = judge(one, NODE, report(then), 9.0)
        assert step is not None, f"{now} -> {then}"
        assert step.after.observed.status is then
        told = [Status(telling.kind.upper()) for telling in step.told]
        assert told[-1] is then
        for before, after in itertools.pairwise([now, *told]):
            assert after in ALLOWED[before], f"{now} -> {then} by {told}"


def test_a_report_that_its_node_has_overtaken_does_not_count() -> None:
    one = instance(status=Status.RUNNING, node="n")
    _, stopping = judge(one, NODE, report(Status.STOPPING, at=20.0), 30.0)
    assert stopping is not None
    _, stopped = judge(stopping.after, NODE, report(Status.STOPPED, at=21.0), 30.0)
    assert stopped is not None
    assert weigh(stopped.after, report(Status.STARTING, at=10.0)) is Weight.OUTDATED
    assert weigh(stopped.after, report(Status.STARTING, at=22.0)) is Weight.APPLIED


def test_a_node_whose_clock_is_behind_that_of_the_server_is_believed_all_the_same() -> None:
    one = transitions.bind(instance(), NODE, at=1000.0).after
    assert weigh(one, report(Status.STARTING, at=5.0)) is Weight.APPLIED


@pytest.mark.parametrize("status", [Status.SCHEDULING, Status.SCHEDULED])
def test_a_node_does_not_say_where_an_instance_is_placed(status: Status) -> None:
    assert weigh(instance(status=Status.STARTING, node="n"), report(status)) is Weight.REFUSED


def test_what_is_over_stays_over_and_a_repeat_is_fine() -> None:
    for final in FINAL:
        one = instance(status=final, node="n")
        assert weigh(one, report(Status.RUNNING)) is Weight.REFUSED
    one = instance(status=Status.RUNNING, node="n")
    _, step = judge(one, NODE, report(Status.TERMINATED, exit_code=0), 9.0)
    assert step is not None
    assert weigh(step.after, report(Status.TERMINATED, exit_code=0)) is Weight.REPEATED


def test_what_a_report_leaves_out_does_not_wipe_out_what_was_asked_for() -> None:
    one = instance(status=Status.STARTING, node="n", what=spec(cpu=700))
    _, step = judge(one, NODE, report(Status.FAILED, reason="no such image"), 9.0)
    assert step is not None
    assert (step.after.spec, step.after.desired) == (one.spec, one.desired)


def test_a_node_that_has_an_instance_it_should_not_have_is_told_so() -> None:
    assert weigh(None, report(Status.RUNNING)) is Weight.STALE
    assert weigh(instance(status=Status.RUNNING, node="other"), report(Status.RUNNING)) is Weight.STALE
    assert weigh(instance(), report(Status.RUNNING)) is Weight.STALE


def test_a_report_of_an_earlier_copy_does_not_count_for_the_present_one() -> None:
    one = instance(status=Status.RUNNING, node="n", generation=3)
    assert weigh(one, report(Status.CRASHED, generation=1)) is Weight.OUTDATED
    assert weigh(one, report(Status.CRASHED, generation=4)) is Weight.OUTDATED


def test_who_is_no_node_may_leave_out_node_and_generation() -> None:
    one = instance(status=Status.RUNNING, node="n", generation=3)
    assert weigh(one, report(Status.CRASHED, generation=0), node=None) is Weight.APPLIED


def test_an_instance_that_is_to_go_is_over_when_its_node_says_so_and_not_before() -> None:
    one = instance(status=Status.DESTROYING, desired=Desired.DESTROYED, node="n")
    assert weigh(one, report(Status.RUNNING)) is Weight.OUTDATED
    assert weigh(one, report(Status.CRASHED)) is Weight.OUTDATED
    _, step = judge(one, NODE, report(Status.TERMINATED), 9.0)
    assert step is not None
    assert step.is_purged


def test_a_failed_instance_that_is_to_go_goes_too() -> None:
    one = instance(status=Status.FAILED, desired=Desired.DESTROYED, node="n")
    _, step = judge(one, NODE, report(Status.TERMINATED), 9.0)
    assert step is not None
    assert step.is_purged


def test_a_copy_that_left_makes_the_instance_wait_for_a_node_again() -> None:
    one = instance(status=Status.RUNNING, node="n", leaving=spec())
    assert weigh(one, report(Status.STOPPING)) is Weight.OUTDATED
    _, step = judge(one, NODE, report(Status.TERMINATED), 9.0)
    assert step is not None
    assert (step.after.observed.status, step.after.node, step.is_purged) == (Status.SCHEDULING, None, False)


def test_reports_of_one_instance_come_to_one_step_that_tells_of_all_of_them() -> None:
    known = {InstanceId("one"): held(instance(status=Status.SCHEDULED, node="n"))}
    outcomes, steps = fold(
        known, NODE, [report(Status.STARTING), report(Status.RUNNING), report(Status.SCHEDULED)], 9.0
    )
    assert [outcome.weight for outcome in outcomes] == ["applied", "applied", "refused"]
    step = steps[InstanceId("one")]
    assert step.after.observed.status is Status.RUNNING
    assert [told.kind for told in step.told] == ["starting", "running"]


async def test_a_repeat_that_says_nothing_new_is_not_written_and_what_is_used_is_known() -> None:
    async with alone(standing("n")) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        await server.becomes(one.id, Status.SCHEDULED)
        await server.say(one.id, Status.STARTING, Status.RUNNING, ip="10.0.0.2")
        revision = server.instances.revision(one.id)
        weights = await server.say(one.id, Status.RUNNING, ip="10.0.0.2", usage=room(cpu=42))
        assert weights == ["repeated"]
        assert server.instances.revision(one.id) == revision
        assert server.instances.usage(one.id) == room(cpu=42)
        await server.say(one.id, Status.CRASHED)
        assert server.instances.usage(one.id) == NOTHING


async def test_many_reports_take_few_transactions_and_all_are_applied() -> None:
    async with alone(standing("n", cpu=100_000)) as (server, _):
        ids = [(await server.instances.create(spec(), actor="me"))[0].id for _ in range(100)]
        for id in ids:
            await server.becomes(id, Status.SCHEDULED)
        before = await server.revision()
        reports = [Report(id, 1, status, 5.0) for id in ids for status in (Status.STARTING, Status.RUNNING)]
        outcomes = await server.instances.reported(NODE, reports)
        assert {outcome.weight for outcome in outcomes} == {Weight.APPLIED}
        assert {server.status(id) for id in ids} == {Status.RUNNING}
        assert await server.revision() - before < 10


async def test_a_report_that_crosses_a_wish_is_judged_again_on_what_is_there() -> None:
    async with alone(standing("n"), leads=False) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        await server.place(one.id, "n")
        await server.say(one.id, Status.STARTING, Status.RUNNING)
        stopped, said = await asyncio.gather(
            server.instances.stop(one.id, actor="me"), server.say(one.id, Status.CRASHED, exit_code=1)
        )
        assert said == ["applied"]
        there = server.instances.get(one.id)
        assert (there.desired, there.observed.status) == (Desired.STOPPED, Status.CRASHED)
        assert stopped.desired is Desired.STOPPED

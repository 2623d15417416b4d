"""What nodes report: which reports count, and what they may not touch."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from skerry.control.instances import transitions
from skerry.control.instances.report_rules import ReportDisposition, evaluate_report, fold
from skerry.kit import metrics
from skerry.model import health_checks
from skerry.model.ids import InstanceId, NodeId
from skerry.model.orders import InstanceReport
from skerry.model.resources import NO_RESOURCES
from skerry.model.statuses import TERMINAL, TRANSITIONS, DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance
from tests.control.worlds import alone, condition, held, instance, resources, spec

NODE = NodeId("n")


def report(status: InstanceStatus, *, generation: int = 1, at: float = 5.0, **more: object) -> InstanceReport:
    return InstanceReport(InstanceId("one"), generation, status, at, **more)


def weigh(one: Instance | None, told: InstanceReport, node: NodeId | None = NODE) -> ReportDisposition:
    return evaluate_report(one, node, told, 9.0).outcome.disposition


def test_what_the_state_machine_allows_is_taken_with_its_time_reason_and_exit_code() -> None:
    one = instance(status=InstanceStatus.RUNNING, node="n")
    _, step = evaluate_report(
        one, NODE, report(InstanceStatus.CRASHED, reason="out of memory", exit_code=137, restarts=2), 9.0
    )
    assert step is not None
    seen = step.after.observed
    assert (seen.status, seen.since, seen.reason, seen.exit_code, seen.actor) == (
        InstanceStatus.CRASHED,
        5.0,
        "out of memory",
        137,
        "node/n",
    )
    assert step.after.restarts == 2
    assert [(told.kind, told.reason, told.data) for told in step.events] == [
        ("crashed", "out of memory", {"exit_code": "137", "restarts": "2"})
    ]


def test_each_failed_try_to_start_is_an_event_and_kept_with_the_time_of_the_next() -> None:
    one = instance(status=InstanceStatus.STARTING, node="n")
    failed = report(InstanceStatus.STARTING, at=2.0, reason="not started yet: no such image", retry_at=12.5)
    _, step = evaluate_report(one, NODE, failed, 9.0)
    assert step is not None
    assert step.after.observed.retry_at == 12.5
    assert [(told.kind, told.reason, told.data) for told in step.events] == [
        ("backoff", "not started yet: no such image", {"retry_at": "12.500"})
    ]
    assert weigh(step.after, failed) is ReportDisposition.REPEATED  # as after every connect
    _, runs = evaluate_report(step.after, NODE, report(InstanceStatus.RUNNING, at=13.0), 14.0)
    assert runs is not None
    assert runs.after.observed.retry_at is None


OBSERVED = [status for status in InstanceStatus if status is not InstanceStatus.DESTROYING]


@pytest.mark.parametrize("now", OBSERVED)
def test_a_report_by_others_is_taken_exactly_if_the_status_may_follow(now: InstanceStatus) -> None:
    one = instance(status=now)
    for then in set(InstanceStatus) - {now, InstanceStatus.SCHEDULING, InstanceStatus.SCHEDULED}:
        outcome, _ = evaluate_report(one, None, report(then), 9.0, actor="somebody")
        assert (outcome.disposition is ReportDisposition.APPLIED) is (then in TRANSITIONS[now]), (
            f"{now} -> {then}"
        )


@pytest.mark.parametrize("now", sorted(set(OBSERVED) - TERMINAL))
def test_a_node_that_forgot_what_it_had_to_tell_is_believed_and_the_way_there_is_told(
    now: InstanceStatus,
) -> None:
    """A machine that was set up anew begins at the beginning, and so does not speak in the right order."""
    one = instance(status=now, node="n")
    for then in set(InstanceStatus) - {now, InstanceStatus.SCHEDULING, InstanceStatus.SCHEDULED}:
        _, step = evaluate_report(one, NODE, report(then), 9.0)
        assert step is not None, f"{now} -> {then}"
        assert step.after.observed.status is then
        told = [InstanceStatus(telling.kind.upper()) for telling in step.events]
        assert told[-1] is then
        for before, after in itertools.pairwise([now, *told]):
            assert after in TRANSITIONS[before], f"{now} -> {then} by {told}"


def test_a_report_that_its_node_has_overtaken_does_not_count() -> None:
    one = instance(status=InstanceStatus.RUNNING, node="n")
    _, stopping = evaluate_report(one, NODE, report(InstanceStatus.STOPPING, at=20.0), 30.0)
    assert stopping is not None
    _, stopped = evaluate_report(stopping.after, NODE, report(InstanceStatus.STOPPED, at=21.0), 30.0)
    assert stopped is not None
    assert weigh(stopped.after, report(InstanceStatus.STARTING, at=10.0)) is ReportDisposition.OUTDATED
    assert weigh(stopped.after, report(InstanceStatus.STARTING, at=22.0)) is ReportDisposition.APPLIED


def test_a_node_whose_clock_is_behind_that_of_the_server_is_believed_all_the_same() -> None:
    one = transitions.bind(instance(), NODE, at=1000.0).after
    assert weigh(one, report(InstanceStatus.STARTING, at=5.0)) is ReportDisposition.APPLIED


@pytest.mark.parametrize("status", [InstanceStatus.SCHEDULING, InstanceStatus.SCHEDULED])
def test_a_node_does_not_say_where_an_instance_is_placed(status: InstanceStatus) -> None:
    assert (
        weigh(instance(status=InstanceStatus.STARTING, node="n"), report(status)) is ReportDisposition.REFUSED
    )


def test_what_is_over_stays_over_and_a_repeat_is_fine() -> None:
    for final in TERMINAL:
        one = instance(status=final, node="n")
        assert weigh(one, report(InstanceStatus.RUNNING)) is ReportDisposition.REFUSED
    one = instance(status=InstanceStatus.RUNNING, node="n")
    _, step = evaluate_report(one, NODE, report(InstanceStatus.TERMINATED, exit_code=0), 9.0)
    assert step is not None
    assert weigh(step.after, report(InstanceStatus.TERMINATED, exit_code=0)) is ReportDisposition.REPEATED


def test_what_a_report_leaves_out_does_not_wipe_out_what_was_asked_for() -> None:
    one = instance(status=InstanceStatus.STARTING, node="n", what=spec(cpu=700))
    _, step = evaluate_report(one, NODE, report(InstanceStatus.FAILED, reason="no such image"), 9.0)
    assert step is not None
    assert (step.after.spec, step.after.desired) == (one.spec, one.desired)


def test_a_node_that_has_an_instance_it_should_not_have_is_told_so() -> None:
    assert weigh(None, report(InstanceStatus.RUNNING)) is ReportDisposition.STALE
    assert (
        weigh(instance(status=InstanceStatus.RUNNING, node="other"), report(InstanceStatus.RUNNING))
        is ReportDisposition.STALE
    )
    assert weigh(instance(), report(InstanceStatus.RUNNING)) is ReportDisposition.STALE


def test_a_report_of_an_earlier_copy_does_not_count_for_the_present_one() -> None:
    one = instance(status=InstanceStatus.RUNNING, node="n", generation=3)
    assert weigh(one, report(InstanceStatus.CRASHED, generation=1)) is ReportDisposition.OUTDATED
    assert weigh(one, report(InstanceStatus.CRASHED, generation=4)) is ReportDisposition.OUTDATED


@pytest.mark.parametrize("node", [NODE, None])
@pytest.mark.parametrize("desired", [DesiredStatus.RUNNING, DesiredStatus.DESTROYED])
def test_what_is_on_a_node_is_what_the_session_of_that_node_says(
    node: NodeId | None, desired: DesiredStatus
) -> None:
    one = instance(status=InstanceStatus.RUNNING, node="n", desired=desired)
    for then in set(InstanceStatus) - {InstanceStatus.RUNNING}:
        outcome, step = evaluate_report(one, node, report(then), 9.0, actor="somebody")
        assert (outcome.disposition, step) == (ReportDisposition.REFUSED, None), then
        assert "on node n, which reports it by its own session" in outcome.message
    repeated, step = evaluate_report(
        one, node, report(InstanceStatus.RUNNING, reason="a lie", restarts=9), 9.0, actor="somebody"
    )
    assert (repeated.disposition, step) == (ReportDisposition.REPEATED, None)


async def test_what_others_say_of_the_usage_of_an_instance_on_a_node_does_not_count() -> None:
    async with alone(condition("n")) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        await server.say(one.id, InstanceStatus.STARTING, InstanceStatus.RUNNING, usage=resources(cpu=42))
        lie = InstanceReport(one.id, 0, InstanceStatus.RUNNING, server.clock.now(), usage=resources(cpu=1))
        await server.instances.reported(None, [lie], actor="somebody")
        assert server.instances.usage(one.id) == resources(cpu=42)


def test_who_is_no_node_may_leave_out_node_and_generation() -> None:
    one = instance(status=InstanceStatus.RUNNING, generation=3)
    assert weigh(one, report(InstanceStatus.CRASHED, generation=0), node=None) is ReportDisposition.APPLIED


def test_an_instance_that_is_to_go_is_over_when_its_node_says_so_and_not_before() -> None:
    one = instance(status=InstanceStatus.DESTROYING, desired=DesiredStatus.DESTROYED, node="n")
    assert weigh(one, report(InstanceStatus.RUNNING)) is ReportDisposition.OUTDATED
    assert weigh(one, report(InstanceStatus.CRASHED)) is ReportDisposition.OUTDATED
    _, step = evaluate_report(one, NODE, report(InstanceStatus.TERMINATED), 9.0)
    assert step is not None
    assert step.is_purged


def test_a_failed_instance_that_is_to_go_goes_too() -> None:
    one = instance(status=InstanceStatus.FAILED, desired=DesiredStatus.DESTROYED, node="n")
    _, step = evaluate_report(one, NODE, report(InstanceStatus.TERMINATED), 9.0)
    assert step is not None
    assert step.is_purged


def test_a_copy_that_left_makes_the_instance_wait_for_a_node_again() -> None:
    one = instance(status=InstanceStatus.RUNNING, node="n", leaving=spec())
    assert weigh(one, report(InstanceStatus.STOPPING)) is ReportDisposition.OUTDATED
    _, step = evaluate_report(one, NODE, report(InstanceStatus.TERMINATED), 9.0)
    assert step is not None
    assert (step.after.observed.status, step.after.node, step.is_purged) == (
        InstanceStatus.SCHEDULING,
        None,
        False,
    )


def test_reports_of_one_instance_come_to_one_step_that_tells_of_all_of_them() -> None:
    known = {InstanceId("one"): held(instance(status=InstanceStatus.SCHEDULED, node="n"))}
    outcomes, steps = fold(
        known,
        NODE,
        [report(InstanceStatus.STARTING), report(InstanceStatus.RUNNING), report(InstanceStatus.SCHEDULED)],
        9.0,
    )
    assert [outcome.disposition for outcome in outcomes] == ["applied", "applied", "refused"]
    step = steps[InstanceId("one")]
    assert step.after.observed.status is InstanceStatus.RUNNING
    assert [told.kind for told in step.events] == ["starting", "running"]


async def test_a_repeat_that_says_nothing_new_is_not_written_and_what_is_used_is_known() -> None:
    async with alone(condition("n")) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        await server.say(one.id, InstanceStatus.STARTING, InstanceStatus.RUNNING, ip="10.0.0.2")
        revision = server.instances.revision(one.id)
        weights = await server.say(one.id, InstanceStatus.RUNNING, ip="10.0.0.2", usage=resources(cpu=42))
        assert weights == ["repeated"]
        assert server.instances.revision(one.id) == revision
        assert server.instances.usage(one.id) == resources(cpu=42)
        await server.say(one.id, InstanceStatus.CRASHED)
        assert server.instances.usage(one.id) == NO_RESOURCES


async def test_many_reports_take_few_transactions_and_all_are_applied() -> None:
    async with alone(condition("n", cpu=100_000)) as (server, _):
        ids = [(await server.instances.create(spec(), actor="me"))[0].id for _ in range(100)]
        for id in ids:
            await server.becomes(id, InstanceStatus.SCHEDULED)
        before = await server.revision()
        reports = [
            InstanceReport(id, 1, status, 5.0)
            for id in ids
            for status in (InstanceStatus.STARTING, InstanceStatus.RUNNING)
        ]
        outcomes = await server.instances.reported(NODE, reports)
        assert {outcome.disposition for outcome in outcomes} == {ReportDisposition.APPLIED}
        assert {server.status(id) for id in ids} == {InstanceStatus.RUNNING}
        assert await server.revision() - before < 10


async def test_a_report_that_crosses_a_wish_is_judged_again_on_what_is_there() -> None:
    async with alone(condition("n"), leads=False) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        await server.place(one.id, "n")
        await server.say(one.id, InstanceStatus.STARTING, InstanceStatus.RUNNING)
        stopped, said = await asyncio.gather(
            server.instances.stop(one.id, actor="me"), server.say(one.id, InstanceStatus.CRASHED, exit_code=1)
        )
        assert said == ["applied"]
        there = server.instances.get(one.id)
        assert (there.desired, there.observed.status) == (DesiredStatus.STOPPED, InstanceStatus.CRASHED)
        assert stopped.desired is DesiredStatus.STOPPED


class TestReadiness:
    """What nodes say of health checks."""

    def checked(self, role: str = "readiness", **more: object) -> Instance:
        wanted = spec(checks=(health_checks.parse("http:80/health", health_checks.CheckRole(role)),))
        starting = instance(status=InstanceStatus.STARTING, node="n", what=wanted, **more)
        return starting.become(InstanceStatus.RUNNING, at=1.0, reason="", actor="node/n")

    def told(self, one: Instance, *reports: InstanceReport) -> tuple[Instance, list[tuple[str, str]]]:
        """The instance after all of `reports`, and what was told of them: kinds of events and reasons."""
        events: list[tuple[str, str]] = []
        for each in reports:
            _, step = evaluate_report(one, NODE, each, 9.0)
            if step is not None:
                one = step.after
                events += [(event.kind, event.reason) for event in step.events]
        return one, events

    def running(self, *, has_passed: bool, checked_at: float, message: str = "") -> InstanceReport:
        return report(
            InstanceStatus.RUNNING, has_passed=has_passed, checked_at=checked_at, check_message=message
        )

    def test_it_is_ready_and_unready_as_its_node_says_with_an_event_each(self) -> None:
        one, events = self.told(
            self.checked(),
            self.running(has_passed=False, checked_at=5.0, message="has not passed yet"),
            self.running(has_passed=True, checked_at=6.0),
            self.running(has_passed=True, checked_at=6.0),
            self.running(has_passed=False, checked_at=7.0, message="HTTP 503"),
        )
        assert events == [("ready", ""), ("unready", "HTTP 503")]
        assert not one.is_ready
        assert (one.observed.check_message, one.observed.checked_at) == ("HTTP 503", 7.0)

    def test_an_older_word_does_not_count(self) -> None:
        one, events = self.told(
            self.checked(),
            self.running(has_passed=True, checked_at=6.0),
            self.running(has_passed=False, checked_at=5.0, message="late"),
        )
        assert one.is_ready
        assert events == [("ready", "")]

    def test_another_reason_of_the_same_time_counts_and_is_no_event(self) -> None:
        one, events = self.told(
            self.checked(),
            self.running(has_passed=False, checked_at=5.0, message="connection refused"),
            self.running(has_passed=False, checked_at=5.0, message="HTTP 503"),
        )
        assert one.observed.check_message == "HTTP 503"
        assert events == []

    def test_one_that_is_reported_for_the_first_time_when_it_is_ready_is_told_twice(self) -> None:
        starting = instance(status=InstanceStatus.STARTING, node="n", what=self.checked().spec)
        one, events = self.told(starting, self.running(has_passed=True, checked_at=6.0))
        assert [kind for kind, _ in events] == ["running", "ready"]
        assert one.is_ready
        assert one.ready_since == 6.0

    def test_without_checks_running_says_it_all(self) -> None:
        starting = instance(status=InstanceStatus.STARTING, node="n")
        one, events = self.told(starting, report(InstanceStatus.RUNNING))
        assert [kind for kind, _ in events] == ["running"]
        assert one.is_ready

    def test_a_failed_liveness_check_takes_it_out_of_service_before_it_crashes(self) -> None:
        reason = "liveness check http:80/health failed: HTTP 503 (3 times)"
        one, events = self.told(
            self.checked("liveness"),
            self.running(has_passed=False, checked_at=6.0, message=reason),
            report(InstanceStatus.CRASHED, at=7.0, reason=reason),
            report(InstanceStatus.STARTING, at=8.0, restarts=1),
            report(InstanceStatus.RUNNING, at=9.0, restarts=1, checked_at=9.0),
        )
        assert [kind for kind, _ in events] == ["unready", "crashed", "starting", "running"]
        assert one.is_ready

    def test_one_that_runs_again_is_not_ready_before_its_node_says_so(self) -> None:
        one, _ = self.told(
            self.checked(),
            self.running(has_passed=True, checked_at=6.0),
            report(InstanceStatus.CRASHED, at=7.0),
            report(InstanceStatus.STARTING, at=8.0),
            report(InstanceStatus.RUNNING, at=9.0, has_passed=False, checked_at=9.0),
        )
        assert not one.is_ready


async def test_metrics_of_instances_are_known_while_they_run_and_their_ready_ones_are_counted() -> None:
    async with alone(condition("n")) as (server, _):
        one, _ = await server.instances.create(spec(), actor="me")
        await server.becomes(one.id, InstanceStatus.SCHEDULED)
        await server.say(one.id, InstanceStatus.STARTING, InstanceStatus.RUNNING, metric=42.0)
        assert server.instances.load(one.id)[1] == 42.0
        assert b'skerry_instances_ready{namespace="default"}' in metrics.render()
        await server.say(one.id, InstanceStatus.RUNNING)
        assert server.instances.load(one.id)[1] is None
        await server.say(one.id, InstanceStatus.RUNNING, metric=1.0)
        await server.say(one.id, InstanceStatus.CRASHED)
        assert server.instances.load(one.id)[1] is None
        assert b'skerry_instances_ready{namespace="default"}' not in metrics.render()

"""Health checks of instances: readiness is reported, failures restart, and another agent goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model.health_checks import CheckMethod, CheckRole, HealthCheck
from skerry.model.ids import InstanceId
from skerry.model.statuses import DesiredStatus
from skerry.model.workloads import MetricSource, WorkloadKind
from skerry.node.agent.instances.state import MAX_PENDING
from skerry.node.agent.instances.steps import InstanceAction
from skerry.node.health.decisions import CheckResult, HealthState
from tests.node.agent.instances import worlds
from tests.node.agent.instances.ground import Ground
from tests.node.agent.instances.worlds import World, order
from tests.node.health.fakes import FakeProbes
from tests.support.waiting import eventually

REFUSED = CheckResult(False, "connection refused")


def check(role: str = "readiness", **more: Any) -> HealthCheck:
    return HealthCheck(
        CheckRole(role), CheckMethod.TCP, 80, **({"interval_s": 0.1, "unhealthy_after": 2} | more)
    )


class TestSteps:
    """The decision alone."""

    def running(self, *checks: HealthCheck, **more: Any) -> World:
        world = World(order(checks=checks, **more))
        world.settle()
        world.health = HealthState.begin(checks)
        world.settle()
        return world

    def record(self, world: World, *results: CheckResult) -> None:
        assert world.health is not None
        for result in results:
            world.health = world.health.record(0, result, 1e6)
        world.now += 1
        world.settle()

    def test_an_instance_is_reported_running_before_it_is_ready_and_once(self) -> None:
        world = self.running(check())
        assert world.statuses == ["STARTING", "RUNNING"]
        assert world.copy is not None
        first = world.copy.report()
        assert not first.has_passed
        assert first.check_message == "readiness check tcp:80 has not passed yet"
        self.record(world, CheckResult(True))
        ready = world.copy.report()
        assert (ready.has_passed, ready.checked_at, ready.check_message) == (True, world.now, "")
        assert ready.at == first.at
        self.record(world, CheckResult(True))
        assert world.statuses == ["STARTING", "RUNNING", "RUNNING"]

    def test_one_without_checks_has_passed_as_soon_as_it_runs(self) -> None:
        world = World()
        world.settle()
        assert world.copy is not None
        assert world.copy.report().has_passed

    def test_one_with_liveness_checks_alone_has_passed_as_soon_as_it_runs(self) -> None:
        world = self.running(check("liveness"))
        assert world.copy is not None
        assert world.copy.report().has_passed
        assert world.statuses == ["STARTING", "RUNNING"]

    def test_a_failed_readiness_check_ends_nothing(self) -> None:
        world = self.running(check())
        self.record(world, CheckResult(True))
        self.record(world, REFUSED, REFUSED)
        assert world.copy is not None
        assert not world.copy.report().has_passed
        assert InstanceAction.STOP not in world.acts

    @pytest.mark.parametrize("role", ["liveness", "startup"])
    def test_a_failed_check_ends_the_run_and_it_is_started_again_as_after_a_crash(self, role: str) -> None:
        world = self.running(check(role))
        world.reported.clear()
        self.record(world, REFUSED, REFUSED)
        assert world.acts[2:] == [InstanceAction.STOP, InstanceAction.START]
        # Out of service first, then ended; the restart counts.
        assert world.statuses == ["RUNNING", "CRASHED", "STARTING", "RUNNING"]
        assert world.copy is not None
        assert world.copy.report().restarts == 1
        reasons = [pending.report.reason for pending in world.copy.pending]
        assert f"{role} check tcp:80 failed: connection refused (2 times)" in reasons

    def test_it_has_failed_also_if_it_ends_with_code_0_when_it_is_stopped(self) -> None:
        world = self.running(check("liveness"), restart="on-failure")
        assert world.health is not None
        world.health = world.health.record(0, REFUSED, 1e6).record(0, REFUSED, 1e6)
        world.step()  # out of service, which is on disk now
        world.exit(0)  # as one that ends well when it is asked to; this agent, or another, finds that
        world.settle()
        assert world.copy is not None
        assert world.copy.report().restarts == 1
        crash = next(each.report for each in world.copy.pending if each.report.status == "CRASHED")
        assert crash.exit_code is None

    def test_without_restarts_it_has_failed_with_the_reason(self) -> None:
        world = self.running(check("liveness"), restart="never")
        self.record(world, REFUSED, REFUSED)
        assert world.copy is not None
        report = world.copy.report()
        assert (str(report.status), report.reason) == (
            "FAILED",
            "liveness check tcp:80 failed: connection refused (2 times); restart is never",
        )

    def test_one_that_is_to_stop_is_not_restarted(self) -> None:
        world = self.running(check("liveness"))
        assert world.health is not None
        world.health = world.health.record(0, REFUSED, 1e6).record(0, REFUSED, 1e6)
        world.step()
        world.order(order(DesiredStatus.STOPPED, checks=(check("liveness"),)))
        world.settle()
        assert world.statuses[-1] == "STOPPED"

    @given(st.lists(st.booleans(), max_size=300), st.booleans())
    def test_however_often_readiness_changes_the_last_word_waits_and_nothing_fills_up(
        self, results: list[bool], acknowledges: bool
    ) -> None:
        world = self.running(check(unhealthy_after=1))
        for has_passed in results:
            self.record(world, CheckResult(has_passed, "no"))
            if acknowledges:
                world.acknowledge()
        assert world.copy is not None
        assert len(world.copy.pending) <= 2 < MAX_PENDING
        assert world.copy.report().has_passed is bool(results and results[-1])
        if not acknowledges:
            assert world.copy.pending[-1].report.has_passed is bool(results and results[-1])

    def test_the_time_of_a_change_never_goes_back(self) -> None:
        world = self.running(check(unhealthy_after=1))
        self.record(world, CheckResult(True))
        world.now -= 10_000
        self.record(world, REFUSED)
        assert world.copy is not None
        changed_at = world.copy.report().checked_at
        world.exit(1)
        world.settle()
        assert world.copy.report().checked_at >= changed_at


@pytest.fixture
def probes() -> FakeProbes:
    return FakeProbes()


@pytest.fixture
async def ground(tmp_path: Path, probes: FakeProbes) -> AsyncIterator[Ground]:
    ground = Ground(tmp_path)
    await ground.open(probes=probes)
    yield ground
    await ground.leave()


async def until_ready(ground: Ground, *, is_ready: bool = True) -> None:
    await eventually(lambda: ground.status() == "RUNNING" and ground.copy().history.has_passed is is_ready)


async def test_an_instance_is_ready_when_its_check_has_passed_and_unready_when_not(
    ground: Ground, probes: FakeProbes
) -> None:
    probes.failures["tcp:80"] = "connection refused"
    await ground.apply(order(checks=(check(),)))
    await ground.until("RUNNING")
    assert not ground.copy().history.has_passed
    del probes.failures["tcp:80"]
    await until_ready(ground)
    assert ground.reports()[-1].has_passed  # on its way at once
    probes.failures["tcp:80"] = "HTTP 503"
    await until_ready(ground, is_ready=False)
    assert ground.reports()[-1].check_message == "readiness check tcp:80 failed: HTTP 503 (2 times)"
    assert ground.process().state.exit is None


async def test_a_failed_liveness_check_restarts_and_the_next_run_is_checked(
    ground: Ground, probes: FakeProbes
) -> None:
    await ground.apply(order(checks=(check("liveness"), check())))
    await until_ready(ground)
    probes.failures["tcp:80"] = "connection refused"
    await eventually(lambda: ground.copy().history.restarts == 1)
    del probes.failures["tcp:80"]
    await eventually(lambda: ground.status() == "RUNNING" and ground.copy().history.has_passed)
    assert any("liveness check tcp:80 failed" in report.reason for report in ground.reports())


async def test_one_that_stops_is_not_checked_any_more(ground: Ground, probes: FakeProbes) -> None:
    await ground.apply(order(checks=(check(),)))
    await until_ready(ground)
    await ground.apply(order(DesiredStatus.STOPPED, checks=(check(),)))
    await ground.until("STOPPED")
    assert not ground.instances._health._watches
    await ground.apply(order(checks=(check(),)))
    await until_ready(ground)
    await ground.apply(whole=True)
    await ground.until_gone()
    assert not ground.instances._health._watches


async def test_another_agent_goes_on_with_one_that_is_ready_without_a_flap(
    ground: Ground, probes: FakeProbes
) -> None:
    checks = (check("startup"), check())
    await ground.apply(order(checks=checks))
    await until_ready(ground)
    ground.acknowledge()
    started_at = ground.copy().history.checked_at
    await ground.leave()
    probes.gate = asyncio.Event()  # nobody answers for a while
    await ground.open(probes=probes)
    await eventually(lambda: probes.running)
    [report] = ground.instances.inventory()
    assert (report.has_passed, report.checked_at) == (True, started_at)
    assert ground.reports() == []
    probes.gate.set()
    requested = probes.asked["tcp:80"]
    await eventually(lambda: probes.asked["tcp:80"] > requested + 2)
    assert ground.reports() == []
    probes.failures["tcp:80"] = "connection refused"
    await until_ready(ground, is_ready=False)


async def test_another_agent_ends_what_the_one_before_had_decided_to_end(
    ground: Ground, probes: FakeProbes
) -> None:
    class Killed(BaseException):
        pass

    await ground.apply(order(checks=(check("liveness", unhealthy_after=1),)))
    await ground.until("RUNNING")
    await ground.leave()
    # The agent dies when it has written down that the check has failed, and before it does anything.
    steps = []

    def failpoint(step: str) -> None:
        steps.append(step)
        if step == "reported.running":
            raise Killed

    probes.failures["tcp:80"] = "connection refused"
    instances = await ground.open(probes=probes, failpoint=failpoint)
    await eventually(lambda: "reported.running" in steps)
    await instances.close()
    await ground.node.leave()
    probes.failures.clear()
    await ground.open(probes=probes)
    await eventually(lambda: ground.copy().history.restarts == 1 and ground.status() == "RUNNING")


async def test_other_checks_of_the_same_run_take_the_place_of_those_before(
    ground: Ground, probes: FakeProbes
) -> None:
    probes.failures["tcp:80"] = "connection refused"
    await ground.apply(order(checks=(check(),)))
    await ground.until("RUNNING")
    began = ground.copy().history.last_run_at
    await ground.apply(order(checks=()))
    await until_ready(ground)
    assert ground.copy().history.last_run_at == began
    assert not ground.instances._health._watches


async def test_a_metric_is_reported_when_it_has_changed_with_readiness_and_to_a_new_server(
    ground: Ground, probes: FakeProbes
) -> None:
    probes.metrics["in_flight"] = 7.0
    await ground.apply(order(metric=MetricSource("in_flight", 80), checks=(check(),)))
    await until_ready(ground)
    driver = ground.instances._controllers[InstanceId(worlds.ID)]
    await eventually(lambda: driver.metric == 7.0)
    await ground.instances.sample_usage()
    assert [report.metric for report in ground.instances.take_usage()] == [7.0]
    await ground.instances.sample_usage()
    assert not [report for report in ground.instances.take_usage() if report.metric != 7.0]
    assert ground.instances.inventory()[0].metric == 7.0
    assert ground.reports()[-1].metric == 7.0


async def test_a_lent_cell_has_nothing_that_could_be_checked(ground: Ground, probes: FakeProbes) -> None:
    await ground.apply(order(kind=WorkloadKind.CELL, checks=(check(),), restart="never"))
    await ground.until("FAILED")  # there are none here
    assert not probes.asked

"""When checks run: one schedule for all, as often as they say, so many at once, and none after its watch."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from skerry.kit.clock import SystemClock
from skerry.model.health_checks import CheckMethod, CheckRole, HealthCheck
from skerry.model.workloads import MetricSource
from skerry.node.health import monitor as monitors
from skerry.node.health.decisions import CheckResult, HealthState
from skerry.node.health.monitor import CheckLimits, CheckSubject, HealthMonitor, HealthWatch
from tests.node.health.fakes import FakeProbes
from tests.support.waiting import eventually


def check(role: str = "readiness", port: int = 80, **more: Any) -> HealthCheck:
    return HealthCheck(CheckRole(role), CheckMethod.TCP, port, **({"interval_s": 0.1} | more))


class Node:
    """A monitor with probes that a test answers for."""

    def __init__(self, limits: CheckLimits = CheckLimits()) -> None:  # noqa: B008 - a constant
        self.probes = FakeProbes()
        self.clock = SystemClock()
        self.monitor = HealthMonitor(self.probes, self.clock, limits, chance=lambda: 0.5)
        self.changes: list[HealthState] = []

    def watch(
        self, *checks: HealthCheck, name: str = "i-web", metric: MetricSource | None = None, age_s: float = 0
    ) -> HealthWatch:
        def changed() -> None:
            self.changes.append(watch.state)

        subject = CheckSubject(name, HealthState.begin(checks), metric, self.clock.now() - age_s)
        watch = self.monitor.watch(subject, changed)
        return watch


@contextlib.asynccontextmanager
async def node(limits: CheckLimits = CheckLimits()) -> AsyncIterator[Node]:  # noqa: B008 - a constant
    made = Node(limits)
    try:
        yield made
    finally:
        await made.monitor.close()
        assert not made.probes.running


async def test_a_check_runs_again_and_again_and_only_news_are_reported() -> None:
    async with node() as here:
        watch = here.watch(check())
        await eventually(lambda: here.probes.asked["tcp:80"] >= 4)
        assert [each.has_passed for each in here.changes] == [True]
        here.probes.failures["tcp:80"] = "connection refused"
        await eventually(lambda: not watch.state.has_passed)
        assert [each.has_passed for each in here.changes] == [True, False]
        assert here.changes[-1].message == "readiness check tcp:80 failed: connection refused (3 times)"


async def test_after_its_watch_nothing_is_asked_and_what_runs_is_given_up() -> None:
    async with node() as here:
        here.probes.gate = asyncio.Event()
        watch = here.watch(check())
        await eventually(lambda: here.probes.running)
        watch.close()
        watch.close()
        await eventually(lambda: not here.probes.running)
        other = here.watch(check(port=81), name="i-other")
        here.probes.gate.set()
        await eventually(lambda: here.probes.asked["tcp:81"] >= 3)
        assert here.probes.asked["tcp:80"] == 1
        assert here.changes == [other.state]


async def test_others_begin_when_the_startup_check_has_passed_and_that_one_ends() -> None:
    async with node() as here:
        here.probes.failures["tcp:80"] = "connection refused"
        watch = here.watch(check("startup", unhealthy_after=1000), check("liveness", 81), check(port=82))
        await eventually(lambda: here.probes.asked["tcp:80"] >= 3)
        assert not here.probes.asked["tcp:81"]
        del here.probes.failures["tcp:80"]
        await eventually(lambda: watch.state.has_passed)
        before = here.probes.asked["tcp:80"]
        await eventually(lambda: here.probes.asked["tcp:81"] >= 4)
        assert here.probes.asked["tcp:80"] == before


async def test_nothing_is_asked_any_more_once_it_has_to_be_restarted() -> None:
    async with node() as here:
        here.probes.failures["tcp:80"] = "connection refused"
        watch = here.watch(check("liveness", unhealthy_after=2))
        await eventually(lambda: watch.state.restart_reason)
        here.watch(check(port=81))
        await eventually(lambda: here.probes.asked["tcp:81"] >= 3)
        assert here.probes.asked["tcp:80"] == 2
        assert [bool(each.restart_reason) for each in here.changes if each.checks == watch.state.checks] == [
            True
        ]


async def test_at_most_so_many_run_at_once_and_the_others_get_their_turn() -> None:
    async with node(CheckLimits(probes_at_once=3)) as here:
        here.probes.gate = asyncio.Event()
        watches = [here.watch(check(port=port)) for port in range(1, 21)]
        await eventually(lambda: here.probes.running == 3)
        here.probes.gate.set()
        await eventually(lambda: all(watch.state.has_passed for watch in watches))
        assert here.probes.most == 3


async def test_commands_have_a_limit_of_their_own_and_hold_nobody_up() -> None:
    async with node(CheckLimits(execs_at_once=1)) as here:
        here.probes.gate = asyncio.Event()
        for number in range(3):
            command = HealthCheck(CheckRole.READINESS, CheckMethod.EXEC, command=(f"c{number}",))
            here.watch(command, name=f"i-{number}")
        here.watch(check())
        await eventually(lambda: here.probes.running == 2)
        assert here.probes.asked["tcp:80"] == 1
        here.probes.gate.set()
        await eventually(lambda: all(here.probes.asked[f"exec:c{number}"] for number in range(3)))


async def test_no_more_than_so_many_begin_in_a_second() -> None:
    async with node(CheckLimits(per_second=20.0)) as here:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for port in range(1, 11):
            here.watch(check(port=port))
        await eventually(lambda: here.probes.asked.total() >= 21)
        assert here.probes.asked.total() <= 20 * (loop.time() - began) + 2
        await eventually(lambda: len(here.probes.asked) == 10)  # all get their turn


async def test_one_that_has_run_for_long_is_not_asked_at_once_with_all_others() -> None:
    async with node() as here:
        here.watch(check(interval_s=3600, port=80), age_s=100)
        here.watch(check(interval_s=3600, port=81), age_s=0)
        await eventually(lambda: here.probes.asked["tcp:81"])
        assert not here.probes.asked["tcp:80"]


async def test_another_reason_is_reported_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitors, "_MESSAGE_S", 0.3)
    async with node() as here:
        here.probes.failures["tcp:80"] = "connection refused"
        here.watch(check())
        await eventually(lambda: here.changes)
        here.probes.failures["tcp:80"] = "no answer within 2 s"
        await eventually(lambda: "no answer" in here.changes[-1].message)
        asked = here.probes.asked["tcp:80"]
        await eventually(lambda: here.probes.asked["tcp:80"] >= asked + 8)
        assert len(here.changes) <= 4  # and not with every result


async def test_a_metric_is_read_beside_the_checks() -> None:
    async with node() as here:
        here.probes.metrics["in_flight"] = 7.0
        watch = here.watch(metric=MetricSource("in_flight", 80))
        await eventually(lambda: watch.metric == 7.0)


async def test_a_fault_of_ours_does_not_end_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node() as here:
        watch = here.watch(check())

        async def broken(name: str, check: HealthCheck) -> None:
            here.probes.asked["broken"] += 1
            raise RuntimeError("broken")

        with monkeypatch.context() as patched:
            patched.setattr(here.probes, "check", broken)
            await eventually(lambda: here.probes.asked["broken"] >= 2)
        await eventually(lambda: watch.state.has_passed)


async def test_many_watches_that_ended_leave_nothing_in_the_schedule() -> None:
    async with node() as here:
        stays = here.watch(check(interval_s=3600, port=1))
        for _ in range(1000):
            here.watch(check(interval_s=3600), age_s=100).close()
        assert len(here.monitor._schedule) < 200
        assert not here.monitor._watches - {stays}
        await eventually(lambda: stays.state.has_passed)


class SomeHang(FakeProbes):
    """Checks of instances whose names begin with `bad` never answer."""

    async def check(self, name: str, check: HealthCheck) -> CheckResult:
        if name.startswith("bad"):
            await asyncio.Event().wait()
        return await super().check(name, check)


@pytest.mark.parametrize("method", [CheckMethod.TCP, CheckMethod.EXEC])
async def test_instances_whose_checks_hang_do_not_hold_up_those_of_others(method: CheckMethod) -> None:
    def made(number: int) -> HealthCheck:
        if method is CheckMethod.EXEC:
            return HealthCheck(CheckRole.READINESS, method, command=(f"c{number}",), interval_s=0.1)
        return check(port=number)

    async with node() as here:
        here.probes = here.monitor._probes = SomeHang()
        for number in range(30):
            here.watch(*(made(1000 + each) for each in range(16)), name=f"bad-{number}")
        here.watch(made(80), name="good")
        await eventually(lambda: here.probes.asked[made(80).target] >= 3)


async def test_checks_that_are_due_soon_run_with_one_that_is_due_but_only_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitors, "_MOST_SLACK_S", 1000.0)
    async with node() as here:
        here.probes.gate = asyncio.Event()
        for number in range(monitors._MOST_EARLY + 10):
            here.watch(check(interval_s=300.0), name=f"i-{number}", age_s=1000.0)  # due in 150 s
        here.watch(check(port=81), name="i-due")
        await eventually(lambda: here.probes.asked["tcp:81"])
        assert here.probes.asked["tcp:80"] == monitors._MOST_EARLY
        here.probes.gate.set()


async def test_checks_of_one_instance_run_in_order_and_those_of_others_between_them() -> None:
    async with node(CheckLimits(probes_at_once=1, probes_per_instance=1)) as here:
        asked: list[str] = []

        class InOrder(FakeProbes):
            async def check(self, name: str, check: HealthCheck) -> CheckResult:
                asked.append(check.target)
                return await super().check(name, check)

        here.probes = here.monitor._probes = InOrder()
        here.watch(*(check(port=port, interval_s=3600) for port in (1, 2, 3)), name="i-many")
        here.watch(check(port=80, interval_s=3600), name="i-other")
        await eventually(lambda: len(asked) == 4)
        assert asked == ["tcp:1", "tcp:80", "tcp:2", "tcp:3"]


@pytest.mark.parametrize("instances", [1, 250])
async def test_the_end_of_a_check_takes_as_long_however_many_wait(instances: int) -> None:
    async with node() as here:
        here.probes.gate = asyncio.Event()
        for number in range(instances):
            here.watch(*(check(port=port, interval_s=3600) for port in range(1, 9)), name=f"i-{number}")
        await eventually(lambda: here.probes.running == 4 * instances)
        calls = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        entry = next(iter(here.monitor._watches)).entries[0]
        assert entry.probe is not None
        entry.probe.cancel()
        sys.setprofile(count)
        try:
            here.monitor._take_result(entry, 0.0, CheckResult(True))
        finally:
            sys.setprofile(None)
        assert calls < 200
        await eventually(lambda: here.probes.asked.total() == 4 * instances + 1)  # of another in its place

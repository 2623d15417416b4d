"""Simulated nodes: they obey, restart, refuse and report as real ones do."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from skerry.model.health_checks import CheckMethod, CheckRole, HealthCheck
from skerry.model.ids import InstanceId
from skerry.model.orders import InstanceOrder
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.sim.cluster.fault_plan import FaultPlan, FaultPlanner, RunKey
from skerry.sim.cluster.node import SimulatedNode
from tests.sim.making import machine, order

ONE = InstanceId("one")


class Life:
    """A machine, the time, and what it has told."""

    def __init__(self, become: FaultPlanner | None = None) -> None:
        self.runs_begun = 0
        self.removed: list[str] = []
        self.machine: SimulatedNode = machine(become, observer=self)
        self.now = 100.0
        self.told: list[str] = []
        self._sent = 0

    def order(self, *orders: InstanceOrder, removed: Collection[InstanceId] = ()) -> Life:
        self.machine.take(orders, self.now, is_full=False, removed=removed)
        return self.advance()

    def advance(self, for_s: float = 0.0) -> Life:
        end = self.now + for_s
        while (at := self.machine.wakes_at) is not None and at <= end:
            self.now = max(self.now, at)
            self.machine.act(self.now)
            self.hear()
        self.now = end
        self.hear()
        return self

    def hear(self) -> None:
        news = self.machine.pending_reports(self._sent, 100)
        self.told += [told.report.status for told in news]
        self._sent = news[-1].number if news else self._sent

    def began(self, machine: SimulatedNode, order: InstanceOrder) -> None:
        self.runs_begun += 1

    def removal_ordered(self, machine: SimulatedNode, order: InstanceOrder) -> None:
        self.removed.append(order.instance)

    def runs(self) -> bool:
        return any(True for _ in self.machine.running())


def always(plan: FaultPlan) -> FaultPlanner:
    return lambda run: plan


def by_turns(*fates: FaultPlan) -> FaultPlanner:
    def plan(run: RunKey) -> FaultPlan:
        return fates[min(run.number, len(fates)) - 1]

    return plan


def test_an_order_is_started_after_its_time_and_runs() -> None:
    life = Life(always(FaultPlan(start_s=2.0))).order(order())
    assert life.told == [InstanceStatus.STARTING]
    assert not life.advance(1.9).runs()
    assert life.advance(0.2).runs()
    assert life.told == [InstanceStatus.STARTING, InstanceStatus.RUNNING]


def test_a_stop_a_start_and_an_end_are_told_in_their_order() -> None:
    life = Life().order(order()).advance(1)
    life.order(order(desired=DesiredStatus.STOPPED)).advance(1)
    assert not life.runs()
    life.order(order()).advance(1)
    assert life.runs()
    life.order(order(desired=DesiredStatus.DESTROYED)).advance(1)
    assert not life.runs()
    assert life.told == [
        *(InstanceStatus.STARTING, InstanceStatus.RUNNING),
        *(InstanceStatus.STOPPING, InstanceStatus.STOPPED),
        *(InstanceStatus.STARTING, InstanceStatus.RUNNING),
        InstanceStatus.TERMINATED,
    ]
    assert ONE in life.machine.residents, "what is not acknowledged is not forgotten"
    life.machine.acknowledge(10**6, life.now)
    life.advance()
    assert life.machine.residents == {}


def test_what_crashes_is_restarted_until_its_budget_is_spent() -> None:
    life = Life(always(FaultPlan(start_s=0.1, runs_s=0.5, exit_code=1))).order(order()).advance(60)
    runs = [InstanceStatus.STARTING, InstanceStatus.RUNNING, InstanceStatus.CRASHED]
    assert life.told == [*runs, *runs, *runs, InstanceStatus.FAILED]


def test_a_crash_is_told_with_its_code_and_what_follows_may_go_well() -> None:
    life = Life(by_turns(FaultPlan(runs_s=1.0, exit_code=3), FaultPlan())).order(order()).advance(60)
    reports = [told.report for told in life.machine.pending_reports(0, 100)]
    assert [(report.status, report.exit_code) for report in reports if report.exit_code] == [
        (InstanceStatus.CRASHED, 3),
        (InstanceStatus.STARTING, 3),
    ]
    assert life.runs()


def test_what_cannot_be_started_fails_and_says_why() -> None:
    life = Life(always(FaultPlan(refusal="there is no such image"))).order(order()).advance(60)
    assert life.told[-1] == InstanceStatus.FAILED
    assert "there is no such image" in life.machine.inventory()[0].reason


def test_an_order_of_an_earlier_copy_is_refused() -> None:
    life = Life().order(order(generation=3)).advance(1)
    life.order(order(generation=2, desired=DesiredStatus.DESTROYED)).advance(1)
    assert life.runs()
    assert life.machine.residents[ONE].copy.order.generation == 3


def test_what_is_not_in_a_whole_set_is_removed_and_not_told_of() -> None:
    life = Life().order(order("one"), order("two")).advance(1)
    before = len(life.told)
    life.machine.take([order("two")], life.now, is_full=True)
    life.advance(1)
    assert set(life.machine.residents) == {"two"}
    assert len(life.told) == before


def test_what_is_gone_is_removed() -> None:
    life = Life().order(order()).advance(1)
    life.order(removed=[ONE]).advance(1)
    assert life.machine.residents == {}
    assert life.removed == [ONE]


def test_a_reboot_ends_what_runs_and_starts_it_again() -> None:
    life = Life().order(order()).advance(1)
    life.machine.reboot(life.now)
    assert not life.runs()
    life.advance(10)
    assert life.runs()
    assert life.told[-3:] == [InstanceStatus.CRASHED, InstanceStatus.STARTING, InstanceStatus.RUNNING]


def test_a_machine_that_is_set_up_anew_knows_nothing() -> None:
    life = Life().order(order()).advance(1)
    life.machine.wipe()
    assert life.machine.inventory() == []
    assert life.machine.pending_reports(0, 100) == []
    assert life.machine.wakes_at is None


def test_a_start_is_given_up_when_something_else_is_ordered() -> None:
    life = Life(always(FaultPlan(start_s=50.0))).order(order()).advance(1)
    life.order(order(desired=DesiredStatus.STOPPED)).advance(1)
    assert life.told == [InstanceStatus.STARTING, InstanceStatus.STOPPING, InstanceStatus.STOPPED]
    life.advance(100)
    assert not life.runs()


def test_another_spec_is_made_anew() -> None:
    life = Life().order(order(cpu=100)).advance(1)
    life.order(order(generation=2, cpu=200)).advance(1)
    resident = life.machine.residents[ONE]
    assert resident.view is not None
    assert resident.view.spec.resources.cpu == 200
    assert resident.runs


def test_every_run_that_begins_is_told_to_who_wants_to_know() -> None:
    life = Life(always(FaultPlan(runs_s=1.0, exit_code=1))).order(order()).advance(60)
    assert life.runs_begun == 3


def test_what_has_checks_reports_when_they_pass_and_when_they_fail() -> None:
    check = HealthCheck(CheckRole.READINESS, CheckMethod.TCP, 80)
    checked = replace(order(), spec=replace(order().spec, checks=(check,)))
    life = Life(always(FaultPlan(ready_s=1.0, unhealthy_after_s=5.0))).order(checked)

    def is_ready() -> bool:
        [report] = life.machine.inventory()
        return report.status is InstanceStatus.RUNNING and report.has_passed

    found = [life.advance(for_s) and is_ready() for for_s in (1.0, 1.0, 5.0, 10.0)]
    assert found == [False, True, False, True]

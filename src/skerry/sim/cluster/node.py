"""A simulated node: the decisions of the real one, on containers that are only numbers.

`skerry.node.agent.instances.steps` decides what to do about an instance, and
`skerry.node.agent.instances.state` what an order means, so a simulated node obeys, restarts, refuses and
reports exactly as a real one. How long things take and what fails comes from `skerry.sim.cluster.fault_plan`.
Pure: the time is an argument, and `wakes_at` is when there is something to do next. Its connection to the
control plane is `skerry.sim.cluster.agents`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from msgspec.structs import replace

from skerry.model import errors
from skerry.model.cells import ExitStatus
from skerry.model.containers import ContainerSpec, ContainerState, ContainerView
from skerry.model.ids import InstanceId, NodeId
from skerry.model.images import ImageId
from skerry.model.node_messages import NodeHello, SessionConfig
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.statuses import InstanceStatus
from skerry.node.agent.instances import state, steps
from skerry.node.agent.instances.container_specs import container_spec
from skerry.node.agent.instances.state import LocalInstance, PendingReport
from skerry.node.agent.instances.steps import (
    InstanceAction,
    InstanceSituation,
    ReportStatus,
    RunAction,
    WaitUntil,
)
from skerry.node.health.decisions import HealthState
from skerry.sim.cluster.fault_plan import FaultPlan, FaultPlanner, RunKey

_HEALTHY = FaultPlan()
_IMAGE = ImageId("sha256:" + "0" * 64)


@dataclass(slots=True)
class SimulatedInstance:
    """An instance on a machine."""

    copy: LocalInstance
    desired_spec: ContainerSpec  # what its container should be like
    view: ContainerView | None = None
    plan: FaultPlan = _HEALTHY
    tries: int = 0
    action: InstanceAction | None = None  # in progress, done at `due`
    due: float | None = None  # when to decide about it again
    ends_at: float | None = None  # of the present run

    @property
    def runs(self) -> bool:
        return self.view is not None and self.view.state is ContainerState.RUNNING


class NodeObserver(Protocol):
    """Notified of what happens on machines."""

    def began(self, machine: SimulatedNode, order: InstanceOrder) -> None:
        """A run started."""

    def removal_ordered(self, machine: SimulatedNode, order: InstanceOrder) -> None:
        """A copy is to be removed, because the control plane does not bind it to this node any more."""


class SimulatedNode:
    """One node."""

    def __init__(
        self,
        id: NodeId,
        hello: NodeHello,
        planner: FaultPlanner,
        config: SessionConfig,
        *,
        chance: Callable[[], float],
        observer: NodeObserver | None = None,
    ) -> None:
        self.id = id
        self.hello = hello
        self.config = config
        self.residents: dict[InstanceId, SimulatedInstance] = {}
        self._plans = planner
        self._chance = chance
        self._observer = observer
        self._numbers = count(1)
        self._unreported: dict[InstanceId, None] = {}
        self._wake_times: list[tuple[float, InstanceId]] = []  # a heap; outdated entries are skipped

    # From the control plane

    def take(
        self,
        orders: Sequence[InstanceOrder],
        now: float,
        *,
        is_full: bool,
        removed: Collection[InstanceId] = (),
    ) -> None:
        """Orders, as `skerry.model.node_messages.OrderUpdate` has them."""
        ordered = {order.instance for order in orders}
        lost = [id for id in self.residents if is_full and id not in ordered]
        for order in orders:
            self._apply(order, now)
        for id in (*lost, *removed):
            resident = self.residents.get(id)
            if resident is None or resident.copy.is_stale:
                continue
            if self._observer is not None:
                self._observer.removal_ordered(self, resident.copy.order)
            self._reorder(resident, state.disown(resident.copy), now)

    def acknowledge(self, number: int, now: float) -> None:
        """The control plane has all reports up to `number`."""
        for id in list(self._unreported):
            resident = self.residents[id]
            resident.copy = resident.copy.acknowledge(number)
            if not resident.copy.pending:
                del self._unreported[id]
                self._schedule_decision(resident, now)

    # To the control plane

    def pending_reports(self, after: int, most: int) -> list[PendingReport]:
        """The first `most` reports that are not acknowledged and have a number above `after`."""
        pending = (one for id in self._unreported for one in self.residents[id].copy.pending)
        return sorted((one for one in pending if one.number > after), key=lambda one: one.number)[:most]

    def inventory(self) -> list[InstanceReport]:
        """The status of every instance."""
        copies = (resident.copy for resident in self.residents.values())
        return [
            copy.report()
            for copy in copies
            if not copy.is_stale and copy.history.status is not InstanceStatus.SCHEDULED
        ]

    def running(self) -> Iterator[InstanceOrder]:
        """The orders of all instances that run, whether or not they should."""
        return (resident.copy.order for resident in self.residents.values() if resident.runs)

    # Time

    @property
    def wakes_at(self) -> float | None:
        """When there may be something to do next."""
        return self._wake_times[0][0] if self._wake_times else None

    def act(self, now: float) -> None:
        """Do all that is due."""
        while self._wake_times and self._wake_times[0][0] <= now:
            due, id = heapq.heappop(self._wake_times)
            resident = self.residents.get(id)
            if resident is None:
                continue
            if resident.ends_at is not None and resident.ends_at <= now:
                self._end(resident, resident.ends_at, resident.plan.exit_code)
            if resident.due == due or resident.action is None:
                self._finish(resident, now)
                self._drive(resident, now)

    def reboot(self, now: float) -> None:
        """The machine restarts: nothing runs, and its records are kept."""
        for resident in list(self.residents.values()):
            resident.action = None
            if resident.runs:
                self._end(resident, now, 137)
            self._schedule_decision(resident, now)

    def wipe(self) -> None:
        """The machine is set up anew, without its records."""
        self.residents.clear()
        self._unreported.clear()
        self._wake_times.clear()

    # Inside

    def _apply(self, order: InstanceOrder, now: float) -> None:
        resident = self.residents.get(order.instance)
        after = state.apply(resident.copy if resident else None, order)
        if after is None:
            return  # older than the one that is applied
        if resident is None:
            resident = SimulatedInstance(after, container_spec(order.instance, order.spec))
            self.residents[order.instance] = resident
            self._schedule_decision(resident, now)
        elif after != resident.copy:
            self._reorder(resident, after, now)

    def _reorder(self, resident: SimulatedInstance, copy: LocalInstance, now: float) -> None:
        if copy.order.generation != resident.copy.order.generation:
            resident.tries = 0
        if copy.order.spec != resident.copy.order.spec:
            resident.desired_spec = container_spec(copy.instance, copy.order.spec)
        resident.copy = copy
        if not copy.pending:
            self._unreported.pop(copy.instance, None)
        if resident.action in (InstanceAction.CREATE, InstanceAction.START):
            resident.action = None  # a start is abandoned when something else is ordered
        self._schedule_decision(resident, now)

    def _schedule_decision(self, resident: SimulatedInstance, now: float) -> None:
        """Decide about it again, unless an action is in progress."""
        if resident.action is None:
            self._schedule(resident, now)

    def _schedule(self, resident: SimulatedInstance, at: float | None) -> None:
        resident.due = at
        if at is not None:
            heapq.heappush(self._wake_times, (at, resident.copy.instance))

    def _drive(self, resident: SimulatedInstance, now: float) -> None:
        """Do steps until one takes time."""
        while resident.action is None:
            match steps.next_step(self._instance_state(resident, now)):
                case ReportStatus(history):
                    self._report(resident, history)
                case RunAction(InstanceAction.FORGET):
                    del self.residents[resident.copy.instance]
                    return
                case RunAction(act):
                    self._begin(resident, act, now)
                case WaitUntil(until):
                    self._schedule(resident, until)
                    return

    def _instance_state(self, resident: SimulatedInstance, now: float) -> InstanceSituation:
        return InstanceSituation(
            copy=resident.copy,
            view=resident.view,
            is_outdated=resident.view is not None and resident.view.spec != resident.desired_spec,
            now=now,
            config=self.config,
            chance=self._chance(),
            health=self._health(resident, now),
        )

    def _health(self, resident: SimulatedInstance, now: float) -> HealthState | None:
        """The result of the checks of the present run."""
        checks, view = resident.copy.order.spec.checks, resident.view
        if not checks or view is None or view.started_at is None or not resident.runs:
            return None
        has_passed = resident.plan.passes(view.started_at, now)
        return HealthState.begin(checks, has_started=True, has_passed=has_passed)

    def _report(self, resident: SimulatedInstance, history: state.LocalStatus) -> None:
        resident.copy = resident.copy.with_status(history, next(self._numbers))
        if resident.copy.pending:
            self._unreported[resident.copy.instance] = None

    def _begin(self, resident: SimulatedInstance, act: InstanceAction, now: float) -> None:
        resident.action = act
        is_restart = (
            act is InstanceAction.START and resident.view is not None and resident.view.exit is not None
        )
        if act is InstanceAction.CREATE or is_restart:
            order = resident.copy.order
            resident.tries += 1
            run = RunKey(order.instance, order.generation, resident.tries, order.spec.uri)
            resident.plan = self._plans(run)
        takes_s = {
            InstanceAction.CREATE: resident.plan.start_s,
            InstanceAction.STOP: resident.plan.stop_s,
        }.get(act, 0.0)
        self._schedule(resident, now + takes_s)

    def _finish(self, resident: SimulatedInstance, now: float) -> None:
        """The action in progress is done."""
        act, resident.action = resident.action, None
        match act:
            case InstanceAction.CREATE | InstanceAction.START if resident.plan.refusal:
                error = errors.Unavailable(resident.plan.refusal)
                self._report(resident, steps.not_started(self._instance_state(resident, now), error))
            case InstanceAction.CREATE:
                access = resident.copy.order.access
                resident.view = ContainerView(
                    resident.desired_spec, _IMAGE, ContainerState.CREATED, now, access=access
                )
            case InstanceAction.RESTRICT:
                assert resident.view is not None, "what is restricted was made"
                resident.view = replace(resident.view, access=resident.copy.order.access)
            case InstanceAction.START:
                self._run(resident, now)
            case InstanceAction.STOP if resident.runs:
                self._end(resident, now, 143)
            case InstanceAction.REMOVE:
                resident.view = resident.ends_at = None

    def _run(self, resident: SimulatedInstance, now: float) -> None:
        assert resident.view is not None, "what is started was made"
        resident.view = replace(
            resident.view, state=ContainerState.RUNNING, started_at=now, exit=None, address="10.64.0.2"
        )
        if resident.plan.runs_s is not None:
            resident.ends_at = now + resident.plan.runs_s
            heapq.heappush(self._wake_times, (resident.ends_at, resident.copy.instance))
        if resident.copy.order.spec.checks:
            for at in resident.plan.health_changes(now):
                heapq.heappush(self._wake_times, (at, resident.copy.instance))
        if self._observer is not None:
            self._observer.began(self, resident.copy.order)

    def _end(self, resident: SimulatedInstance, at: float, code: int) -> None:
        assert resident.view is not None, "what ends was made"
        resident.ends_at = None
        resident.view = replace(
            resident.view, state=ContainerState.EXITED, exit=ExitStatus(at=at, code=code), address=""
        )

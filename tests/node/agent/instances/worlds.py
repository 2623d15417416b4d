"""An instance and its container without any machine: what steps lead to, whatever happens in between."""

from __future__ import annotations

import itertools
from typing import Any

from msgspec.structs import replace

from skerry.model import errors
from skerry.model.cells import ExitStatus
from skerry.model.containers import ContainerState, ContainerView
from skerry.model.ids import InstanceId, NodeId
from skerry.model.images import ImageId
from skerry.model.network import Egress
from skerry.model.node_messages import SessionConfig
from skerry.model.orders import InstanceOrder
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import InstanceSpec, RestartMode, RestartPolicy
from skerry.node.agent.instances import state, steps
from skerry.node.agent.instances.container_specs import container_spec
from skerry.node.agent.instances.state import LocalInstance
from skerry.node.agent.instances.steps import (
    InstanceAction,
    InstanceSituation,
    InstanceStep,
    ReportStatus,
    RunAction,
    WaitUntil,
)
from skerry.node.health.decisions import HealthState

ID = InstanceId("01hx")
TERMS = SessionConfig(
    node=NodeId("n1"),
    subnet="10.64.1.0/24",
    report_s=2,
    restart_base_s=1,
    restart_cap_s=60,
    restart_reset_s=600,
)


def spec(*, restart: str = "always", budget: int | None = None, **more: Any) -> InstanceSpec:
    policy = RestartPolicy(RestartMode(restart), budget)
    return InstanceSpec(**({"name": "web", "uri": "web:1", "restart": policy} | more))


def order(
    desired: DesiredStatus = DesiredStatus.RUNNING,
    *,
    generation: int = 1,
    id: str = ID,
    egress: Egress = Egress.ALL,
    **more: Any,
) -> InstanceOrder:
    return InstanceOrder(InstanceId(id), generation, spec(**more), desired, egress)


class World:
    """One instance. `reported` is all that was ever told, as generation and status."""

    def __init__(self, first: InstanceOrder | None = None) -> None:
        self.now = 1000.0
        self.copy: LocalInstance | None = LocalInstance(first or order())
        self.view: ContainerView | None = None
        self.reported: list[tuple[int, InstanceStatus]] = []
        self.acts: list[InstanceAction] = []
        self.failures: list[errors.SkerryError] = []  # of the next starts
        self.chance = 0.5
        self.health: HealthState | None = None  # of the run that goes on
        self._numbers = itertools.count(1)
        self._started = itertools.count(1)

    @property
    def statuses(self) -> list[str]:
        """That were told of the present generation."""
        assert self.copy is not None
        return [str(status) for number, status in self.reported if number == self.copy.order.generation]

    def situation(self) -> InstanceSituation:
        assert self.copy is not None
        wanted = container_spec(ID, self.copy.order.spec)
        return InstanceSituation(
            copy=self.copy,
            view=self.view,
            is_outdated=self.view is not None and self.view.spec != wanted,
            now=self.now,
            config=TERMS,
            chance=self.chance,
            health=self.health,
        )

    def order(self, wanted: InstanceOrder) -> None:
        after = state.apply(self.copy, wanted)
        if after is not None:
            self.copy = after

    def step(self) -> InstanceStep:
        """Decide, and do it."""
        step = steps.next_step(self.situation())
        match step:
            case ReportStatus(history):
                self._report(history)
            case RunAction(act):
                self.acts.append(act)
                self._do(act)
        return step

    def settle(self, most: int = 1000) -> WaitUntil | None:
        """Step until there is nothing to do but to wait for somebody; time flies. None: it is gone."""
        for _ in range(most):
            if self.copy is None:
                return None
            match self.step():
                case WaitUntil(until) as wait:
                    if until is None:
                        return wait
                    assert until > self.now
                    self.now = until
        raise AssertionError("it does not settle")

    def exit(
        self, code: int | None = 0, *, signal: int | None = None, oom: bool = False, after: float = 5
    ) -> None:
        """What runs ends, some time later."""
        assert self.view is not None
        assert self.view.started_at is not None
        self.now += after
        how = ExitStatus(at=self.now, code=None if signal is not None else code, signal=signal, oom=oom)
        self.view = replace(self.view, state=ContainerState.EXITED, exit=how, address="", pid=None)
        self.health = None

    def reboot(self) -> None:
        """The machine goes down and comes up: nobody knows how what ran has ended."""
        self.now += 60
        if self.view is not None and self.view.state is ContainerState.RUNNING:
            self.view = replace(
                self.view,
                state=ContainerState.EXITED,
                exit=None,
                reason="the machine was restarted while it ran",
            )

    def start(self) -> None:
        """Somebody, or we, start the container that is there."""
        assert self.view is not None
        self.now += 1 + next(self._started) / 1e6  # no two runs begin at the same time
        self.view = replace(
            self.view,
            state=ContainerState.RUNNING,
            address="10.64.1.7",
            started_at=self.now,
            exit=None,
            reason="",
        )

    def acknowledge(self) -> None:
        if self.copy is not None:
            self.copy = self.copy.acknowledge(2**62)

    def _report(self, history: state.LocalStatus) -> None:
        assert self.copy is not None
        self.copy = self.copy.with_status(history, next(self._numbers))
        self.reported.append((self.copy.order.generation, history.status))

    def _do(self, act: InstanceAction) -> None:
        assert self.copy is not None
        match act:
            case InstanceAction.CREATE | InstanceAction.START if self.failures:
                self._report(steps.not_started(self.situation(), self.failures.pop(0)))
            case InstanceAction.CREATE:
                assert self.view is None
                made = container_spec(ID, self.copy.order.spec)
                self.copy = replace(self.copy, created_spec=made)
                self.view = ContainerView(
                    made,
                    ImageId("sha256:" + "a" * 64),
                    ContainerState.CREATED,
                    self.now,
                    access=self.copy.order.access,
                )
            case InstanceAction.RESTRICT:
                assert self.view is not None
                self.view = replace(self.view, access=self.copy.order.access)
            case InstanceAction.START:
                assert self.view is not None
                assert self.view.state is not ContainerState.RUNNING
                self.start()
            case InstanceAction.STOP:
                self.exit(signal=15)
            case InstanceAction.REMOVE:
                self.view = None
            case InstanceAction.FORGET:
                self.copy = None

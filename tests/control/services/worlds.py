"""A small world around `decide`: copies that start, become ready, crash and end as a test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from skerry.control.services import decisions, rollouts
from skerry.control.services.copies import NodeAvailability
from skerry.control.services.decisions import ServicePlan
from skerry.model.health_checks import CheckMethod, CheckRole, HealthCheck
from skerry.model.ids import InstanceId, NodeId, ServiceId
from skerry.model.services import Service, ServiceRevision, UpdatePolicy
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceOwner, InstanceSpec, ObservedState, OwnerKind

CHECK = HealthCheck(CheckRole.READINESS, CheckMethod.TCP, 80)


def revision(number: int = 1, **spec: object) -> ServiceRevision:
    template = InstanceSpec(name="web", uri=f"example.org/web:{number}", checks=(CHECK,), **spec)  # type: ignore[arg-type]
    return ServiceRevision(number, template, created_at=0.0)


def make_service(replicas: int = 3, **fields: object) -> Service:
    """A service that has been well for long."""
    given = {"update": UpdatePolicy(min_ready_s=0.0, drain_s=0.0), "target": revision(), **fields}
    given.setdefault("stable", given["target"])
    return Service(ServiceId("s1"), "web", created_at=0.0, replicas=replicas, **given)  # type: ignore[arg-type]


def updated(service: Service, to: ServiceRevision, now: float) -> Service:
    is_canary = service.update.canary > 0 and service.stable is not None
    return replace(service, target=to, latest=to.number, rollout=rollouts.begin(now, is_canary=is_canary))


@dataclass
class World:
    """One service with its copies, and nodes that do what they are told at once or when a test says."""

    service: Service
    now: float = 1000.0
    copies: dict[InstanceId, Instance] = field(default_factory=dict)
    draining: set[NodeId] = field(default_factory=set)
    unreachable: set[NodeId] = field(default_factory=set)
    made: int = 0
    is_removed: bool = False
    events: list[str] = field(default_factory=list)

    def of_index(self, index: int) -> list[Instance]:
        return [copy for copy in self.copies.values() if copy.owner and copy.owner.index == index]

    @property
    def existing(self) -> list[Instance]:
        over = (InstanceStatus.TERMINATED, InstanceStatus.FAILED)
        return [copy for copy in self.copies.values() if copy.observed.status not in over]

    @property
    def ready(self) -> list[Instance]:
        return [copy for copy in self.copies.values() if copy.is_ready and copy.node not in self.unreachable]

    def revisions(self) -> list[int]:
        """Of the copies that are in service."""
        return sorted(
            copy.owner.revision
            for copy in self.existing
            if copy.owner and copy.desired is DesiredStatus.RUNNING and copy.retiring_at is None
        )

    def decide(self) -> ServicePlan:
        nodes = NodeAvailability(frozenset(self.unreachable), frozenset(self.draining))
        return decisions.decide(self.service, list(self.copies.values()), nodes, self.now)

    def turn(self) -> ServicePlan:
        """Decide, and do it."""
        plan = self.decide()
        self.service = plan.service
        self.events += [event.kind for event in plan.events]
        self.is_removed = plan.is_removed
        for new in plan.creates:
            self.made += 1
            id = InstanceId(f"i{self.made:05}")
            spec = replace(new.revision.template, name=f"web-{new.index}")
            owner = InstanceOwner(OwnerKind.SERVICE, "s1", "web", new.revision.number, new.index, new.attempt)
            observed = ObservedState(InstanceStatus.SCHEDULING, self.now, has_passed=False)
            self.copies[id] = Instance(id, spec, self.now, observed, owner=owner)
        for copy in plan.retires:
            self.copies[copy.id] = replace(self.copies[copy.id], retiring_at=self.now)
        for copy in plan.destroys:
            self.copies[copy.id] = replace(self.copies[copy.id], desired=DesiredStatus.DESTROYED)
        return plan

    def run(self, copy: Instance, node: str = "") -> None:
        """Placed, and running; not ready yet."""
        place = NodeId(node or f"n{(copy.owner.index if copy.owner else 0)}")
        observed = ObservedState(InstanceStatus.RUNNING, self.now, has_passed=False)
        self.copies[copy.id] = replace(self.copies[copy.id], node=place, observed=observed)

    def check(self, copy: Instance, *, has_passed: bool) -> None:
        before = self.copies[copy.id]
        observed = replace(before.observed, has_passed=has_passed, checked_at=self.now)
        self.copies[copy.id] = replace(before, observed=observed)

    def end(self, copy: Instance, status: InstanceStatus = InstanceStatus.FAILED) -> None:
        before = self.copies[copy.id]
        self.copies[copy.id] = replace(before, observed=ObservedState(status, self.now, "exit code 1"))

    def purge(self) -> None:
        """Nodes have removed what is to be destroyed."""
        gone = [copy.id for copy in self.copies.values() if copy.desired is DesiredStatus.DESTROYED]
        for id in gone:
            del self.copies[id]

    def make_ready(self, is_good: Callable[[Instance], bool] = lambda copy: True) -> None:
        """Whatever is good and to run, runs and is ready."""
        for copy in list(self.existing):
            if copy.desired is not DesiredStatus.RUNNING:
                continue
            if copy.node is None:
                free = [f"n{number}" for number in range(50) if f"n{number}" not in self.draining]
                self.run(copy, free[copy.owner.index if copy.owner else 0])
            if is_good(copy) and not self.copies[copy.id].observed.has_passed:
                self.check(copy, has_passed=True)

    def settle(self, is_good: Callable[[Instance], bool] = lambda copy: True, turns: int = 200) -> None:
        """Go on until nothing is left to do; time passes to whatever is waited for."""
        for _ in range(turns):
            before = (self.service, dict(self.copies))
            plan = self.turn()
            self.purge()
            self.make_ready(is_good)
            if (self.service, self.copies) == before:
                if plan.wake_at is None or plan.wake_at > self.now + 3600:
                    return
                self.now = max(self.now, plan.wake_at)

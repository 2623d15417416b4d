"""What never happens to a service, whatever happens to its copies: searched for by hypothesis."""

from __future__ import annotations

from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from msgspec.structs import replace

from skerry.control.services import rollouts
from skerry.control.services.decisions import ServicePlan
from skerry.model.ids import NodeId
from skerry.model.ports import PortMapping
from skerry.model.services import DisruptionBudget, Service, UpdateOrder, UpdatePolicy
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance
from tests.control.services.worlds import World, make_service, revision, updated

POLICIES = strategies.builds(
    UpdatePolicy,
    order=strategies.just(UpdateOrder.AUTO),
    max_surge=strategies.sampled_from((1, 2, "50%")),
    max_unavailable=strategies.sampled_from((0, 1, "34%")),
    min_ready_s=strategies.sampled_from((0.0, 3.0)),
    drain_s=strategies.sampled_from((0.0, 5.0)),
    deadline_s=strategies.just(60.0),
    canary=strategies.sampled_from((0, 0, 1)),
    promote_after_s=strategies.sampled_from((None, 10.0)),
)
PICK = strategies.integers(0, 1_000_000)


class ServiceMachine(RuleBasedStateMachine):
    """One service in a world that does its worst; every plan is looked at before it is carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(make_service(3, stable=None, rollout=rollouts.begin(1000.0)))
        self.numbers = 1

    # What people do

    @rule(replicas=strategies.integers(0, 6))
    def scale(self, replicas: int) -> None:
        service = self.world.service
        if service.update.canary <= max(replicas, 1):
            self.world.service = replace(service, replicas=replicas)

    @rule(policy=POLICIES, budget=strategies.sampled_from((0, 1)), has_ports=strategies.booleans())
    def update(self, policy: UpdatePolicy, budget: int, has_ports: bool) -> None:
        service = self.world.service
        self.numbers += 1
        to = revision(self.numbers, ports=(PortMapping(8080, 80),) if has_ports else ())
        policy = replace(policy, canary=min(policy.canary, max(service.replicas, 1)))
        service = replace(service, update=policy, budget=DisruptionBudget(budget))
        self.world.service = updated(service, to, self.world.now)

    @rule()
    def promote(self) -> None:
        rollout = self.world.service.rollout
        if rollout is not None and rollout.is_canary:
            promoted = rollouts.promote(rollout, self.world.now)
            self.world.service = replace(self.world.service, rollout=promoted)

    @rule(is_paused=strategies.booleans())
    def pause(self, is_paused: bool) -> None:
        self.world.service = replace(self.world.service, is_paused=is_paused)

    @rule(node=strategies.integers(0, 5), is_draining=strategies.booleans())
    def drain(self, node: int, is_draining: bool) -> None:
        nodes = self.world.draining
        (nodes.add if is_draining else nodes.discard)(NodeId(f"n{node}"))

    # What happens

    @rule(pick=PICK, node=strategies.integers(0, 5))
    def place(self, pick: int, node: int) -> None:
        name = NodeId(f"n{node}")
        waiting = [copy for copy in self._alive() if copy.node is None]
        if waiting and name not in self.world.draining:
            self.world.run(waiting[pick % len(waiting)], name)

    @rule(pick=PICK, has_passed=strategies.sampled_from((True, True, False)))
    def check(self, pick: int, has_passed: bool) -> None:
        running = [copy for copy in self._alive() if copy.node is not None]
        if running:
            self.world.check(running[pick % len(running)], has_passed=has_passed)

    @rule(pick=PICK)
    def crash(self, pick: int) -> None:
        if running := [copy for copy in self._alive() if copy.node is not None]:
            copy = running[pick % len(running)]
            observed = replace(copy.observed, status=InstanceStatus.CRASHED, has_passed=False)
            self.world.copies[copy.id] = replace(copy, observed=observed, restarts=copy.restarts + 1)

    @rule(pick=PICK)
    def end(self, pick: int) -> None:
        if running := [copy for copy in self._alive() if copy.node is not None]:
            self.world.end(running[pick % len(running)])

    @rule(node=strategies.integers(0, 5), is_heard=strategies.booleans())
    def hear(self, node: int, is_heard: bool) -> None:
        nodes = self.world.unreachable
        (nodes.discard if is_heard else nodes.add)(NodeId(f"n{node}"))

    @rule()
    def purge(self) -> None:
        self.world.purge()

    @rule(seconds=strategies.sampled_from((1.0, 5.0, 30.0, 90.0)))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds

    @rule(times=strategies.integers(1, 4))
    def decide(self, times: int) -> None:
        for _ in range(times):
            self._turn()

    @precondition(lambda self: self.world.service.replicas > 0)
    @rule()
    def all_is_well_in_the_end(self) -> None:
        """If the world behaves from now on, the service gets there."""
        world = self.world
        world.draining.clear()
        world.unreachable.clear()
        world.service = replace(world.service, is_paused=False)
        if world.service.rollout is not None and world.service.rollout.is_canary:
            self.promote()
        for copy in list(world.existing):  # what has crashed is started again by its node
            if copy.observed.status is InstanceStatus.CRASHED:
                world.run(copy, copy.node or "")
        for _ in range(300):
            before = (world.service, dict(world.copies))
            plan = self._turn()
            world.purge()
            world.make_ready()
            if (world.service, world.copies) == before and plan.wake_at is None:
                break
            if (world.service, world.copies) == before and plan.wake_at is not None:
                world.now = max(world.now, plan.wake_at)
        rollout = world.service.rollout
        assert rollout is None or rollout.is_canary or rollout.is_halted, rollout
        assert len(world.ready) >= world.service.replicas
        if rollout is None:
            assert world.revisions() == [world.service.target.number] * world.service.replicas

    def _alive(self) -> list[Instance]:
        return [copy for copy in self.world.existing if copy.desired is DesiredStatus.RUNNING]

    def _turn(self) -> ServicePlan:
        """Decide and do it, and look whether that was allowed."""
        world = self.world
        ready, existing = len(world.ready), len(world.existing)
        silent = [copy for copy in world.copies.values() if copy.is_ready and copy.node in world.unreachable]
        plan = world.turn()
        service: Service = plan.service
        bounds = service.bounds
        if plan.creates:
            assert existing + len(plan.creates) <= service.replicas + bounds.surge
        allowed = max(bounds.unavailable, service.budget.resolve(service.replicas))
        lowered = ready - len(world.ready)
        if lowered:
            assert len(world.ready) >= service.replicas - allowed, (ready, len(world.ready))
        if any(not world.copies[copy.id].is_ready for copy in silent):  # it may have been in service
            assert len(world.ready) >= service.replicas - allowed, (ready, len(world.ready))
        assert not {copy.id for copy in plan.retires} & {copy.id for copy in plan.destroys}
        return plan


ServiceMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestServices = ServiceMachine.TestCase

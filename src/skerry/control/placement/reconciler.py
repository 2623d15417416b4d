"""The reconciler: it commits what the planners decide, on the server that leads.

Every server keeps a planner up to date, so that each can explain placements and any can take over. The leader
takes turns: it decides a little, sends that to the store, and goes on without waiting, so that several
transactions are on their way and the store makes them durable together. It rests until something changes or a
time comes, and never polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

import structlog

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.instances.writer import TransitionWriter
from skerry.control.leadership.election import LeaderElection
from skerry.control.nodes.conditions import NodeConditions
from skerry.control.placement.planner import PlacementPlanner, PlannedTransition
from skerry.control.placement.preview import PreviewStep
from skerry.control.placement.rollout import RolloutPlanner
from skerry.control.workloads.registry import WorkloadRecord, WorkloadRegistry
from skerry.kit import metrics
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.resources import Resources
from skerry.model.settings import FleetSettings
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance
from skerry.schedule.requests import PlacementPolicy
from skerry.schedule.results import NodeFeasibility, Placement, PlacementFailure
from skerry.store.fencing import LeadershipLost
from skerry.store.protocol import MAX_OPS, Expect, Store

log = structlog.get_logger(__name__)

# A bind is the record and its event; the fence and the odd longer step must fit beside.
_PER_TURN = 60
# Transactions on their way at once: enough that the store always has the next group at hand.
_UNDER_WAY = 16

PLACED = metrics.counter("skerry_instances_placed_total", "Instances bound to a node")


async def _at_once() -> None:
    """For a store that needs no time to settle."""


class Reconciler:
    """Brings instances to nodes and off them."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        settings: FleetSettings,
        *,
        instance_table: InstanceTable,
        workloads: WorkloadRegistry,
        conditions: NodeConditions,
        settled: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        """Nothing is decided before `settled` returns, which is asked before every turn."""
        self._settled = settled
        self._store = store
        self._clock = clock
        self._table = instance_table
        self._workloads = workloads
        self._conditions = conditions
        self._writer = TransitionWriter(events, instance_table)
        self._planner = PlacementPlanner(
            instance_table.index,
            policy=PlacementPolicy(settings.placement),
            replacements_per_s=settings.replacements_per_s,
            spread_copies=settings.spread_copies,
        )
        self._rollouts = RolloutPlanner(workloads, instance_table.index)
        self._backoff = Backoff(cap_s=5.0)
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(_UNDER_WAY)
        instance_table.listen(self._instance_changed)
        workloads.listen(self._workload_changed)
        conditions.listen(self._node_changed)

    def explain(self, instance: Instance) -> Sequence[NodeFeasibility]:
        """What every node says to an instance."""
        return self._planner.explain(instance)

    def preview(self, steps: Sequence[PreviewStep]) -> Sequence[Placement | PlacementFailure]:
        """Where instances that are not there yet would be placed."""
        return self._planner.preview(steps)

    def reserve(self, node: NodeId, reserved: Mapping[InstanceId, Resources]) -> None:
        """Replace the reservations on `node`, which are for instances that may not exist yet."""
        self._planner.reserve(node, reserved)
        self._changed.set()

    async def run(self, leader: LeaderElection) -> None:
        """Keep the planner up to date for ever, and decide while `leader` leads. The tables must be
        running."""
        await self._table.ready()
        await self._workloads.ready()
        await self._conditions.ready()
        for condition in self._conditions.conditions():
            self._planner.node_changed(condition.view.id, condition)
        await leader.run_while_leading("placing", self._lead, is_vital=True)

    async def _lead(self, fence: Expect) -> None:
        # What was decided by who led before is in the store now, or never will be.
        await self._table.sync()
        self._slots = asyncio.Semaphore(_UNDER_WAY)
        self._planner.begin()
        self._rollouts.begin()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._settled()
                    self._changed.clear()
                    now = self._clock.now()
                    wake_at = await self._turn(group, fence, now)
                    await self._rest(None if wake_at is None else wake_at - now)
        except* LeadershipLost as lost:
            raise LeadershipLost(str(lost.exceptions[0])) from None

    async def _turn(self, group: asyncio.TaskGroup, fence: Expect, now: float) -> float | None:
        plan = self._planner.plan(now, _PER_TURN)
        rollout_steps, deleted = self._rollouts.plan(now, _PER_TURN, self._planner.is_under_way)
        self._planner.mark_under_way(record.value.id for record, _ in rollout_steps)
        for batch in _batches([*plan.decided, *rollout_steps]):
            await self._slots.acquire()
            group.create_task(self._carry_out(batch, fence))
        for record in deleted:
            group.create_task(self._forget(record, fence))
        return plan.wake_at

    async def _rest(self, at_most_s: float | None) -> None:
        if at_most_s is not None and at_most_s <= 0:
            await asyncio.sleep(0)  # there is more to do, but not before others had their turn
            return
        try:
            async with asyncio.timeout(at_most_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _carry_out(self, batch: Sequence[PlannedTransition], fence: Expect) -> None:
        try:
            await self._write(batch, fence)
        except errors.Unavailable as error:
            log.warning("reconciler.interrupted", error=error.message)
            await asyncio.sleep(self._backoff.delay(0))
        finally:
            self._slots.release()
            self._planner.done(record.value.id for record, _ in batch)
            for record, _ in batch:
                self._rollouts.instances_changed(record.value.workload)
            self._changed.set()

    async def _write(self, batch: Sequence[PlannedTransition], fence: Expect) -> None:
        """Make a batch durable; what changed meanwhile is left, to be decided anew on what it is now."""
        try:
            await self._writer.commit(batch, fence=fence)
        except (errors.Conflict, errors.TooLarge):
            if len(batch) == 1:
                await self._table.sync()
                return
            for one in batch:  # some of them stand in the way of the others
                await self._write([one], fence)
        else:
            PLACED.inc(sum(step.after.observed.status is InstanceStatus.SCHEDULED for _, step in batch))

    async def _forget(self, record: WorkloadRecord, fence: Expect) -> None:
        """Remove a deleted workload, unless an instance comes to light that was made just before."""
        try:
            await self._table.sync()
            if self._rollouts.is_done_with(record):
                await self._workloads.forget(record, fence)
        except errors.Conflict:
            pass  # it is forgotten already
        except errors.Unavailable as error:
            log.warning("reconciler.interrupted", error=error.message)
            await asyncio.sleep(self._backoff.delay(0))
            self._rollouts.instances_changed(record.value.id)
        self._changed.set()

    def _instance_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        self._planner.instance_changed(before, after)
        for record in (before, after):
            if record is not None:
                self._rollouts.instances_changed(record.value.workload)
        self._changed.set()

    def _workload_changed(self, before: WorkloadRecord | None, after: WorkloadRecord | None) -> None:
        if after is not None:
            self._rollouts.workload_changed(after)
        elif before is not None:
            self._rollouts.forget(before.value.id)
        self._changed.set()

    def _node_changed(self, node: NodeId) -> None:
        self._planner.node_changed(node, self._conditions.condition(node))
        self._changed.set()


def _batches(decided: Sequence[PlannedTransition]) -> Iterator[list[PlannedTransition]]:
    """Split up so that each fits in a transaction."""
    batch: list[PlannedTransition] = []
    ops = 0
    for one in decided:
        more = 1 + len(one[1].events)
        if batch and ops + more > MAX_OPS:
            yield batch
            batch, ops = [], 0
        batch.append(one)
        ops += more
    if batch:
        yield batch

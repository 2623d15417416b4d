"""The reconciler: it commits what the planners decide, on the server that leads.

Every server keeps a planner up to date, so that each can explain placements and any can take over. The leader
makes passes: it decides a little, sends that to the store, and goes on without waiting, so that several
transactions are in flight and the store makes them durable together. Between passes it waits until something
changes or a time comes, and never polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial

import structlog

from skerry.control.controller_loop import PassLoop, settled_at_once
from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.instances.writer import TransitionWriter
from skerry.control.leadership.election import LeaderElection
from skerry.control.named_table import key_of
from skerry.control.namespaces.quotas import NamespaceQuotas
from skerry.control.nodes.conditions import NodeConditions
from skerry.control.placement.planner import PlacementPlanner, PlannedTransition
from skerry.control.placement.preview import PreviewStep
from skerry.control.placement.rollout import RolloutPlanner
from skerry.control.placement.volume_bindings import VolumeWrite
from skerry.control.volumes.table import VolumeRecord, VolumeTable
from skerry.control.workloads.registry import WorkloadRecord, WorkloadRegistry
from skerry.kit import metrics, traces
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.kit.traces import SpanRecorder
from skerry.model import errors
from skerry.model.ids import InstanceId, Namespace, NodeId
from skerry.model.resources import Resources
from skerry.model.settings import FleetSettings
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance
from skerry.schedule.requests import PlacementPolicy
from skerry.schedule.results import NodeFeasibility, Placement, PlacementFailure
from skerry.store.protocol import MAX_OPS, Expect, Op, Store

log = structlog.get_logger(__name__)

# A bind is the record and its event; the fence and the odd longer step must fit beside.
_PER_PASS = 60
# Of one transaction: what quotas add must fit beside.
_OPS = MAX_OPS - 8
# Transactions at once: enough that the store always has the next group at hand.
_IN_FLIGHT = 16

PlannedVolumes = Mapping[InstanceId, Sequence[VolumeWrite]]

PLACED = metrics.counter("skerry_instances_placed_total", "Instances bound to a node")


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
        settled: Callable[[], Awaitable[None]] = settled_at_once,
    ) -> None:
        """Nothing is decided before `settled` returns, which is called before every pass."""
        self._store = store
        self._events = events
        self._clock = clock
        self._table = instance_table
        self._workloads = workloads
        self._conditions = conditions
        self._events = events
        self._volumes: VolumeTable | None = None
        self._writer = TransitionWriter(events, instance_table)
        self._planner = PlacementPlanner(
            instance_table.index,
            policy=PlacementPolicy(settings.placement),
            replacements_per_s=settings.replacements_per_s,
            spread_copies=settings.spread_copies,
        )
        self._rollouts = RolloutPlanner(workloads, instance_table.index)
        self._backoff = Backoff(cap_s=5.0)
        self._passes = PassLoop(clock, settled=settled, in_flight=_IN_FLIGHT)
        instance_table.listen(self._instance_changed)
        workloads.listen(self._workload_changed)
        conditions.listen(self._node_changed)

    def follow_quotas(self, quotas: NamespaceQuotas) -> None:
        """Go on with rollouts that a quota refused when there may be room for them."""
        quotas.listen(self._quota_changed)

    def follow_volumes(self, volumes: VolumeTable) -> None:
        """Bind volumes with the instances that use them. To be called before `run`."""
        self._volumes = volumes
        self._planner.follow_volumes(volumes)
        volumes.listen(self._volume_changed)

    def explain(self, instance: Instance) -> Sequence[NodeFeasibility]:
        """The feasibility of every node for an instance."""
        return self._planner.explain(instance)

    def free(self, node: NodeId) -> Resources:
        """The free resources of a node. Raises NotFound."""
        return self._planner.free(node)

    def preview(self, steps: Sequence[PreviewStep]) -> Sequence[Placement | PlacementFailure]:
        """Where new instances would be placed."""
        return self._planner.preview(steps)

    def reserve(self, node: NodeId, reserved: Mapping[InstanceId, Resources]) -> None:
        """Replace the reservations on `node`, which are for instances that may not exist yet."""
        self._planner.reserve(node, reserved)
        self._passes.wake()

    async def run(self, leader: LeaderElection) -> None:
        """Keep the planner up to date for ever, and decide while `leader` leads. The tables must be
        running."""
        await self._table.ready()
        await self._workloads.ready()
        await self._conditions.ready()
        if self._volumes is not None:
            await self._volumes.ready()
        for condition in self._conditions.conditions():
            self._planner.node_changed(condition.view.id, condition)
        await leader.run_while_leading("placing", self._lead, is_vital=True)

    async def _lead(self, fence: Expect) -> None:
        # Transactions of the leader before are in the store now, or never will be.
        await self._table.sync()
        if self._volumes is not None:
            await self._volumes.sync()
        self._planner.begin()
        self._rollouts.begin()
        await self._passes.run(partial(self._pass, fence))

    async def _pass(self, fence: Expect) -> float | None:
        """Decide a little and send it to the store; returns when to decide again."""
        now = self._clock.now()
        plan = self._planner.plan(now, _PER_PASS)
        rollout_steps, deleted = self._rollouts.plan(now, _PER_PASS, self._planner.is_in_progress)
        self._planner.mark_in_progress(record.value.id for record, _ in rollout_steps)
        for batch in _batches([*plan.decided, *rollout_steps], plan.volumes):
            await self._passes.start(partial(self._carry_out, batch, plan.volumes, fence))
        for record in deleted:
            await self._passes.start(partial(self._remove_workload, record, fence))
        return plan.wake_at

    async def _carry_out(
        self, batch: Sequence[PlannedTransition], volumes: PlannedVolumes, fence: Expect
    ) -> None:
        try:
            await self._write(batch, volumes, fence)
        except errors.Unavailable as error:
            log.warning("reconciler.interrupted", error=error.message)
            await asyncio.sleep(self._backoff.delay(0))
        finally:
            self._planner.done(record.value.id for record, _ in batch)
            for record, _ in batch:
                self._rollouts.instances_changed(record.value.workload)

    async def _write(
        self, batch: Sequence[PlannedTransition], volumes: PlannedVolumes, fence: Expect
    ) -> None:
        """Write a batch; instances that have changed meanwhile are skipped, and decided about again."""
        writes = [write for record, _ in batch for write in volumes.get(record.value.id, ())]
        try:
            await self._writer.commit(
                batch, fence=fence, ops=self._volume_ops(writes), expect=self._expect(writes)
            )
            await self._sync_volumes(writes)
        except (errors.Conflict, errors.TooLarge, errors.QuotaExceeded) as error:
            if len(batch) > 1:
                for one in batch:  # some of them conflict
                    await self._write([one], volumes, fence)
            elif isinstance(error, errors.QuotaExceeded):
                await self._refuse(batch[0][0].value, error.message)
            else:
                await self._table.sync()
                await self._sync_volumes(writes)
        else:
            PLACED.inc(sum(step.after.observed.status is InstanceStatus.SCHEDULED for _, step in batch))
            if traces.recorder is not None:
                for _, step in batch:
                    _trace(traces.recorder, step.after)

    async def _refuse(self, instance: Instance, reason: str) -> None:
        """The next version of its workload exceeds the quota of the namespace: the rollout waits."""
        if self._rollouts.refused(instance.workload, reason):
            subject = self._workloads.table.key(instance.workload or "")
            await self._events.record(
                "workload.quota-exceeded",
                subject,
                actor="skerry",
                reason=reason,
                namespace=instance.namespace,
                instance=instance.id,
            )

    def _volume_ops(self, writes: Sequence[VolumeWrite]) -> list[Op]:
        """The records of volumes that are bound, with an event for each that was not before."""
        ops: list[Op] = []
        for record, after in writes:
            assert self._volumes is not None, "there are no volumes without their table"
            ops.append(self._volumes.put(key_of(after), after))
            if record.value.node != after.node:
                ops.append(
                    self._volumes.event(self._events, "bound", after, actor="skerry", reason=after.reason)
                )
        return ops

    def _expect(self, writes: Sequence[VolumeWrite]) -> list[Expect]:
        assert self._volumes is not None or not writes
        return [
            self._volumes.expect(key_of(write.after), write.record)
            for write in writes
            if self._volumes is not None
        ]

    async def _sync_volumes(self, writes: Sequence[VolumeWrite]) -> None:
        if writes and self._volumes is not None:
            await self._volumes.sync()

    async def _remove_workload(self, record: WorkloadRecord, fence: Expect) -> None:
        """Remove a deleted workload, unless an instance of it was created just before."""
        try:
            await self._table.sync()
            if self._rollouts.is_done_with(record):
                await self._workloads.forget(record, fence)
        except errors.Conflict:
            pass  # it is removed already
        except errors.Unavailable as error:
            log.warning("reconciler.interrupted", error=error.message)
            await asyncio.sleep(self._backoff.delay(0))
            self._rollouts.instances_changed(record.value.id)

    def _instance_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        self._planner.instance_changed(before, after)
        for record in (before, after):
            if record is not None:
                self._rollouts.instances_changed(record.value.workload)
        self._passes.wake()

    def _workload_changed(self, before: WorkloadRecord | None, after: WorkloadRecord | None) -> None:
        if after is not None:
            self._rollouts.workload_changed(after)
        elif before is not None:
            self._rollouts.forget(before.value.id)
        self._passes.wake()

    def _quota_changed(self, namespace: Namespace) -> None:
        self._rollouts.quota_changed(namespace)
        self._passes.wake()

    def _volume_changed(self, before: VolumeRecord | None, after: VolumeRecord | None) -> None:
        self._planner.volume_changed(before, after)
        self._passes.wake()

    def _node_changed(self, node: NodeId) -> None:
        self._planner.node_changed(node, self._conditions.condition(node))
        self._passes.wake()


def _batches(
    decided: Sequence[PlannedTransition], volumes: PlannedVolumes
) -> Iterator[list[PlannedTransition]]:
    """Split up so that each fits in a transaction."""
    batch: list[PlannedTransition] = []
    ops = 0
    for one in decided:
        more = 1 + len(one[1].events) + 2 * len(volumes.get(one[0].value.id, ()))
        if batch and ops + more > _OPS:
            yield batch
            batch, ops = [], 0
        batch.append(one)
        ops += more
    if batch:
        yield batch


def _trace(recorder: SpanRecorder, placed: Instance) -> None:
    """The placement of a new instance, in the trace of the request that created it."""
    seen, parent = placed.observed, traces.context_of(placed.request_id)
    if parent is None or seen.status is not InstanceStatus.SCHEDULED or placed.generation != 1:
        return
    recorder.end(
        recorder.begin(parent),
        parent,
        "place instance",
        max(0.0, seen.since - placed.created_at),
        attributes={"skerry.instance": placed.id, "skerry.node": str(placed.node or "")},
    )

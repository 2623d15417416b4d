"""The placement planner: what to do with instances, given instances and nodes. No I/O, clock or randomness.

`PlacementPlanner` is notified of every change and decides only on what changed: pending instances are placed
in the order of age; instances on a node that is lost or drained are released, and then placed again. It
counts its decisions as done until it knows their outcome, so that many can be in flight and the resources of
a node are never allocated twice. `decide` is the same from scratch. Plans have a maximum size, and nothing is
examined again before something that it depends on has changed: a plan with `wake_at` None has nothing to do
until the next change. `skerry.control.leadership.election` decides which server plans;
`skerry.control.placement.reconciler` writes the plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from skerry.control import instance_index
from skerry.control.instance_index import InstanceIndex, InstanceRecord
from skerry.control.instances import transitions
from skerry.control.instances.transitions import InstanceTransition
from skerry.control.nodes.conditions import NodeCondition
from skerry.control.placement import preview as placement_preview
from skerry.control.placement.preview import PreviewStep
from skerry.control.placement.queue import PlacementQueue
from skerry.control.placement.reservations import ReservedCapacity
from skerry.control.placement.volume_bindings import NoVolumes, VolumeBindings, VolumeLookup, VolumeWrite
from skerry.control.volumes.table import VolumeRecord
from skerry.kit.rate_limit import TokenBucket
from skerry.model.ids import InstanceId, NodeId
from skerry.model.nodes import Liveness
from skerry.model.resources import Resources
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec, OwnerKind
from skerry.schedule import explanations
from skerry.schedule.requests import PlacementPolicy, PlacementRequest
from skerry.schedule.results import NodeFeasibility, Placement, PlacementFailure
from skerry.schedule.scheduler import Scheduler

# Ended instances that were not destroyed are kept, so that their end can be read; but not all.
MAX_TERMINAL_INSTANCES = 1000
# From this many nodes with new capacity on, asking each what it could hold costs more than just trying.
_MANY_NODES = 64
# Looking at an instance costs a small part of what deciding on it does.
_LOOKS = 8
UNLIMITED = 10**9

PlannedTransition = tuple[InstanceRecord, InstanceTransition]


class PlacementPlan(msgspec.Struct):
    """What a turn decided; each instance is in it once."""

    bindings: list[PlannedTransition] = []  # bound to a node
    evictions: list[PlannedTransition] = []  # their node, which drains, is to give them up
    replacements: list[PlannedTransition] = []  # unbound from a node that is lost or removed
    expirations: list[PlannedTransition] = []  # over, and more than are kept
    pending: list[PlannedTransition] = []  # with a new reason why they are not placed
    # Volumes of the bindings, by instance, to be written with each.
    volumes: dict[InstanceId, tuple[VolumeWrite, ...]] = {}
    wake_at: float | None = None  # when there is more to do, if nothing changes before; `now`: at once

    @property
    def decided(self) -> list[PlannedTransition]:
        """All of it."""
        return [*self.replacements, *self.evictions, *self.bindings, *self.expirations, *self.pending]


def decide(
    now: float,
    instances: Iterable[InstanceRecord],
    nodes: Iterable[NodeCondition],
    *,
    policy: PlacementPolicy = PlacementPolicy.BINPACK,
    replacements_per_s: float = 20.0,
    volumes: VolumeLookup | None = None,
) -> PlacementPlan:
    """All that is to be done about `instances` on `nodes` at `now`."""
    planner = PlacementPlanner(
        InstanceIndex(instances), policy=policy, replacements_per_s=replacements_per_s, volumes=volumes
    )
    for condition in nodes:
        planner.node_changed(condition.view.id, condition)
    planner.begin()
    return planner.plan(now, UNLIMITED)


class PlacementPlanner:
    """The state of placement on one server: bindings, pending instances, and instances to replace."""

    def __init__(
        self,
        index: InstanceIndex,
        *,
        policy: PlacementPolicy,
        replacements_per_s: float,
        spread_copies: bool = True,
        volumes: VolumeLookup | None = None,
    ) -> None:
        self._index = index
        self._policy = policy
        self._spread_copies = spread_copies
        self._scheduler = Scheduler()
        self._nodes: dict[NodeId, NodeCondition] = {}
        self._pending = PlacementQueue()
        self._dirty: dict[InstanceId, None] = {}  # to be examined
        self._lost: dict[InstanceId, None] = {}  # on lost nodes, replaced as the rate allows
        self._draining: dict[InstanceId, None] = {}  # on draining nodes, with nowhere to go
        self._retries: dict[InstanceId, None] = {}  # of those, the ones that may fit now
        self._successors: set[InstanceId] = (
            set()
        )  # instances that leave, and reserve a node for their next copy
        self._in_progress: set[InstanceId] = set()  # decided; how it went is not known yet
        self._previous_nodes: dict[InstanceId, NodeId] = {}  # where a copy was that left for its successor
        self._reservations = ReservedCapacity(self._scheduler)
        self._volumes = VolumeBindings(NoVolumes() if volumes is None else volumes, self._scheduler)
        self._drains: dict[NodeId, float] = {}  # until when what is left there may stay
        self._freed: set[NodeId] = set()  # may have more capacity than at the last attempt
        self._replacing = TokenBucket.full(replacements_per_s, at=float("-inf"))

    def follow_volumes(self, volumes: VolumeLookup) -> None:
        """Place instances where their volumes are. To be called before anything is known."""
        self._volumes = VolumeBindings(volumes, self._scheduler)

    # Notifications

    def begin(self) -> None:
        """Begin a term: nothing is under way, and every instance is examined."""
        self._in_progress.clear()
        for record in self._index:
            self._volumes.instance_changed(record.value.id, record.value)
            self._sync_binding(record.value.id)
            self._dirty[record.value.id] = None

    def instance_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        """An instance changed, and the index has it."""
        record = after or before
        assert record is not None, "something is before or after a change"
        id = record.value.id
        self._volumes.instance_changed(id, None if after is None else after.value)
        if after is None or after.value.node is not None:
            self._previous_nodes.pop(id, None)
        elif before is not None and before.value.leaving is not None and before.value.node is not None:
            self._previous_nodes[id] = before.value.node
        if id in self._in_progress:
            return
        self._sync_binding(id)
        if after is not None:
            self._dirty[id] = None
        else:  # at once, because a server that does not lead makes no plans
            self._dirty.pop(id, None)
            self._forget_waiting(id)
            self._pending.discard(id)

    def volume_changed(self, before: VolumeRecord | None, after: VolumeRecord | None) -> None:
        """A volume changed, and the lookup has it."""
        self._freed.update(self._volumes.volume_changed(before, after))
        for record in (before, after):
            if record is not None:
                self._dirty.update((id, None) for id in self._volumes.users_of(record.value))

    def node_changed(self, node: NodeId, condition: NodeCondition | None) -> None:
        """The condition of a node changed; None: it is not registered."""
        before = self._nodes.get(node)
        if condition is None:
            self._nodes.pop(node, None)
            self._scheduler.remove_node(node)
        else:
            self._nodes[node] = condition
            if before is None or before.view != condition.view:
                self._scheduler.set_node(condition.view)
                self._freed.add(node)
        if before is None or condition is None or _concerns(before, condition):
            if condition is not None and condition.drain_by is not None:
                self._drains[node] = condition.drain_by
            else:
                self._drains.pop(node, None)
            for record in self._index.on_node(node):
                self._dirty[record.value.id] = None

    def reserve(self, node: NodeId, reserved: Mapping[InstanceId, Resources]) -> None:
        """Replace the reservations on `node`, each for the instance of that id.

        A reservation holds while that instance is not placed, whether or not it exists yet: no other is
        placed in it, and the instance is tried there first. Instances that are there already stay.
        """
        for id in self._reservations.set(node, reserved):
            self._update_reservation(id)
            self._dirty[id] = None

    def done(self, ids: Iterable[InstanceId]) -> None:
        """The decisions about these are durable and known here, or failed."""
        ids = tuple(ids)
        self._dirty.update((id, None) for id in self._volumes.done(ids))
        for id in ids:
            self._in_progress.discard(id)
            self._sync_binding(id)
            self._dirty[id] = None

    # Decisions

    def is_in_progress(self, id: InstanceId) -> bool:
        return id in self._in_progress

    def mark_in_progress(self, ids: Iterable[InstanceId]) -> None:
        """Somebody else decided something on these: leave them alone until `done`."""
        self._in_progress.update(ids)

    def explain(self, instance: Instance) -> Sequence[NodeFeasibility]:
        """The feasibility of every node for it."""
        request = self._request(instance)
        return self._reservations.without(instance.id, lambda: self._scheduler.explain(request))

    def free(self, node: NodeId) -> Resources:
        """The free resources of a node. Raises NotFound."""
        return self._scheduler.free(node)

    def preview(self, steps: Sequence[PreviewStep]) -> Sequence[Placement | PlacementFailure]:
        """Where these would be placed, one after the other."""
        requests = [(self._request(step.instance, is_preview=True), step) for step in steps]
        return placement_preview.preview(self._scheduler, self._policy, requests)

    def plan(self, now: float, limit: int) -> PlacementPlan:
        """At most about `limit` decisions."""
        plan = PlacementPlan()
        self._examine_dirty(plan, now, limit)
        self._replace_lost(plan, now, limit)
        self._wake()
        self._evict_draining(plan, limit)
        self._place(plan, now, limit)
        self._report_pending(plan, limit)
        self._expire(plan, now, limit)
        self._in_progress.update(record.value.id for record, _ in plan.decided)
        plan.wake_at = self._wake_at(now)
        return plan

    def _examine_dirty(self, plan: PlacementPlan, now: float, limit: int) -> None:
        for node in [node for node, by in self._drains.items() if by <= now]:
            del self._drains[node]
            self._dirty.update((record.value.id, None) for record in self._index.on_node(node))
        for _ in range(min(limit * _LOOKS, len(self._dirty))):
            id = next(iter(self._dirty))
            del self._dirty[id]
            record = self._index.get(id)
            self._forget_waiting(id)
            if record is None or record.value.node is not None:
                self._pending.discard(id)
            if record is not None and id not in self._in_progress:
                self._examine(plan, record, now)

    def _forget_waiting(self, id: InstanceId) -> None:
        """Remove its wait for a node."""
        self._lost.pop(id, None)
        self._draining.pop(id, None)
        self._retries.pop(id, None)

    def _examine(self, plan: PlacementPlan, record: InstanceRecord, now: float) -> None:
        """File an instance under what it waits for, or decide at once."""
        instance = record.value
        id, node = instance.id, instance.node
        if node is None:
            if _waits(instance):
                request = self._request(instance)
                self._pending.add(
                    request,
                    instance_index.age_key(instance),
                    instance.observed.reason,
                    self._reservations.node_of(id),
                )
            else:
                self._pending.discard(id)
            return
        condition = self._nodes.get(node)
        is_to_run = instance.desired is DesiredStatus.RUNNING and instance.observed.status not in TERMINAL
        reason = ""
        if condition is None:
            reason = f"node {node} is not registered any more"
        elif condition.liveness is Liveness.LOST:
            if is_to_run and self._volumes.is_at(instance, node):
                return  # its data are there, and nowhere else: it waits for the node
            if is_to_run:
                self._lost[id] = None
                return
            reason = f"node {node} is lost"
        if instance.observed.status in TERMINAL:
            if reason and instance.desired is DesiredStatus.DESTROYED:
                plan.replacements.append(_unbind(record, now, reason))
            return
        if reason:
            plan.replacements.append(_unbind(record, now, reason))
        elif condition is not None and condition.drain_by is not None:
            if instance.leaving is not None or instance.desired is DesiredStatus.DESTROYED:
                return  # it is unbound when the node reports its removal
            if instance.owner is not None and instance.owner.kind is OwnerKind.SERVICE:
                return  # its service replaces it first, within its budget
            if condition.drain_by > now:
                self._draining[id] = self._retries[id] = None
            else:
                self._evict(plan, record)

    def _replace_lost(self, plan: PlacementPlan, now: float, limit: int) -> None:
        self._replacing = self._replacing.filled(now)
        if not self._has_live_node():
            return
        while self._lost and len(plan.replacements) < limit:
            left = self._replacing.take()
            if left is None:
                return
            self._replacing = left
            id = next(iter(self._lost))
            del self._lost[id]
            record = self._index.get(id)
            node = None if record is None else record.value.node
            condition = None if node is None else self._nodes.get(node)
            if record is None or condition is None or id in self._in_progress:
                continue
            if condition.liveness is Liveness.LOST and record.value.observed.status not in TERMINAL:
                plan.replacements.append(_unbind(record, now, f"node {node} is lost"))

    def _has_live_node(self) -> bool:
        """False if no node is live: then it is more likely that the servers are disconnected than that all
        nodes are lost, and there is no node to move to. Instances continue when their node is live again."""
        return any(condition.liveness is Liveness.LIVE for condition in self._nodes.values())

    def _wake(self) -> None:
        """Try those again that could fit on nodes with more capacity than before."""
        if not self._freed:
            return
        freed = [
            node for node in self._freed if node in self._nodes and self._nodes[node].view.is_schedulable
        ]
        self._freed.clear()
        if not freed:
            return
        self._retries.update(self._draining)
        if len(freed) >= _MANY_NODES:
            self._pending.wake(lambda resources: True)
        else:
            free = [self._scheduler.free(node) for node in freed]
            kept = {resources for node in freed for resources in self._reservations.amounts(node)}
            self._pending.wake(
                lambda resources: resources in kept or any(one.fits(resources) for one in free)
            )

    def _evict_draining(self, plan: PlacementPlan, limit: int) -> None:
        """Evict instances of draining nodes that fit on another node, or do not run."""
        while self._retries and len(plan.evictions) < limit:
            id = next(iter(self._retries))
            del self._retries[id]
            record = self._index.get(id)
            if record is None or id not in self._draining or id in self._in_progress:
                continue
            instance = record.value
            condition = None if instance.node is None else self._nodes.get(instance.node)
            if condition is None or condition.drain_by is None or instance.observed.status in TERMINAL:
                continue
            if instance.desired is DesiredStatus.RUNNING:
                request = replace(self._request(instance), instance=_successor_id(id))
                found = self._scheduler.place(request, self._policy)
                if not isinstance(found, Placement):
                    continue
                self._reserve_successor(found.node, id, request.holding(found.devices))
            del self._draining[id]
            self._evict(plan, record)

    def _evict(self, plan: PlacementPlan, record: InstanceRecord) -> None:
        step = transitions.evict(record.value, reason=f"node {record.value.node} is being drained")
        if step is not None:
            plan.evictions.append((record, step))

    def _place(self, plan: PlacementPlan, now: float, limit: int) -> None:
        while len(plan.bindings) < limit and (request := self._pending.oldest()) is not None:
            id = request.instance
            record = self._index.get(id)
            is_current = (
                record is not None and _waits(record.value) and self._request(record.value) == request
            )
            if record is None or id in self._in_progress or not is_current:
                self._pending.discard(id)  # it has changed, or is about to, and is examined again then
                continue
            if self._volumes.is_busy(record.value):
                self._pending.discard(id)  # it is examined again when that is done
                continue
            self._release_successor(id)
            node = self._reservations.without(id, partial(self._find_node, request))
            if isinstance(node, PlacementFailure):
                self._pending.park(request, self._describe_failure(record.value, request, node), now)
                continue
            self._bind(plan, record, node, now)

    def _bind(self, plan: PlacementPlan, record: InstanceRecord, node: NodeId, now: float) -> None:
        instance = record.value
        request = self._request(instance, instance.spec)
        self._pending.discard(instance.id)
        devices = self._reservations.without(
            instance.id, partial(self._scheduler.choose_devices, node, request)
        )
        self._scheduler.bind(node, request.holding(devices))
        self._update_reservation(instance.id)
        volumes = self._volumes.volume_ids(instance)
        if writes := self._volumes.bind(instance, node, now):
            plan.volumes[instance.id] = writes
        step = transitions.bind(instance, node, at=now, devices=devices, volumes=volumes)
        plan.bindings.append((record, step))

    def _describe_failure(
        self, instance: Instance, request: PlacementRequest, failure: PlacementFailure
    ) -> str:
        """Why it fits nowhere: of one with a volume, why it does not fit where that is."""

        def describe(node: NodeId) -> str:
            condition = self._nodes.get(node)
            if condition is None:
                return f"node {node}, which is not registered any more"
            name = condition.view.name or node
            found = next((one for one in self._scheduler.explain(request) if one.node == node), None)
            return name if found is None else f"{name}, which {explanations.describe_feasibility(found)}"

        waits = self._volumes.waits_for(instance, describe) if instance.spec.mounts else ""
        return waits or explanations.describe_failure(failure)

    def _find_node(self, request: PlacementRequest) -> NodeId | PlacementFailure:
        """A node: that of its last copy, one with a reservation for it, or another."""
        for home in (
            self._previous_nodes.get(request.instance),
            self._reservations.node_of(request.instance),
        ):
            if home is not None and self._scheduler.fits(home, request):
                return home
        found = self._scheduler.place(request, self._policy)
        return found.node if isinstance(found, Placement) else found

    def _report_pending(self, plan: PlacementPlan, limit: int) -> None:
        for id, reason in self._pending.take_reports(limit - len(plan.bindings)):
            record = self._index.get(id)
            if record is None or id in self._in_progress or not _waits(record.value):
                continue
            if (step := transitions.set_pending_reason(record.value, reason)) is not None:
                plan.pending.append((record, step))

    def _expire(self, plan: PlacementPlan, now: float, limit: int) -> None:
        excess = max(0, self._index.count_terminal() - MAX_TERMINAL_INSTANCES)
        for record in self._index.first_terminal(min(limit, excess)):
            if record.value.id in self._in_progress:
                continue
            step = transitions.set_desired(record.value, DesiredStatus.DESTROYED, at=now, actor="skerry")
            if step is not None:
                plan.expirations.append((record, step))

    def _wake_at(self, now: float) -> float | None:
        if self._dirty or self._retries or self._freed or not self._pending.is_idle:
            return now
        times = list(self._drains.values())
        if self._lost and self._has_live_node():
            times.append(self._replacing.next_at())
        return min(times, default=None)

    def _sync_binding(self, id: InstanceId) -> None:
        """Bring the scheduler's binding of one instance in line with the index."""
        record = self._index.get(id)
        instance = None if record is None else record.value
        node = request = None
        if instance is not None and instance.node is not None and instance.observed.status not in TERMINAL:
            node, request = instance.node, self._request(instance, instance.reserved_spec)
            request = request.holding(instance.reserved_devices)
        before = self._scheduler.node_of(id)
        # It may be on the same node and be another copy: changes in between may have been skipped.
        if node != before or request != self._scheduler.request_of(id):
            if node is None or request is None:
                self._scheduler.unbind(id)
            else:
                self._scheduler.bind(node, request)
            if before is not None:
                self._freed.add(before)
        if id in self._successors and not (instance is not None and _is_moving(instance)):
            self._release_successor(id)
        self._update_reservation(id)

    def _request(
        self, instance: Instance, leaving: InstanceSpec | None = None, *, is_preview: bool = False
    ) -> PlacementRequest:
        """Its placement request, with what its volumes require; or what is bound for it, or for its copy that
        is leaving."""
        group: str | None = instance.workload if self._spread_copies else None
        if instance.owner is not None:
            group = instance.owner.group
        request = PlacementRequest.of(instance.id, leaving or instance.spec, group)
        if leaving is not None:
            return request
        return self._volumes.add_to(request, instance, is_preview=is_preview)

    def _update_reservation(self, id: InstanceId) -> None:
        has_place = self._scheduler.node_of(id) is not None or id in self._successors
        if (node := self._reservations.update(id, has_place=has_place)) is not None:
            self._freed.add(node)

    def _reserve_successor(self, node: NodeId, id: InstanceId, request: PlacementRequest) -> None:
        """Reserve a node for the next copy while the present one leaves."""
        self._scheduler.bind(node, request)
        self._successors.add(id)

    def _release_successor(self, id: InstanceId) -> None:
        if id in self._successors:
            self._successors.discard(id)
            place = _successor_id(id)
            if (node := self._scheduler.node_of(place)) is not None:
                self._freed.add(node)
            self._scheduler.unbind(place)
            self._update_reservation(id)


def _unbind(record: InstanceRecord, now: float, reason: str) -> PlannedTransition:
    return record, transitions.unbind(record.value, at=now, reason=reason, actor="skerry")


def _successor_id(id: InstanceId) -> InstanceId:
    """What a place is kept under for the successor; no instance can be called that."""
    return InstanceId(f"{id}+")


def _is_moving(instance: Instance) -> bool:
    return instance.desired is DesiredStatus.RUNNING and (
        instance.node is None or instance.leaving is not None
    )


def _waits(instance: Instance) -> bool:
    return (
        instance.node is None
        and instance.observed.status is InstanceStatus.SCHEDULING
        and instance.desired is DesiredStatus.RUNNING
    )


def _concerns(before: NodeCondition, after: NodeCondition) -> bool:
    """True if the instances on the node must be examined."""
    return before.liveness is not after.liveness or before.drain_by != after.drain_by

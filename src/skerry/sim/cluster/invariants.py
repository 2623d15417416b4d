"""The invariants of a cloud, checked on every transaction of the store and on every run that starts.

The properties, by name:

- never over a node's resources: what is bound to a node fits in its resources, with its ports and addresses;
- never two copies: no two machines run the same instance, unless the control plane has given one of them up
  because its node is lost or removed, and that node does not know yet;
- never backwards: a generation does not go down, no instance changes its node without leaving it first, and
  one that is to be destroyed is never wanted again;
- never a wrong removal: no node is ordered to remove the copy that is bound to it;
- never a lost request: what was acknowledged holds until the next request.

Those of services are `skerry.sim.cluster.service_invariants`, those of jobs
`skerry.sim.cluster.job_invariants`. What was violated is in `violations`; what a cloud must be like when it
has converged is `skerry.sim.cluster.convergence`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from skerry.control.instance_index import PREFIX as INSTANCES
from skerry.control.nodes import index
from skerry.kit import json_codec
from skerry.model.ids import InstanceId, NodeId
from skerry.model.nodes import Node
from skerry.model.orders import InstanceOrder
from skerry.model.resources import Resources, total
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec
from skerry.schedule.requests import ADDRESSES_PER_NODE
from skerry.sim.cluster.job_invariants import JobInvariants
from skerry.sim.cluster.node import SimulatedInstance, SimulatedNode
from skerry.sim.cluster.service_invariants import ServiceInvariants
from skerry.store.protocol import Batch, Store


class InvariantChecker:
    """Follows a store; `machine` finds the machine of a node, `is_live` is whether the leader gets
    its heartbeats."""

    def __init__(
        self,
        store: Store,
        machine: Callable[[NodeId], SimulatedNode | None],
        *,
        reserve_percent: int,
        is_live: Callable[[NodeId], bool] = lambda node: True,
    ) -> None:
        self.services = ServiceInvariants(self._violated, is_live)
        self.jobs = JobInvariants(self._violated)
        self._store = store
        self._machine = machine
        self._share = 100 - reserve_percent
        self.instances: dict[InstanceId, Instance] = {}
        self.nodes: dict[NodeId, Node] = {}
        self.counts: Counter[InstanceStatus] = Counter()
        self.binds = 0  # so far
        self.violations: list[str] = []
        self._bound: dict[NodeId, dict[InstanceId, InstanceSpec]] = {}
        self._nodes_of: dict[InstanceId, set[NodeId]] = {}
        self._removed: set[tuple[NodeId, InstanceId, int]] = set()
        self._given_up: dict[tuple[NodeId, InstanceId], int] = {}  # up to which generation
        self._desired: dict[InstanceId, DesiredStatus] = {}
        self._uncertain: dict[InstanceId, set[DesiredStatus]] = {}  # requests whose result is not known

    async def run(self) -> None:
        """Follow the store from its beginning, for ever."""
        async with self._store.watch("", since=0) as batches:
            async for batch in batches:
                self.observe(batch)

    def observe(self, batch: Batch) -> None:
        """Check one transaction."""
        self.services.observe(batch)
        self.jobs.observe(batch)
        for change in batch.changes:
            if change.key.startswith(INSTANCES):
                id = InstanceId(change.key.removeprefix(INSTANCES))
                after = None if change.entry is None else json_codec.decode(change.entry.value, Instance)
                self._moved(id, self.instances.get(id), after)
            elif change.key.startswith(index.PREFIX):
                node = NodeId(change.key.removeprefix(index.PREFIX))
                if change.entry is None:
                    self.nodes.pop(node, None)
                else:
                    self.nodes[node] = json_codec.decode(change.entry.value, Node)

    def requested(self, id: InstanceId, desired: DesiredStatus) -> Callable[[], None]:
        """A request is sent, and may take effect at any time; the result withdraws that."""
        uncertain = self._uncertain.setdefault(id, set())
        if desired in uncertain:
            return lambda: None  # an earlier one may still take effect
        uncertain.add(desired)
        return lambda: uncertain.discard(desired)

    def acknowledged(self, id: InstanceId, desired: DesiredStatus) -> None:
        """A server has acknowledged this request."""
        self._desired[id] = desired
        if desired is not DesiredStatus.DESTROYED:
            self._uncertain[id].discard(desired)

    def unfulfilled(self) -> Iterator[str]:
        """Requests that were acknowledged and do not hold, though no other was sent since."""
        for id, desired in self._desired.items():
            instance = self.instances.get(id)
            found = DesiredStatus.DESTROYED if instance is None else instance.desired
            if found is not desired and found not in self._uncertain[id]:
                yield f"{id} is to be {desired}, and is {found if instance else 'not there'}"

    def began(self, machine: SimulatedNode, order: InstanceOrder) -> None:
        """A run started."""
        id = order.instance
        if order.generation <= self._given_up.get((machine.id, id), 0):
            return  # it is the stale one
        for node in self._nodes_of.get(id, set()) - {machine.id}:
            resident = self._resident(node, id)
            if resident is None or not resident.runs:
                continue
            generation = resident.copy.order.generation
            if generation > self._given_up.get((node, id), 0):
                self._violated(
                    f"{id} runs twice: generation {generation} on {node}, {order.generation} on {machine.id}"
                )

    def removal_ordered(self, machine: SimulatedNode, order: InstanceOrder) -> None:
        """A machine is to remove a copy."""
        self._removed.add((machine.id, order.instance, order.generation))

    def wrong_removals(self) -> Iterator[str]:
        """Copies that were removed from their node and are still bound to it.

        For a moment that is normal: a node may get the order before the checker sees the transaction.
        """
        for node, id, generation in sorted(self._removed):
            instance = self.instances.get(id)
            if instance is not None and (instance.node, instance.generation) == (node, generation):
                yield f"{node} was ordered to remove {id}, which is bound to it"

    def _resident(self, node: NodeId, id: InstanceId) -> SimulatedInstance | None:
        machine = self._machine(node)
        return None if machine is None else machine.residents.get(id)

    def _moved(self, id: InstanceId, before: Instance | None, after: Instance | None) -> None:
        if before is not None:
            self.counts[before.observed.status] -= 1
            if before.node is not None:
                self._bound.get(before.node, {}).pop(id, None)
        if after is None:
            self.instances.pop(id, None)
            if before is not None and not self._may_be_removed(before):
                self._violated(f"{id} is gone without a request")
        else:
            self.instances[id] = after
            self.counts[after.observed.status] += 1
            self._check_resources(after)
        if before is not None:
            self._check_step(before, after)
        self.binds += after is not None and after.node is not None and (not before or before.node is None)

    def _may_be_removed(self, instance: Instance) -> bool:
        """True if a user may have destroyed it, it belongs to a service or a job, or it ended: of those, only
        some are kept."""
        if instance.owner is not None:
            return True
        pending = self._uncertain.get(instance.id, set())
        return DesiredStatus.DESTROYED in pending or instance.observed.status in TERMINAL

    def _check_resources(self, instance: Instance) -> None:
        node = instance.node
        if node is None or instance.observed.status in TERMINAL:
            return
        self._nodes_of.setdefault(instance.id, set()).add(node)
        bound = self._bound.setdefault(node, {})
        bound[instance.id] = instance.reserved_spec
        known = self.nodes.get(node)
        if known is None:
            return
        resources = Resources(*(amount * self._share // 100 for _, _, amount in known.resources.parts()))  # type: ignore[arg-type] # parts are in order
        needed = total(spec.resources for spec in bound.values())
        if not resources.fits(needed):
            self._violated(f"node {node} {resources.shortfall(needed)} for what is bound to it")
        ports = Counter((port.source, port.protocol) for spec in bound.values() for port in spec.ports)
        if twice := [port for port, count in ports.items() if count > 1]:
            self._violated(f"port {twice[0][0]}/{twice[0][1]} of node {node} is given out twice")
        if len(bound) > ADDRESSES_PER_NODE:
            self._violated(f"node {node} has {len(bound)} instances and {ADDRESSES_PER_NODE} addresses")

    def _check_step(self, before: Instance, after: Instance | None) -> None:
        id = before.id
        if after is not None:
            if after.generation < before.generation:
                self._violated(f"{id} went back from generation {before.generation} to {after.generation}")
            if before.node is not None and after.node not in (before.node, None):
                self._violated(f"{id} went from {before.node} to {after.node} at once")
            if before.desired is DesiredStatus.DESTROYED and after.desired is not DesiredStatus.DESTROYED:
                self._violated(f"{id} was to be destroyed, and is wanted again")
        if before.node is None or (after is not None and after.node is not None):
            return
        # It has left its node: regularly if the node reported that, by force otherwise.
        actor = after.observed.actor if after is not None else ""
        resident = self._resident(before.node, id)
        if actor != f"node/{before.node}":
            self._given_up[before.node, id] = before.generation
        elif resident is not None and resident.runs and resident.copy.order.generation <= before.generation:
            self._violated(f"{id} left {before.node} by its report, and runs there")

    def _violated(self, violation: str) -> None:
        if violation not in self.violations:
            self.violations.append(violation)

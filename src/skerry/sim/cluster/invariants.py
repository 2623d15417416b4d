"""What must never happen, watched for: every transaction of the store, and every run that begins.

The properties, by name:

- never over a node's room: what is bound to a node fits in what it gives away, with its ports and addresses;
- never two copies: no two machines run the same instance, unless the control plane has given one of them up
  because its node is lost or gone, and that node has not been told yet;
- never backwards: a generation does not go down, no instance goes from node to node without leaving first,
  and nobody is called back who is to be destroyed;
- never in vain: no node is told to remove the very copy that is bound to it;
- never a lost wish: what was acknowledged stands, until somebody wishes otherwise.

Those of services are `skerry.sim.cluster.service_invariants`. A witness only looks. What it saw that must not
be is in `violations`; what a cloud at rest must be like is asked by `skerry.sim.cluster.convergence`.
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
    """Follows a store; `machine` finds the machine of a node, `is_heard` says whether the leader hears it."""

    def __init__(
        self,
        store: Store,
        machine: Callable[[NodeId], SimulatedNode | None],
        *,
        reserve_percent: int,
        is_heard: Callable[[NodeId], bool] = lambda node: True,
    ) -> None:
        self.services = ServiceInvariants(self._object, is_heard)
        self.jobs = JobInvariants(self._object)
        self._store = store
        self._machine = machine
        self._share = 100 - reserve_percent
        self.instances: dict[InstanceId, Instance] = {}
        self.nodes: dict[NodeId, Node] = {}
        self.counts: Counter[InstanceStatus] = Counter()
        self.binds = 0  # so far
        self.violations: list[str] = []
        self._bound: dict[NodeId, dict[InstanceId, InstanceSpec]] = {}
        self._been_on: dict[InstanceId, set[NodeId]] = {}
        self._removed: set[tuple[NodeId, InstanceId, int]] = set()
        self._given_up: dict[tuple[NodeId, InstanceId], int] = {}  # up to which generation
        self._desired: dict[InstanceId, DesiredStatus] = {}
        self._doubtful: dict[InstanceId, set[DesiredStatus]] = {}  # wishes that nobody knows the fate of

    async def run(self) -> None:
        """Follow the store from its beginning, for ever."""
        async with self._store.watch("", since=0) as batches:
            async for batch in batches:
                self.see(batch)

    def see(self, batch: Batch) -> None:
        """One transaction."""
        self.services.see(batch)
        self.jobs.see(batch)
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

    def asked(self, id: InstanceId, desired: DesiredStatus) -> Callable[[], None]:
        """Somebody is about to wish this, and it may come true at any time; the result takes that back."""
        doubtful = self._doubtful.setdefault(id, set())
        if desired in doubtful:
            return lambda: None  # an earlier one may still come true
        doubtful.add(desired)
        return lambda: doubtful.discard(desired)

    def acknowledged(self, id: InstanceId, desired: DesiredStatus) -> None:
        """A server has told its caller that this wish is durable."""
        self._desired[id] = desired
        if desired is not DesiredStatus.DESTROYED:
            self._doubtful[id].discard(desired)

    def unfulfilled(self) -> Iterator[str]:
        """Wishes that were acknowledged and do not stand, though nothing was wished since."""
        for id, desired in self._desired.items():
            instance = self.instances.get(id)
            found = DesiredStatus.DESTROYED if instance is None else instance.desired
            if found is not desired and found not in self._doubtful[id]:
                yield f"{id} is to be {desired}, and is {found if instance else 'not there'}"

    def began(self, machine: SimulatedNode, order: InstanceOrder) -> None:
        """A run began."""
        id = order.instance
        if order.generation <= self._given_up.get((machine.id, id), 0):
            return  # it is the stale one
        for node in self._been_on.get(id, set()) - {machine.id}:
            resident = self._resident(node, id)
            if resident is None or not resident.runs:
                continue
            generation = resident.copy.order.generation
            if generation > self._given_up.get((node, id), 0):
                self._object(
                    f"{id} runs twice: generation {generation} on {node}, {order.generation} on {machine.id}"
                )

    def disowned(self, machine: SimulatedNode, order: InstanceOrder) -> None:
        """A machine is to remove a copy."""
        self._removed.add((machine.id, order.instance, order.generation))

    def in_vain(self) -> Iterator[str]:
        """Copies that were removed and are bound where they were, as if nothing had been.

        Only those count that stay so: a machine may hear that one is not its own before we do.
        """
        for node, id, generation in sorted(self._removed):
            instance = self.instances.get(id)
            if instance is not None and (instance.node, instance.generation) == (node, generation):
                yield f"{node} was told to remove {id}, which is bound to it"

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
            if before is not None and not self._may_go(before):
                self._object(f"{id} is gone, and nobody wished that")
        else:
            self.instances[id] = after
            self.counts[after.observed.status] += 1
            self._check_resources(after)
        if before is not None:
            self._check_step(before, after)
        self.binds += after is not None and after.node is not None and (not before or before.node is None)

    def _may_go(self, instance: Instance) -> bool:
        """True if somebody may have wished it gone; of those that are over, only some are kept anyway, and
        copies are their service's."""
        if instance.owner is not None:
            return True
        pending = self._doubtful.get(instance.id, set())
        return DesiredStatus.DESTROYED in pending or instance.observed.status in TERMINAL

    def _check_resources(self, instance: Instance) -> None:
        node = instance.node
        if node is None or instance.observed.status in TERMINAL:
            return
        self._been_on.setdefault(instance.id, set()).add(node)
        bound = self._bound.setdefault(node, {})
        bound[instance.id] = instance.reserved_spec
        known = self.nodes.get(node)
        if known is None:
            return
        resources = Resources(*(amount * self._share // 100 for _, _, amount in known.resources.parts()))  # type: ignore[arg-type] # parts are in order
        needed = total(spec.resources for spec in bound.values())
        if not resources.fits(needed):
            self._object(f"node {node} {resources.shortfall(needed)} for what is bound to it")
        ports = Counter((port.source, port.protocol) for spec in bound.values() for port in spec.ports)
        if twice := [port for port, count in ports.items() if count > 1]:
            self._object(f"port {twice[0][0]}/{twice[0][1]} of node {node} is given out twice")
        if len(bound) > ADDRESSES_PER_NODE:
            self._object(f"node {node} has {len(bound)} instances and {ADDRESSES_PER_NODE} addresses")

    def _check_step(self, before: Instance, after: Instance | None) -> None:
        id = before.id
        if after is not None:
            if after.generation < before.generation:
                self._object(f"{id} went back from generation {before.generation} to {after.generation}")
            if before.node is not None and after.node not in (before.node, None):
                self._object(f"{id} went from {before.node} to {after.node} at once")
            if before.desired is DesiredStatus.DESTROYED and after.desired is not DesiredStatus.DESTROYED:
                self._object(f"{id} was called back")
        if before.node is None or (after is not None and after.node is not None):
            return
        # It has left its node: in good order if the node says so, by force otherwise.
        actor = after.observed.actor if after is not None else ""
        resident = self._resident(before.node, id)
        if actor != f"node/{before.node}":
            self._given_up[before.node, id] = before.generation
        elif resident is not None and resident.runs and resident.copy.order.generation <= before.generation:
            self._object(f"{id} left {before.node} in good order, and runs there")

    def _object(self, what: str) -> None:
        if what not in self.violations:
            self.violations.append(what)

"""A control plane on a store in memory, with nodes that are only records, for tests of control."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.instances import transitions
from skerry.control.instances.registry import InstanceRegistry
from skerry.control.instances.writer import TransitionWriter
from skerry.control.leadership.election import LeaderElection
from skerry.control.nodes.conditions import NodeCondition
from skerry.control.placement.reconciler import Reconciler
from skerry.control.workloads.registry import WorkloadRegistry
from skerry.kit import tasks
from skerry.kit.clock import Clock, ManualClock
from skerry.model.ids import InstanceId, NodeId
from skerry.model.nodes import Liveness
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.settings import EventSettings, FleetSettings
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec, ObservedState
from skerry.schedule.requests import NodeView
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Store
from skerry.store.tables.table import Record
from tests.support.waiting import eventually


def resources(cpu: int = 0, memory: int = 0, disk: int = 0) -> Resources:
    return Resources(Millicores(cpu), Megabytes(memory), Gigabytes(disk))


def spec(name: str = "web", cpu: int = 100, **more: object) -> InstanceSpec:
    return InstanceSpec(name=name, uri=f"example.org/{name}:1", resources=resources(cpu), **more)


def condition(
    name: str,
    cpu: int = 1000,
    *,
    liveness: Liveness = Liveness.LIVE,
    drain_by: float | None = None,
    unschedulable_reason: str = "",
) -> NodeCondition:
    is_schedulable = liveness is Liveness.LIVE and drain_by is None and not unschedulable_reason
    view = NodeView(
        NodeId(name), resources(cpu), is_schedulable=is_schedulable, unschedulable_reason=unschedulable_reason
    )
    return NodeCondition(view, liveness, drain_by, view.resources)


def instance(
    id: str = "one",
    status: InstanceStatus = InstanceStatus.SCHEDULING,
    *,
    desired: DesiredStatus = DesiredStatus.RUNNING,
    node: str | None = None,
    what: InstanceSpec | None = None,
    **more: object,
) -> Instance:
    observed = ObservedState(status, 1.0)
    return Instance(
        InstanceId(id),
        what or spec(),
        1.0,
        observed,
        desired,
        node=None if node is None else NodeId(node),
        **more,
    )


def held(one: Instance, revision: int = 1) -> InstanceRecord:
    return Record(one, revision)


class Standings:
    """Nodes as a test wants them."""

    def __init__(self, nodes: Iterable[NodeCondition] = ()) -> None:
        self._nodes = {one.view.id: one for one in nodes}
        self._listeners: list[Callable[[NodeId], None]] = []

    async def ready(self) -> None:
        pass

    def condition(self, node: NodeId) -> NodeCondition | None:
        return self._nodes.get(node)

    def conditions(self) -> list[NodeCondition]:
        return list(self._nodes.values())

    def listen(self, changed: Callable[[NodeId], None]) -> Callable[[], None]:
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    def put(self, one: NodeCondition) -> None:
        self._nodes[one.view.id] = one
        self._tell(one.view.id)

    def remove(self, name: str) -> None:
        self._nodes.pop(NodeId(name))
        self._tell(NodeId(name))

    def _tell(self, node: NodeId) -> None:
        for changed in self._listeners:
            changed(node)


class Server:
    """One server: everything of control but nodes, over a store that others may share."""

    def __init__(self, store: Store, conditions: Standings, clock: Clock, name: str = "a") -> None:
        self.clock = clock
        self.store = store
        self.revision = store.revision
        self.events = EventLog(store, clock, EventSettings())
        self.instance_table = InstanceTable(store)
        self.workloads = WorkloadRegistry(store, self.events, clock, self.instance_table)
        self.reconciler = Reconciler(
            store,
            self.events,
            clock,
            FleetSettings(),
            instance_table=self.instance_table,
            workloads=self.workloads,
            conditions=conditions,
        )
        self.instances = InstanceRegistry(
            store,
            self.events,
            clock,
            instance_table=self.instance_table,
            workloads=self.workloads,
            conditions=conditions,
            explain=self.reconciler.explain,
        )
        self.leader = LeaderElection(store, self.events, clock, name=name, lease_s=1)

    @asynccontextmanager
    async def running(self, *, leads: bool = True) -> AsyncIterator[Server]:
        loops = [
            asyncio.ensure_future(self.instance_table.run()),
            asyncio.ensure_future(self.workloads.run()),
        ]
        if leads:
            loops.append(asyncio.ensure_future(self.leader.run()))
            loops.append(asyncio.ensure_future(self.reconciler.run(self.leader)))
        try:
            await self.instance_table.ready()
            await self.workloads.ready()
            yield self
            for loop in loops:
                if loop.done():
                    loop.result()
        finally:
            await tasks.cancel_and_wait(loops)

    def status(self, id: str) -> InstanceStatus | None:
        known = self.instance_table.index.get(id)
        return known.value.observed.status if known else None

    async def becomes(self, id: str, status: InstanceStatus | None) -> Instance | None:
        """Wait until the instance is `status`; None: gone."""
        await eventually(lambda: self.status(id) is status, what=f"{id} is {status}, not {self.status(id)}")
        known = self.instance_table.index.get(id)
        return known.value if known else None

    async def say(self, id: str, *statuses: InstanceStatus, **more: object) -> list[str]:
        """What the instance's node reports, one after the other; what each came to."""
        known = self.instance_table.index.get(id)
        assert known is not None
        reports = [
            InstanceReport(known.value.id, known.value.generation, status, self.clock.now(), **more)
            for status in statuses
        ]
        return [outcome.disposition for outcome in await self.instances.reported(known.value.node, reports)]

    async def place(self, id: str, node: str) -> None:
        """Be a leader that puts it there."""
        writer = TransitionWriter(self.events, self.instance_table)
        await writer.change(
            id, lambda known: transitions.bind(known.value, NodeId(node), at=self.clock.now())
        )

    async def obey(self, node: str) -> None:
        """Be a node that does at once what it is ordered."""
        for order in list(self.instances.orders(NodeId(node))):
            await self.say(order.instance, *deeds(order, self.status(order.instance)))


def deeds(order: InstanceOrder, now: InstanceStatus | None) -> list[InstanceStatus]:
    match order.desired, now:
        case DesiredStatus.DESTROYED, _:
            return [InstanceStatus.TERMINATED]
        case (
            DesiredStatus.RUNNING,
            InstanceStatus.SCHEDULED | InstanceStatus.STOPPED | InstanceStatus.CRASHED,
        ):
            return [InstanceStatus.STARTING, InstanceStatus.RUNNING]
        case DesiredStatus.RUNNING, InstanceStatus.STARTING:
            return [InstanceStatus.RUNNING]
        case DesiredStatus.STOPPED, InstanceStatus.RUNNING | InstanceStatus.STARTING:
            return [InstanceStatus.STOPPING, InstanceStatus.STOPPED]
        case (
            DesiredStatus.STOPPED,
            InstanceStatus.SCHEDULED | InstanceStatus.CRASHED | InstanceStatus.STOPPING,
        ):
            return [InstanceStatus.STOPPED]
        case _:
            return []


@asynccontextmanager
async def alone(*nodes: NodeCondition, leads: bool = True) -> AsyncIterator[tuple[Server, Standings]]:
    """One server on a store of its own."""
    clock = ManualClock()
    store = MemoryStore(clock)
    conditions = Standings(nodes)
    try:
        async with Server(store, conditions, clock).running(leads=leads) as server:
            yield server, conditions
    finally:
        await store.close()

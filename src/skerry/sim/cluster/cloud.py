"""A simulated cloud: a store, the servers on it, the nodes, and the checker of invariants.

`skerry sim`, the tests and the benchmark use it. Servers can be killed and started, nodes disconnected, and
the fault schedule changed, while users send requests. It works with any store; faults of the store are added
in front of it (`skerry.sim.cluster.faulty_store`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, TypeVar

from skerry.kit import ulid
from skerry.kit.clock import Clock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.container_options import NodeFeature
from skerry.model.ids import InstanceId, NodeId
from skerry.model.node_messages import NodeHello, SessionConfig
from skerry.model.nodes import Liveness, NodeFacts
from skerry.model.resources import Resources
from skerry.model.settings import EventSettings, FleetSettings
from skerry.model.statuses import DesiredStatus
from skerry.model.workloads import InstanceSpec
from skerry.sim.cluster import convergence
from skerry.sim.cluster.agents import AgentDriver, SimulatedAgent
from skerry.sim.cluster.fault_plan import FaultPlanner
from skerry.sim.cluster.fault_schedule import FaultSchedule
from skerry.sim.cluster.faulty_store import FaultyStore
from skerry.sim.cluster.invariants import InvariantChecker
from skerry.sim.cluster.node import SimulatedNode
from skerry.sim.cluster.server import SimulatedServer
from skerry.store.protocol import Store

T = TypeVar("T")

_CHECK_EVERY_S = 1.0  # between two looks at whether all is at rest


class SimulatedCloud:
    """`async with running(...)` gives one."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        faults: FaultSchedule,
        planner: FaultPlanner,
        *,
        settings: FleetSettings,
        events: EventSettings,
    ) -> None:
        self.store = store
        self.clock = clock
        self.faults = faults
        self.servers: list[SimulatedServer] = []
        self.links = AgentDriver(clock, faults, lambda: [one for one in self.servers if one.is_open])
        self.checker = InvariantChecker(
            store, self.machine, reserve_percent=settings.reserve_percent, is_live=self._is_live
        )
        self._plans = planner
        self._settings = settings
        self._events = events
        self.stores: dict[SimulatedServer, FaultyStore] = {}  # of all servers, also of those that were killed
        self._names = count(1)

    def machines(self) -> list[SimulatedNode]:
        return [link.machine for link in self.links]

    def machine(self, node: NodeId) -> SimulatedNode | None:
        link = self.links.get(node)
        return None if link is None else link.machine

    # Servers

    async def add_server(self, *, leads: bool = True) -> SimulatedServer:
        """Start another server; returns when it serves."""
        store = FaultyStore(self.store, self.faults, self.checker.services.sent)
        server = SimulatedServer(
            f"server-{next(self._names)}",
            store,
            self.clock,
            self._settings,
            self._events,
            new_id=lambda now: ulid.new_id(now, self.faults.chance.getrandbits),
        )
        self.stores[server] = store
        self.servers.append(server)
        await server.start(leads=leads)
        return server

    async def kill(self, server: SimulatedServer) -> None:
        """As by `kill -9`: what it sent may still arrive."""
        self.servers.remove(server)
        self.stores[server].cut()
        self.links.leave(server)
        await server.stop()

    @property
    def leader(self) -> SimulatedServer | None:
        return next((server for server in self.servers if server.leader.is_leading), None)

    # Nodes

    def _is_live(self, node: NodeId) -> bool:
        """True if the leader gets its heartbeats."""
        leader = self.leader
        condition = None if leader is None else leader.nodes.condition(node)
        return condition is not None and condition.liveness is Liveness.LIVE

    def add_node(
        self, name: str, resources: Resources, labels: dict[str, str] | None = None
    ) -> SimulatedNode:
        """Add a node, which connects by itself."""
        terms = self._settings
        machine = SimulatedNode(
            NodeId(name),
            NodeHello(
                name,
                NodeFacts("amd64", "simulated", "0", "0", runs_checks=True, features=tuple(NodeFeature)),
                resources,
                labels or {},
            ),
            self._plans,
            SessionConfig(
                NodeId(name),
                "",
                terms.report_s,
                terms.restart_base_s,
                terms.restart_cap_s,
                terms.restart_reset_s,
            ),
            chance=self.faults.chance.random,
            observer=self.checker,
        )
        self.links.add(machine)
        return machine

    async def wait_for_nodes(self) -> None:
        """Wait until every node is connected, and schedulable on every server."""
        while not all(map(self._has_all_nodes, self.servers)):  # noqa: ASYNC110 - simulated time waits for nobody
            await asyncio.sleep(_CHECK_EVERY_S / 10)

    def _has_all_nodes(self, server: SimulatedServer) -> bool:
        if any(link.connection is None for link in self.links):
            return False
        conditions = list(server.nodes.conditions())
        return len(conditions) == len(self.links) and all(one.view.is_schedulable for one in conditions)

    # Requests

    async def create(self, id: str, spec: InstanceSpec) -> None:
        """Create an instance; one that exists stays as it is.

        After `Unavailable` it is not known whether it was created.
        """
        known = InstanceId(id)
        withdraw = self.checker.requested(known, DesiredStatus.RUNNING)
        try:
            _, is_new = await self.request(lambda server: server.instances.create(spec, id=id, actor="sim"))
        except errors.AlreadyExists:
            withdraw()
            raise
        if is_new:
            self.checker.acknowledged(known, DesiredStatus.RUNNING)

    async def set_desired(self, id: InstanceId, desired: DesiredStatus) -> None:
        """Start, stop or destroy an instance; raises what the control plane raises."""
        verb = {
            DesiredStatus.RUNNING: "start",
            DesiredStatus.STOPPED: "stop",
            DesiredStatus.DESTROYED: "destroy",
        }[desired]
        withdraw = self.checker.requested(id, desired)
        try:
            await self.request(lambda server: getattr(server.instances, verb)(id, actor="sim"))
        except (errors.FailedPrecondition, errors.NotFound):
            withdraw()
            raise
        self.checker.acknowledged(id, desired)

    async def respecify(self, id: InstanceId, change: Callable[[InstanceSpec], InstanceSpec]) -> None:
        """Change the spec of an instance."""
        await self.request(lambda server: server.instances.change(id, actor="sim", merge=change))

    async def request(self, work: Callable[[SimulatedServer], Coroutine[Any, Any, T]]) -> T:
        """Send a request to any server."""
        servers = [server for server in self.servers if server.is_open]
        if not servers:
            raise errors.Unavailable("no server is running")
        server = self.faults.chance.choice(servers)
        return await server.serve(work(server))

    # Convergence

    async def end_faults(self) -> None:
        """End all faults: none is scheduled, a server runs, and every node can connect and is schedulable."""
        self.faults.clear()
        for store in self.stores.values():
            await store.arrived()
        if not self.servers:
            await self.add_server()
        for link in self.links:
            self.links.reconnect(link.machine.id)
            with suppress(errors.NotFound):  # it registers again by itself
                await self.servers[0].nodes.uncordon(link.machine.id, actor="sim")

    def differences(self) -> list[str]:
        """What differs from the state in which the cloud must end, see `skerry.sim.cluster.convergence`."""
        leader = self.leader
        if leader is None:
            return ["there is no leader"]
        missing = [
            f"{link.machine.id} is not connected"
            for link in self.links
            if not self._is_connected(link, leader)
        ]
        return missing + list(
            convergence.differences(self.checker, self.machines(), leader.reconciler.explain)
        )

    def _is_connected(self, link: SimulatedAgent, leader: SimulatedServer) -> bool:
        if link.connection is None or link.machine.id not in self.checker.nodes:
            return False
        heartbeat = leader.nodes.heartbeat(link.machine.id)
        return heartbeat is not None and heartbeat.server == link.connection.server.name

    async def converge(self, within_s: float) -> list[str]:
        """Wait until nothing differs and nothing changes any more; returns what differs after `within_s`."""
        deadline = self.clock.monotonic() + within_s
        before: int | None = None  # the store's revision at the last check, if nothing differed then
        while True:
            differences = self.differences()
            revision = await self.store.revision()
            if not differences and revision == before:
                return []
            if self.clock.monotonic() >= deadline:
                return differences or ["the store still changes"]
            # Transactions from before the end of the faults may still be on their way to the store.
            before = None if differences else revision
            await asyncio.sleep(_CHECK_EVERY_S)

    async def close(self) -> None:
        for server in list(self.servers):
            await server.stop()
        for store in self.stores.values():
            await store.close()


@asynccontextmanager
async def running(
    store: Store,
    clock: Clock,
    faults: FaultSchedule,
    planner: FaultPlanner,
    *,
    settings: FleetSettings | None = None,
    events: EventSettings | None = None,
    servers: int = 1,
    node_resources: Sequence[Resources] = (),
) -> AsyncIterator[SimulatedCloud]:
    """A cloud of so many servers, with a node for each of `node_resources`; it ends with the context."""
    cloud = SimulatedCloud(
        store,
        clock,
        faults,
        planner,
        settings=settings or FleetSettings(),
        events=events or EventSettings(),
    )
    loops = [asyncio.ensure_future(cloud.checker.run()), asyncio.ensure_future(cloud.links.run())]
    try:
        for _ in range(servers):
            await cloud.add_server()
        for number, resources in enumerate(node_resources):
            cloud.add_node(f"n{number:05}", resources)
        await cloud.wait_for_nodes()
        yield cloud
        for loop in loops:
            if loop.done():
                loop.result()
    finally:
        await cancel_and_wait(loops)
        await cloud.close()

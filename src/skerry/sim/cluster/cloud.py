"""A whole simulated cloud: a store, the servers on it, the nodes, and the witness of it all.

`skerry sim`, the tests and the benchmark build on this. Servers can be killed and others started, nodes cut
off, and the fault schedule changed, while callers go on wishing. The store may be any; faults of it are added
on the way to it (`skerry.sim.cluster.faulty_store`).
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

_LOOKS_S = 1.0  # between two looks at whether all is at rest


class SimulatedCloud:
    """`async with running(...)` gives one."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        faults: FaultSchedule,
        fates: FaultPlanner,
        *,
        settings: FleetSettings,
        events: EventSettings,
    ) -> None:
        self.store = store
        self.clock = clock
        self.faults = faults
        self.servers: list[SimulatedServer] = []
        self.links = AgentDriver(clock, faults, lambda: [one for one in self.servers if one.is_open])
        self.witness = InvariantChecker(
            store, self.machine, reserve_percent=settings.reserve_percent, is_heard=self._is_live
        )
        self._plans = fates
        self._settings = settings
        self._events = events
        self.lines: dict[SimulatedServer, FaultyStore] = {}  # of all servers that ever were
        self._names = count(1)

    def machines(self) -> list[SimulatedNode]:
        return [link.machine for link in self.links]

    def machine(self, node: NodeId) -> SimulatedNode | None:
        link = self.links.get(node)
        return None if link is None else link.machine

    # Servers

    async def add_server(self, *, leads: bool = True) -> SimulatedServer:
        """Another server; returns when it serves."""
        line = FaultyStore(self.store, self.faults, self.witness.services.sent)
        server = SimulatedServer(
            f"server-{next(self._names)}",
            line,
            self.clock,
            self._settings,
            self._events,
            new_id=lambda now: ulid.new_id(now, self.faults.chance.getrandbits),
        )
        self.lines[server] = line
        self.servers.append(server)
        await server.start(leads=leads)
        return server

    async def kill(self, server: SimulatedServer) -> None:
        """As `kill -9` does: it tells nobody, and what it sent may still arrive."""
        self.servers.remove(server)
        self.lines[server].cut()
        self.links.leave(server)
        await server.stop()

    @property
    def leader(self) -> SimulatedServer | None:
        return next((server for server in self.servers if server.leader.is_leading), None)

    # Nodes

    def _is_live(self, node: NodeId) -> bool:
        """True if the leader hears it."""
        leader = self.leader
        condition = None if leader is None else leader.nodes.condition(node)
        return condition is not None and condition.liveness is Liveness.LIVE

    def add_node(
        self, name: str, resources: Resources, labels: dict[str, str] | None = None
    ) -> SimulatedNode:
        """A new node, which connects by itself."""
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
            observer=self.witness,
        )
        self.links.add(machine)
        return machine

    async def all_nodes_heard(self) -> None:
        """Wait until every server knows every node as one that takes work."""
        while not all(map(self._takes_work, self.servers)):  # noqa: ASYNC110 - simulated time waits for nobody
            await asyncio.sleep(_LOOKS_S / 10)

    def _takes_work(self, server: SimulatedServer) -> bool:
        if any(link.connection is None for link in self.links):
            return False
        conditions = list(server.nodes.conditions())
        return len(conditions) == len(self.links) and all(one.view.is_schedulable for one in conditions)

    # Wishes

    async def create(self, id: str, spec: InstanceSpec) -> None:
        """Wish for an instance; if it is there already, it stays as it is.

        If `Unavailable` is raised, nobody knows whether it was taken.
        """
        known = InstanceId(id)
        take_back = self.witness.asked(known, DesiredStatus.RUNNING)
        try:
            _, is_new = await self.ask(lambda server: server.instances.create(spec, id=id, actor="sim"))
        except errors.AlreadyExists:
            take_back()
            raise
        if is_new:
            self.witness.acknowledged(known, DesiredStatus.RUNNING)

    async def set_desired(self, id: InstanceId, desired: DesiredStatus) -> None:
        """Wish otherwise. Raises what the control plane has against it."""
        verb = {
            DesiredStatus.RUNNING: "start",
            DesiredStatus.STOPPED: "stop",
            DesiredStatus.DESTROYED: "destroy",
        }[desired]
        take_back = self.witness.asked(id, desired)
        try:
            await self.ask(lambda server: getattr(server.instances, verb)(id, actor="sim"))
        except (errors.FailedPrecondition, errors.NotFound):
            take_back()
            raise
        self.witness.acknowledged(id, desired)

    async def respecify(self, id: InstanceId, change: Callable[[InstanceSpec], InstanceSpec]) -> None:
        """Give it another spec."""
        await self.ask(lambda server: server.instances.change(id, actor="sim", merge=change))

    async def ask(self, work: Callable[[SimulatedServer], Coroutine[Any, Any, T]]) -> T:
        """Ask any server for something."""
        servers = [server for server in self.servers if server.is_open]
        if not servers:
            raise errors.Unavailable("no server is there")
        server = self.faults.chance.choice(servers)
        return await server.serve(work(server))

    # The end

    async def calm_down(self) -> None:
        """No more faults: the fault schedule is empty, there is a server, every node is reached and takes
        work."""
        self.faults.clear_up()
        for line in self.lines.values():
            await line.arrived()
        if not self.servers:
            await self.add_server()
        for link in self.links:
            self.links.mend(link.machine.id)
            with suppress(errors.NotFound):  # it registers again by itself
                await self.servers[0].nodes.uncordon(link.machine.id, actor="sim")

    def unrest(self) -> list[str]:
        """What is not as it must be in the end, see `skerry.sim.cluster.convergence`."""
        leader = self.leader
        if leader is None:
            return ["nobody leads"]
        away = [f"{link.machine.id} is not heard" for link in self.links if not self._is_heard(link, leader)]
        return away + list(convergence.differences(self.witness, self.machines(), leader.reconciler.explain))

    def _is_heard(self, link: SimulatedAgent, leader: SimulatedServer) -> bool:
        if link.connection is None or link.machine.id not in self.witness.nodes:
            return False
        alive = leader.nodes.heartbeat(link.machine.id)
        return alive is not None and alive.server == link.connection.server.name

    async def come_to_rest(self, within_s: float) -> list[str]:
        """Wait until all is as it must be, and stays so between two looks; what is not after `within_s`."""
        deadline = self.clock.monotonic() + within_s
        before: int | None = None  # the store's revision at the last look, if all was well then
        while True:
            unrest = self.unrest()
            revision = await self.store.revision()
            if not unrest and revision == before:
                return []
            if self.clock.monotonic() >= deadline:
                return unrest or ["something still goes on"]
            # What was decided on before the faults were over may still be on its way to the store.
            before = None if unrest else revision
            await asyncio.sleep(_LOOKS_S)

    async def close(self) -> None:
        for server in list(self.servers):
            await server.stop()
        for line in self.lines.values():
            await line.close()


@asynccontextmanager
async def running(
    store: Store,
    clock: Clock,
    faults: FaultSchedule,
    fates: FaultPlanner,
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
        fates,
        settings=settings or FleetSettings(),
        events=events or EventSettings(),
    )
    loops = [asyncio.ensure_future(cloud.witness.run()), asyncio.ensure_future(cloud.links.run())]
    try:
        for _ in range(servers):
            await cloud.add_server()
        for number, resources in enumerate(node_resources):
            cloud.add_node(f"n{number:05}", resources)
        await cloud.all_nodes_heard()
        yield cloud
        for loop in loops:
            if loop.done():
                loop.result()
    finally:
        await cancel_and_wait(loops)
        await cloud.close()

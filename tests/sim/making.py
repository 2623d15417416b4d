"""Small simulated clouds for tests, in simulated time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from skerry.model.ids import InstanceId, NodeId
from skerry.model.node_messages import NodeHello, SessionConfig
from skerry.model.orders import InstanceOrder
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.settings import FleetSettings
from skerry.model.statuses import DesiredStatus
from skerry.model.workloads import InstanceSpec, RestartPolicy
from skerry.sim import simulated_time
from skerry.sim.cluster import cloud as cluster_cloud
from skerry.sim.cluster import fault_plan
from skerry.sim.cluster.cloud import SimulatedCloud
from skerry.sim.cluster.fault_plan import FaultPlanner
from skerry.sim.cluster.fault_schedule import FaultSchedule
from skerry.sim.cluster.node import NodeObserver, SimulatedNode
from skerry.store.local.memory import MemoryStore
from tests.support.simulated import passes

TERMS = SessionConfig(NodeId("n"), "10.64.0.0/24", 2.0, 1.0, 10.0, 600.0)
SETTINGS = FleetSettings(restart_cap_s=10.0, replacements_per_s=5.0, reserve_percent=0)


def resources(cpu: int = 0, memory: int = 0, disk: int = 0) -> Resources:
    return Resources(Millicores(cpu), Megabytes(memory), Gigabytes(disk))


def spec(cpu: int = 100, *, uri: str = "example.org/web:1", budget: int = 2, **more: object) -> InstanceSpec:
    restart = RestartPolicy(budget=budget)
    return InstanceSpec("web", uri, resources=resources(cpu), restart=restart, **more)  # type: ignore[arg-type] # tests say what they mean


def order(
    id: str = "one", *, generation: int = 1, desired: DesiredStatus = DesiredStatus.RUNNING, cpu: int = 100
) -> InstanceOrder:
    return InstanceOrder(InstanceId(id), generation, spec(cpu), desired)


def machine(
    become: FaultPlanner | None = None, name: str = "n", observer: NodeObserver | None = None
) -> SimulatedNode:
    hello = NodeHello(name, resources=resources(1000))
    return SimulatedNode(
        NodeId(name), hello, become or fault_plan.healthy_runs(), TERMS, chance=lambda: 0.5, observer=observer
    )


@asynccontextmanager
async def cloud_of(
    *cpus: int,
    seed: int = 1,
    servers: int = 1,
    become: FaultPlanner | None = None,
    settings: FleetSettings = SETTINGS,
) -> AsyncIterator[SimulatedCloud]:
    """A cloud with a node for each of `cpus`. For coroutines that `times.run` runs."""
    clock = simulated_time.LoopClock(asyncio.get_running_loop())
    store = MemoryStore(clock, entropy=random.Random(seed).getrandbits)
    node_resources: Sequence[Resources] = [resources(cpu) for cpu in cpus]
    async with cluster_cloud.running(
        store,
        clock,
        FaultSchedule(random.Random(seed)),
        become or fault_plan.healthy_runs(),
        settings=settings,
        servers=servers,
        node_resources=node_resources,
    ) as cloud:
        yield cloud
    await store.close()


async def settled(cloud: SimulatedCloud, within_s: float = 300.0) -> None:
    """Wait until all is as it must be, and see that nothing happens any more."""
    differences = await cloud.converge(within_s)
    assert differences == [], differences
    assert cloud.checker.violations == [], cloud.checker.violations
    before = await cloud.store.revision()
    await passes(60.0)
    goes_on = []
    for _ in range(await cloud.store.revision() - before):
        async with cloud.store.watch("", since=before + len(goes_on)) as batches:
            goes_on.append([(change.key, change.entry) for change in (await anext(batches)).changes])
    assert goes_on == [], f"something goes on though all is at rest: {goes_on}"

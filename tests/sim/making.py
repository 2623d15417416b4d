"""Small simulated clouds for tests, in simulated time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from skerry.model.ids import InstanceId, NodeId
from skerry.model.orders import Order
from skerry.model.room import Gigabytes, Megabytes, Millicores, Room
from skerry.model.sessions import Hello, Welcome
from skerry.model.settings import FleetSettings
from skerry.model.statuses import Desired
from skerry.model.workloads import RestartPolicy, Spec
from skerry.sim import clouds, fates, times
from skerry.sim.clouds import Cloud
from skerry.sim.fates import Fates
from skerry.sim.machines import Machine, Observer
from skerry.sim.weather import Weather
from skerry.store.memory import MemoryStore
from tests.support.simulated import passes

TERMS = Welcome(NodeId("n"), "10.64.0.0/24", 2.0, 1.0, 10.0, 600.0)
SETTINGS = FleetSettings(restart_cap_s=10.0, replacements_per_s=5.0, reserve_percent=0)


def room(cpu: int = 0, memory: int = 0, disk: int = 0) -> Room:
    return Room(Millicores(cpu), Megabytes(memory), Gigabytes(disk))


def spec(cpu: int = 100, *, uri: str = "example.org/web:1", budget: int = 2, **more: object) -> Spec:
    restart = RestartPolicy(budget=budget)
    return Spec("web", uri, room=room(cpu), restart=restart, **more)  # type: ignore[arg-type] # tests say what they mean


def order(
    id: str = "one", *, generation: int = 1, desired: Desired = Desired.RUNNING, cpu: int = 100
) -> Order:
    return Order(InstanceId(id), generation, spec(cpu), desired)


def machine(become: Fates | None = None, name: str = "n", observer: Observer | None = None) -> Machine:
    hello = Hello(name, room=room(1000))
    return Machine(NodeId(name), hello, become or fates.well(), TERMS, chance=lambda: 0.5, observer=observer)


@asynccontextmanager
async def cloud_of(
    *cpus: int,
    seed: int = 1,
    servers: int = 1,
    become: Fates | None = None,
    settings: FleetSettings = SETTINGS,
) -> AsyncIterator[Cloud]:
    """A cloud with a node for each of `cpus`. For coroutines that `times.run` runs."""
    clock = times.LoopClock(asyncio.get_running_loop())
    store = MemoryStore(clock, entropy=random.Random(seed).getrandbits)
    rooms: Sequence[Room] = [room(cpu) for cpu in cpus]
    async with clouds.running(
        store,
        clock,
        Weather(random.Random(seed)),
        become or fates.well(),
        settings=settings,
        servers=servers,
        rooms=rooms,
    ) as cloud:
        yield cloud
    await store.close()


async def settled(cloud: Cloud, within_s: float = 300.0) -> None:
    """Wait until all is as it must be, and see that nothing happens any more."""
    unrest = await cloud.come_to_rest(within_s)
    assert unrest == [], unrest
    assert cloud.witness.violations == [], cloud.witness.violations
    before = await cloud.store.revision()
    await passes(60.0)
    goes_on = []
    for _ in range(await cloud.store.revision() - before):
        async with cloud.store.watch("", since=before + len(goes_on)) as batches:
            goes_on.append([(change.key, change.entry) for change in (await anext(batches)).changes])
    assert goes_on == [], f"something goes on though all is at rest: {goes_on}"

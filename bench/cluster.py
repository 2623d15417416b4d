"""How fast the control plane places instances on many nodes, how well, and what it costs at rest.

All of it is the real control plane in this process, on a SQLite store with fsync on; only nodes pretend
(`skerry.sim`). A placement counts from when an instance waits to when its binding is durable and this
server's own table has it. Instances are made durable before, and that is told apart: first they are there,
then the server begins to lead. While it places, nodes are registered and heard; they are connected, take
their orders and report where it says so.
"""

from __future__ import annotations

import asyncio
import logging
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import structlog
import uvloop

from bench.figures import Figure
from skerry.control.instance_index import InstanceRecord
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model.ids import NodeId
from skerry.model.node_messages import NodeHello
from skerry.model.nodes import NodeFacts
from skerry.model.resources import Resources, total
from skerry.model.settings import EventSettings, FleetSettings
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import InstanceSpec
from skerry.sim import packing, workload_generator
from skerry.sim.cluster import cloud as cluster_cloud
from skerry.sim.cluster import fault_plan
from skerry.sim.cluster.fault_schedule import FaultSchedule
from skerry.sim.cluster.server import SimulatedServer
from skerry.store.sqlite.store import SqliteStore

T = TypeVar("T")

SIZES = {100: 2_000, 1_000: 5_000, 10_000: 10_000}  # nodes, and the instances that are placed on them
PROMISED_NODES, PROMISED_INSTANCES, PROMISED_RATE = 5_000, 50_000, 2_000
LOAD = 0.95  # of all room, when the last is placed
PACKED_NODES, PACKED_INSTANCES = 100, 2_000
CALLS, CALLERS = 2_000, 32
IDLE_NODES, IDLE_INSTANCES, IDLE_S = 100, 1_000, 20.0
AT_ONCE = 256
_BEAT_S = 2.0
_EVENTS = EventSettings()


class Placed(NamedTuple):
    """What placing everything came to."""

    created_per_s: float
    per_s: float
    empty_per_s: float  # while a tenth of all room was given away
    full_per_s: float  # while nine tenths were
    used: list[Resources]  # of each node


def measure() -> Iterator[Figure]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    for nodes, instances in SIZES.items():
        placed = run(_place(*demand(nodes, instances, LOAD)))
        yield Figure(
            f"{instances:,} instances on {nodes:,} nodes",
            placed.per_s,
            "placements made durable/s",
            note=f"created before at {placed.created_per_s:,.0f}/s",
        )
    placed = run(_place(*demand(PROMISED_NODES, PROMISED_INSTANCES, LOAD)))
    yield Figure(
        f"{PROMISED_INSTANCES:,} instances on {PROMISED_NODES:,} nodes",
        placed.per_s,
        "placements made durable/s",
        at_least=PROMISED_RATE,
        note=f"created before at {placed.created_per_s:,.0f}/s",
    )
    yield Figure(
        "of them, around 90 % full against around 10 %",
        placed.full_per_s / placed.empty_per_s,
        "x",
        at_least=0.5,
        peer=placed.empty_per_s,
        peer_unit="placements/s",
        peer_name="around 10 %",
    )
    yield from _packing()
    p50, p99, per_s = run(_latency())
    yield Figure(
        "from a create to RUNNING, p50", p50 * 1e3, "ms", note=f"{CALLERS} callers, {per_s:,.0f} runs/s"
    )
    yield Figure("from a create to RUNNING, p99", p99 * 1e3, "ms", note="nodes start at once, and report")
    yield Figure(
        f"at rest, {IDLE_NODES} nodes and {IDLE_INSTANCES:,} instances",
        run(_idle()) * 100,
        "% of a core",
        at_most=5.0,
        note="the simulated nodes' own heartbeats included",
    )


def _packing() -> Iterator[Figure]:
    """With half the room asked for, and with more than there is: against best fit."""
    for load, name in (
        (0.5, "nodes in use at half load"),
        (1.2, "room given away when too much is asked for"),
    ):
        rooms, specs = demand(PACKED_NODES, PACKED_INSTANCES, load)
        ours = packing.measure(rooms, run(_place(rooms, specs)).used)
        best = packing.best_fit(rooms, [spec.resources for spec in specs])
        ratio = ours.nodes / best.nodes if load < 1 else ours.allocated / best.allocated
        note = f"{ours.nodes} nodes and {ours.allocated:.1%} against {best.nodes} and {best.allocated:.1%}"
        yield Figure(f"{name}, of best fit's", ratio, "x", note=note)


def demand(nodes: int, instances: int, load: float) -> tuple[list[Resources], list[InstanceSpec]]:
    """Specs, and nodes of three sizes on which they take the share `load` of all room."""
    chance = random.Random(nodes)
    specs = workload_generator.draw_specs(instances, chance)
    sizes = [chance.choice((1, 2, 3)) for _ in range(nodes)]
    cores = max(
        sum(spec.resources.cpu for spec in specs) / 1000, sum(spec.resources.memory for spec in specs) / 2048
    )
    return [workload_generator.node_of(size * cores / (sum(sizes) * load)) for size in sizes], specs


def run(work: Coroutine[Any, Any, T]) -> T:
    return uvloop.run(work)


@asynccontextmanager
async def open_store() -> AsyncIterator[SqliteStore]:
    with tempfile.TemporaryDirectory() as folder:
        store = await SqliteStore.open(Path(folder) / "store.db", SystemClock())
        try:
            yield store
        finally:
            await store.close()


async def _place(rooms: Sequence[Resources], specs: Sequence[InstanceSpec]) -> Placed:
    settings = FleetSettings(reserve_percent=0)
    async with open_store() as store:
        server = SimulatedServer("bench", store, SystemClock(), settings, _EVENTS)
        await server.start(leads=False)
        beats = await join_nodes(server, rooms)
        try:
            began = time.perf_counter()
            await create_instances(server, specs)
            created_per_s = len(specs) / (time.perf_counter() - began)
            placements = _PlacementTimes(server)
            began = time.perf_counter()
            server.lead()
            await placements.finished()
            used = [_used(server, number) for number in range(len(rooms))]
        finally:
            await cancel_and_wait([beats])
            await server.stop()
    whole = sum(resources.cpu for resources in rooms)
    return Placed(
        created_per_s=created_per_s,
        per_s=len(placements.binds) / (placements.binds[-1][0] - began),
        empty_per_s=placements.per_s(0.05 * whole, 0.15 * whole),
        full_per_s=placements.per_s(0.85 * whole, 0.95 * whole),
        used=used,
    )


class _PlacementTimes:
    """When what was given away, as the server's own instance_table tells."""

    def __init__(self, server: SimulatedServer) -> None:
        self.binds: list[tuple[float, int]] = []  # the time, and all cpu that was given away by then
        self._cpu = 0
        server.instance_table.listen(self._moved)

    def _moved(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        if before is not None and before.value.node is None and after is not None and after.value.node:
            self._cpu += after.value.spec.resources.cpu
            self.binds.append((time.perf_counter(), self._cpu))

    async def finished(self) -> None:
        """Wait until nothing more is placed."""
        await until(lambda: bool(self.binds) and time.perf_counter() - self.binds[-1][0] > 1.0)

    def per_s(self, least: float, most: float) -> float:
        times = [at for at, cpu in self.binds if least <= cpu < most]
        return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0


async def join_nodes(server: SimulatedServer, rooms: Sequence[Resources]) -> asyncio.Task[None]:
    """Register a node for each of `rooms`, and let it be heard from then on."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def join(number: int, resources: Resources) -> None:
        async with turns:
            name = _name(number)
            await server.nodes.register(name, NodeHello(name, NodeFacts("amd64"), resources))
            server.nodes.heartbeats.received(NodeId(name))

    async def beat() -> None:
        while True:
            for number in range(len(rooms)):
                server.nodes.heartbeats.received(NodeId(_name(number)))
            await asyncio.sleep(_BEAT_S)

    await asyncio.gather(*(join(number, resources) for number, resources in enumerate(rooms)))
    beats = asyncio.ensure_future(beat())
    await until(lambda: all(condition.view.is_schedulable for condition in server.nodes.conditions()))
    return beats


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - it is not worth an event for each
        await asyncio.sleep(0.1)


def _name(number: int) -> str:
    return f"n{number:05}"


def _used(server: SimulatedServer, number: int) -> Resources:
    return total(
        known.value.spec.resources for known in server.instance_table.index.on_node(NodeId(_name(number)))
    )


async def create_instances(server: SimulatedServer, specs: Sequence[InstanceSpec]) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def create(spec: InstanceSpec) -> None:
        async with turns:
            await server.instances.create(spec, actor="bench")

    await asyncio.gather(*map(create, specs))


@asynccontextmanager
async def running_instances(nodes: int, instances: int) -> AsyncIterator[SimulatedServer]:
    """A server with so many instances that run, on so many nodes that pretend."""
    resources, specs = demand(nodes, max(instances, 1), 0.5)
    async with (
        open_store() as store,
        cluster_cloud.running(
            store,
            SystemClock(),
            FaultSchedule(random.Random(1)),
            fault_plan.healthy_runs(0.0),
            events=EventSettings(),
            node_resources=resources,
        ) as cloud,
    ):
        [server] = cloud.servers
        await create_instances(server, specs[:instances])
        await until(lambda: cloud.checker.counts[InstanceStatus.RUNNING] == instances)
        yield server


async def _latency() -> tuple[float, float, float]:
    """p50 and p99 in seconds from a call to what its caller sees as RUNNING, and how many a second."""
    rooms, specs = demand(1_000, CALLS, 0.5)
    queue = iter(specs)
    took: list[float] = []
    async with (
        open_store() as store,
        cluster_cloud.running(
            store,
            SystemClock(),
            FaultSchedule(random.Random(1)),
            fault_plan.healthy_runs(0.0),
            events=_EVENTS,
            node_resources=rooms,
        ) as cloud,
    ):
        [server] = cloud.servers

        async def call() -> None:
            for spec in queue:
                began = time.perf_counter()
                instance, _ = await server.instances.create(spec, actor="bench")
                async with aclosing(server.instances.watch(instance.id)) as states:
                    async for state in states:
                        if state.observed.status is InstanceStatus.RUNNING:
                            break
                took.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(CALLERS)))
        per_s = len(took) / (time.perf_counter() - began)
    return statistics.median(took), statistics.quantiles(took, n=100)[98], per_s


async def _idle() -> float:
    """Cpu seconds in a second, when nothing happens."""
    rooms, specs = demand(IDLE_NODES, IDLE_INSTANCES, 0.5)
    async with (
        open_store() as store,
        cluster_cloud.running(
            store,
            SystemClock(),
            FaultSchedule(random.Random(1)),
            fault_plan.healthy_runs(0.0),
            events=_EVENTS,
            node_resources=rooms,
        ) as cloud,
    ):
        [server] = cloud.servers
        await create_instances(server, specs)
        await until(lambda: cloud.checker.counts[InstanceStatus.RUNNING] == len(specs))
        await asyncio.sleep(1.0)
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(IDLE_S)
        return (time.process_time() - cpu) / (time.perf_counter() - began)

"""How fast services are updated, against plain placement in the same run, and what large services cost.

All of it is the real control plane in this process, on a SQLite store with fsync on. Nodes are registered and
heard, and obey at once: what is placed runs and is ready, what is to go is gone. On both sides the same is
counted: records of instances and services that transactions write or remove.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

import structlog
from msgspec.structs import replace

from bench.cluster import AT_ONCE, create_instances, demand, join_nodes, open_store, run, until
from bench.figures import Figure
from skerry.control.instance_index import InstanceRecord
from skerry.control.services.requests import ServiceSpec
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model.ids import InstanceId, NodeId
from skerry.model.orders import InstanceReport
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.services import UpdatePolicy
from skerry.model.settings import EventSettings, FleetSettings
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import InstanceSpec
from skerry.sim.cluster.server import SimulatedServer
from skerry.store.protocol import Expect, Op, Store

NODES, SERVICES, REPLICAS, PROMISED = 1_000, 1_000, 10, 0.5
LARGE_SERVICES, LARGE_REPLICAS = 10, 1_000
LOAD = 0.5  # of all resources: an update needs some for what comes first
_QUICK = UpdatePolicy(min_ready_s=0.0, drain_s=0.0, deadline_s=3600.0)
_RESOURCES = Resources(Millicores(250), Megabytes(256), Gigabytes(1))
_COUNTED = ("instance/", "service/")


class Rate(NamedTuple):
    """So many records changed, in so much time, with so much of a processor."""

    changes: int
    seconds: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        return self.changes / self.seconds


def measure() -> Iterator[Figure]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    placed = run(_place(SERVICES * REPLICAS))
    started, updated = run(_update(SERVICES, REPLICAS))
    yield Figure(
        f"placing {SERVICES * REPLICAS:,} instances on {NODES:,} nodes",
        placed.per_s,
        "durable changes/s",
        note=f"{placed.changes:,} in {placed.seconds:.1f} s",
    )
    yield Figure(
        f"starting {SERVICES:,} services of {REPLICAS} replicas",
        started.per_s,
        "durable changes/s",
        note=f"{started.changes:,} in {started.seconds:.1f} s",
    )
    yield Figure(
        f"rolling update of {SERVICES:,} services of {REPLICAS} replicas",
        updated.per_s / placed.per_s,
        "x placement",
        at_least=PROMISED,
        note=f"{updated.per_s:,.0f} durable changes/s: {updated.changes:,} in {updated.seconds:.1f} s",
        peer=placed.per_s,
        peer_unit="durable changes/s",
        peer_name="placement",
    )
    large_started, large_updated = run(_update(LARGE_SERVICES, LARGE_REPLICAS, max_surge="10%"))
    for name, small, large in (
        ("starting", started, large_started),
        ("updating", updated, large_updated),
    ):
        yield Figure(
            f"{name} {LARGE_SERVICES} services of {LARGE_REPLICAS:,}, processor time per change",
            (large.cpu_s / large.changes) / (small.cpu_s / small.changes),
            f"x of {REPLICAS} replicas",
            note=f"{large.per_s:,.0f} durable changes/s",
        )


class _CountingStore:
    """Counts the records of instances and services that transactions change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.changes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        revision = await self._store.commit(ops, expect)
        self.changes += sum(op.key.startswith(_COUNTED) for op in ops)
        return revision


class _Stopwatch:
    """Measures from when it is made."""

    def __init__(self, store: _CountingStore) -> None:
        self._store = store
        self._changes, self._at, self._cpu = store.changes, time.perf_counter(), time.process_time()

    def stop(self) -> Rate:
        return Rate(
            self._store.changes - self._changes,
            time.perf_counter() - self._at,
            time.process_time() - self._cpu,
        )


@asynccontextmanager
async def _serving(load: float, *, leads: bool) -> AsyncIterator[tuple[SimulatedServer, _CountingStore]]:
    """A server with nodes of which `SERVICES * REPLICAS` instances take the share `load`."""
    resources, _ = demand(NODES, SERVICES * REPLICAS, load)
    async with open_store() as sqlite:
        store = _CountingStore(sqlite)
        settings = FleetSettings(reserve_percent=0)
        server = SimulatedServer("bench", cast("Store", store), SystemClock(), settings, EventSettings())
        await server.start(leads=leads)
        beats = await join_nodes(server, resources)
        try:
            yield server, store
        finally:
            await cancel_and_wait([beats])
            await server.stop()


async def _place(instances: int) -> Rate:
    """Place what was created before, as `bench.cluster` does."""
    _, specs = demand(NODES, instances, LOAD)
    async with _serving(LOAD, leads=False) as (server, store):
        await create_instances(server, specs)
        placed = 0

        def changed(before: InstanceRecord | None, after: InstanceRecord | None) -> None:
            nonlocal placed
            placed += after is not None and after.value.observed.status is InstanceStatus.SCHEDULED

        server.instance_table.listen(changed)
        watch = _Stopwatch(store)
        server.lead()
        await until(lambda: placed == instances)
        return watch.stop()


async def _update(services: int, replicas: int, **policy: str) -> tuple[Rate, Rate]:
    """Start services, and update all of them at once."""
    update = replace(_QUICK, **policy)
    async with _serving(LOAD, leads=True) as (server, store):
        nodes = _ObedientNodes(server)
        obeying = asyncio.ensure_future(nodes.run())
        try:
            watch = _Stopwatch(store)
            await _all_at_once([_create(server, number, replicas, update) for number in range(services)])
            await until(lambda: _are_done(server, 1))
            started = watch.stop()
            watch = _Stopwatch(store)
            await _all_at_once([_change(server, number) for number in range(services)])
            await until(lambda: _are_done(server, 2))
            return started, watch.stop()
        finally:
            await cancel_and_wait([obeying])


async def _all_at_once(requests: Sequence[Any]) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(request: Any) -> None:
        async with turns:
            await request

    await asyncio.gather(*map(one, requests))


async def _create(server: SimulatedServer, number: int, replicas: int, update: UpdatePolicy) -> None:
    template = InstanceSpec(f"s{number:04}", "example.org/simulated:1", resources=_RESOURCES)
    await server.services.create(ServiceSpec(template, replicas, update), actor="bench")


async def _change(server: SimulatedServer, number: int) -> None:
    def changed(spec: ServiceSpec) -> ServiceSpec:
        return replace(spec, template=replace(spec.template, uri="example.org/simulated:2"))

    await server.services.change(f"s{number:04}", changed, actor="bench")


def _are_done(server: SimulatedServer, revision: int) -> bool:
    """True if all services are at this revision, and no copies of others are left."""
    services = server.services.tables.services.values()
    return all(one.rollout is None and one.target.number == revision for one in services) and len(
        server.instance_table.index
    ) == sum(one.replicas for one in services)


class _ObedientNodes:
    """Nodes that do at once what they are ordered, and report it."""

    def __init__(self, server: SimulatedServer) -> None:
        self._server = server
        self._ordered: dict[NodeId, dict[InstanceId, InstanceReport]] = {}
        self._changed = asyncio.Event()
        server.instance_table.listen(self._instance_changed)

    def _instance_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        if after is None or after.value.node is None:
            return
        one = after.value
        if one.desired is DesiredStatus.DESTROYED:
            status = InstanceStatus.TERMINATED
        elif one.observed.status is InstanceStatus.SCHEDULED:
            status = InstanceStatus.RUNNING
        else:
            return
        report = InstanceReport(one.id, one.generation, status, time.time())
        self._ordered.setdefault(after.value.node, {})[one.id] = report
        self._changed.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._changed.wait()
                self._changed.clear()
                ordered, self._ordered = self._ordered, {}
                for node, reports in ordered.items():
                    group.create_task(self._report(node, list(reports.values())))

    async def _report(self, node: NodeId, reports: Sequence[InstanceReport]) -> None:
        await self._server.instances.reported(node, reports)

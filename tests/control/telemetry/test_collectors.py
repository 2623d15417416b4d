"""What `/metrics` has of a cloud, from the records that it is counted from."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.registry import Collector

from skerry.control.instance_index import InstanceIndex, InstanceTable
from skerry.control.nodes.conditions import NodeCondition
from skerry.control.services.tables import ServiceTables
from skerry.control.telemetry.instance_metrics import InstanceMetrics
from skerry.control.telemetry.node_metrics import NodeMetrics
from skerry.control.telemetry.service_metrics import ReadyCopies, ServiceMetrics
from skerry.control.telemetry.table_counts import TableCounts
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId, ServiceId
from skerry.model.nodes import Liveness
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.services import Service, ServiceRevision
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance, InstanceOwner, InstanceSpec, ObservedState, OwnerKind
from skerry.schedule.requests import NodeView
from skerry.store.local.memory import MemoryStore
from skerry.store.tables.table import Record, Table, json_of

ROOM = Resources(Millicores(4000), Megabytes(1024), Gigabytes(10))
SPEC = InstanceSpec(name="web", uri="example.org/web:1")


def samples(collector: Collector) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


@asynccontextmanager
async def running(*tables: Any) -> AsyncIterator[None]:
    loops = [asyncio.ensure_future(table.run()) for table in tables]
    try:
        for table in tables:
            await table.ready()
        yield
    finally:
        await cancel_and_wait(loops)


class Thing(msgspec.Struct, frozen=True):
    colour: str


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["red", "blue", ""])), max_size=30))
async def test_counts_are_those_of_a_scan(changes: list[tuple[str, str]]) -> None:
    store = MemoryStore(SystemClock())
    table = Table(store, "thing/", json_of(Thing))
    async with running(table):
        counts = TableCounts(table, lambda one: None if one.colour == "blue" else (one.colour,))
        for id, colour in changes:
            if colour:
                await table.commit([table.put(id, Thing(colour))])
            elif table.get(id) is not None:
                await table.commit([table.delete(id)])
        scanned = Counter((one.colour,) for one in table.values() if one.colour != "blue")
        assert dict(counts.items()) == dict(scanned)
        assert dict(TableCounts(table, lambda one: (one.colour,)).items()) == Counter(
            (one.colour,) for one in table.values()
        )
    await store.close()


class FakeNodes:
    """Conditions that a test sets, and what is free of each node."""

    def __init__(self) -> None:
        self.known: dict[NodeId, NodeCondition] = {}
        self.left: dict[NodeId, Resources] = {}
        self.listeners: list[Callable[[NodeId], None]] = []
        self.asked: Counter[NodeId] = Counter()

    def set(self, id: str, name: str, liveness: Liveness = Liveness.LIVE, *, is_open: bool = True) -> None:
        node = NodeId(id)
        view = NodeView(node, ROOM, name=name, is_schedulable=is_open)
        self.known[node] = NodeCondition(view, liveness)
        for changed in self.listeners:
            changed(node)

    async def ready(self) -> None: ...

    def condition(self, node: NodeId) -> NodeCondition | None:
        self.asked[node] += 1
        return self.known.get(node)

    def conditions(self) -> list[NodeCondition]:
        return list(self.known.values())

    def listen(self, changed: Callable[[NodeId], None]) -> Callable[[], None]:
        self.listeners.append(changed)
        return lambda: self.listeners.remove(changed)

    def free(self, node: NodeId) -> Resources:
        if node not in self.left:
            raise errors.NotFound("no such node")
        return self.left[node]


def instance(id: str, status: InstanceStatus = InstanceStatus.RUNNING, **fields: Any) -> Instance:
    return Instance(InstanceId(id), SPEC, 0.0, ObservedState(status, 0.0), **fields)


def test_nodes_by_condition_with_what_they_have_gave_away_and_use() -> None:
    nodes = FakeNodes()
    nodes.set("n1", "edge")
    nodes.set("n2", "edge")
    nodes.set("n3", "hub", is_open=False)
    nodes.set("n4", "far", Liveness.LOST)
    nodes.left[NodeId("n3")] = Resources(Millicores(1000), Megabytes(24), Gigabytes(10))
    index = InstanceIndex([Record(instance("i", node=NodeId("n3")), 1)])
    used = [(InstanceId("i"), Resources(Millicores(500), Megabytes(10))), (InstanceId("gone"), ROOM)]
    collector = NodeMetrics(nodes, nodes, index, lambda: used)
    found = samples(collector)
    assert [found["skerry_nodes", one] for one in ("ready", "unschedulable", "suspect", "lost")] == [
        2,
        1,
        0,
        1,
    ]
    assert found["skerry_node_up", "far"] == 0
    assert found["skerry_node_up", "n1"] == 1  # two have the name edge
    assert found["skerry_node_capacity_memory_bytes", "hub"] == 1024 << 20
    assert found["skerry_node_allocated_cpu_cores", "hub"] == 3
    assert found["skerry_node_used_cpu_cores", "hub"] == 0.5
    assert ("skerry_node_used_cpu_cores", "far") not in found
    before = nodes.asked[NodeId("n1")]
    del nodes.known[NodeId("n2")]
    nodes.listeners[0](NodeId("n2"))
    nodes.set("n4", "far")
    found = samples(collector)
    assert (found["skerry_nodes", "ready"], found["skerry_node_up", "edge"]) == (2, 1)
    assert nodes.asked[NodeId("n1")] == before, "a node that did not change was examined again"
    collector.close()
    assert nodes.listeners == []


async def test_instances_by_namespace_and_status_with_those_that_crash_or_fail_their_checks() -> None:
    store = MemoryStore(SystemClock())
    table = InstanceTable(store)
    async with running(table):
        collector = InstanceMetrics(table)
        failing = replace(
            instance("c"), observed=ObservedState(InstanceStatus.RUNNING, 0.0, has_passed=False)
        )
        for one in (instance("a"), instance("b", InstanceStatus.CRASHED, restarts=3), failing):
            await table.commit([table.put(one.id, one)])
        found = samples(collector)
        assert found["skerry_instances", "default", "RUNNING"] == 2
        assert found["skerry_instances", "default", "CRASHED"] == 1
        assert found["skerry_instances_crash_looping", "default"] == 1
        assert found["skerry_instances_failing_checks", "default"] == 1
        for id in "abc":
            await table.commit([table.delete(id)])
        assert samples(collector) == {}
        collector.close()
    await store.close()


async def test_ready_copies_of_services_are_those_on_live_nodes() -> None:
    store = MemoryStore(SystemClock())
    table, tables, nodes = InstanceTable(store), ServiceTables(store), FakeNodes()
    nodes.set("n1", "edge")
    nodes.set("n2", "far")
    owner = InstanceOwner(OwnerKind.SERVICE, "s1", "web")
    service = Service(ServiceId("s1"), "web", ServiceRevision(1, SPEC, 0.0), 0.0, replicas=3)
    async with running(table, tables):
        ready = ReadyCopies(table, nodes)
        collector = ServiceMetrics(tables, ready)
        await tables.services.commit([tables.services.put("default/web", service)])
        for id, node in (("a", "n1"), ("b", "n2"), ("c", "n2")):
            await table.commit([table.put(id, instance(id, node=NodeId(node), owner=owner))])
        labels = ("default", "web")
        assert samples(collector)["skerry_service_ready_replicas", *labels] == 3
        assert samples(collector)["skerry_services", "HEALTHY"] == 1
        nodes.set("n2", "far", Liveness.SUSPECT)
        found = samples(collector)
        assert (
            found["skerry_service_ready_replicas", *labels],
            found["skerry_service_replicas", *labels],
        ) == (1, 3)
        assert found["skerry_services", "DEGRADED"] == 1
        ready.close()
    await store.close()

"""What nodes are told of isolated namespaces, and of the containers of jobs that may connect to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from skerry.control.instance_index import InstanceTable
from skerry.control.namespaces.policies import RecordedPolicies
from skerry.control.network.isolated_namespaces import IsolatedNamespaces
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model.ids import InstanceId, Namespace, NodeId
from skerry.model.namespaces import NamespaceRecord
from skerry.model.network import UNRESTRICTED
from skerry.model.network_objects import NetworkKey
from skerry.model.network_policies import IsolatedNamespace, JobAddress, NamespacePolicy
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance, InstanceOwner, ObservedState, OwnerKind
from skerry.store.local.memory import MemoryStore
from skerry.store.tables.table import Table, json_of
from tests.control.worlds import instance

SHOP, LAB = Namespace("shop"), Namespace("lab")
A = NodeId("a")


class World:
    """The tables, and all that was sent."""

    def __init__(self) -> None:
        store = MemoryStore(SystemClock())
        self.namespaces: Table[NamespaceRecord] = Table(store, "namespace/", json_of(NamespaceRecord))
        self.instances = InstanceTable(store)
        self.source = IsolatedNamespaces(RecordedPolicies(self.namespaces, UNRESTRICTED, self.instances))
        self.sent: list[tuple[NetworkKey, Any]] = []
        self.source.listen(lambda node, key, value: self.sent.append((key, value)))

    async def set_policy(self, name: Namespace, policy: NamespacePolicy) -> None:
        record = NamespaceRecord(name, 0.0, policy=policy)
        await self.namespaces.commit([self.namespaces.put(name, record)], [])
        await self.namespaces.sync()

    async def put(self, one: Instance) -> None:
        await self.instances.commit([self.instances.put(one.id, one)], [])
        await self.instances.sync()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    loops = [asyncio.ensure_future(table.run()) for table in (world.namespaces, world.instances)]
    try:
        await world.namespaces.ready()
        await world.instances.ready()
        yield world
    finally:
        await cancel_and_wait(loops)


def job_copy(id: str, namespace: Namespace, ip: str) -> Instance:
    return replace(
        instance(id),
        namespace=namespace,
        node=A,
        ip=ip,
        owner=InstanceOwner(OwnerKind.JOB, "j1", "report"),
        observed=ObservedState(InstanceStatus.RUNNING, 0.0),
    )


async def test_isolated_namespaces_are_sent_with_whom_they_allow(world: World) -> None:
    await world.set_policy(SHOP, NamespacePolicy(True, (LAB,)))
    sent = IsolatedNamespace(SHOP, (LAB,))
    assert list(world.source.objects(A)) == [sent]
    await world.set_policy(SHOP, NamespacePolicy())
    assert world.sent == [(sent.network_key, sent), (sent.network_key, None)]
    assert list(world.source.objects(A)) == []


async def test_containers_of_jobs_are_sent_while_a_policy_depends_on_them(world: World) -> None:
    await world.put(job_copy("i1", LAB, "10.64.1.2"))
    await world.put(replace(instance("i2"), namespace=LAB, node=A, ip="10.64.1.3"))  # of no job
    assert world.sent == []
    await world.set_policy(SHOP, NamespacePolicy(True, (LAB,)))
    address = JobAddress(InstanceId("i1"), LAB, A, "10.64.1.2")
    assert address in world.source.objects(A)
    await world.put(job_copy("i3", Namespace("other"), "10.64.1.4"))
    ended = replace(job_copy("i1", LAB, "10.64.1.2"), observed=ObservedState(InstanceStatus.TERMINATED, 1.0))
    await world.put(ended)
    assert world.sent[-1] == (address.network_key, None)
    assert list(world.source.objects(A)) == [IsolatedNamespace(SHOP, (LAB,))]

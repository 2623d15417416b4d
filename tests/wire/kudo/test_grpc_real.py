"""Kudo's gRPC services over the real control plane, on a store in memory: what the public program got wrong.

Nodes are silent when the clock says so, and whoever follows an instance is told what the store has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from grpclib import GRPCError
from grpclib import Status as GRPCStatus
from grpclib.client import Channel, Stream

from skerry.control.instances.registry import InstanceRegistry
from skerry.kit.clock import ManualClock
from skerry.model.callers import MARKET
from skerry.model.ids import MARKET_NAMESPACE, InstanceId, Namespace, NodeId
from skerry.model.nodes import Liveness, ReportedInstance
from skerry.model.resources import Megabytes, Millicores, Resources
from skerry.model.settings import FleetSettings
from skerry.model.statuses import DesiredStatus, InstanceStatus, NodeStatus
from skerry.model.workloads import InstanceSpec, WorkloadKind
from skerry.store.local.memory import MemoryStore
from skerry.transport.grpc.channels import dial
from skerry.transport.proto import kudo_controller_pb2 as a
from skerry.transport.proto import kudo_scheduler_pb2 as pb
from skerry.transport.proto.kudo_services_grpc import (
    InstanceServiceStub,
    NodeServiceStub,
    SchedulerServiceStub,
)
from tests.control.worlds import Server
from tests.support.certificates import TestAuthority
from tests.support.fleets import Fleet, fleet_on
from tests.support.waiting import PATIENCE_S, eventually
from tests.transport.grpc.fakes import FakeIdentity
from tests.wire.kudo.grpc_serving import SETTINGS, serving

WEB = pb.Instance(
    id="web-1", name="web", uri="example.org/web", resource=pb.Resource(limit=pb.ResourceSummary(cpu=100))
)


@dataclass
class Cloud:
    """One server of a cloud, and the stubs of a client of it."""

    fleet: Fleet
    server: Server
    channel: Channel

    @property
    def instances(self) -> InstanceRegistry:
        return self.server.instances

    @property
    def node(self) -> NodeServiceStub:
        return NodeServiceStub(self.channel)

    @property
    def instance(self) -> InstanceServiceStub:
        return InstanceServiceStub(self.channel)

    async def register(self, name: str) -> pb.NodeRegisterResponse:
        return await self.node.Register(pb.NodeRegisterRequest(certificate=name))

    async def tell(self, status: str, **fields: object) -> None:
        await SchedulerServiceStub(self.channel).setInstanceStatus(
            a.InstanceStatus(id="web-1", status=status, **fields)
        )

    async def see(self, *statuses: InstanceStatus, **fields: object) -> None:
        """What the node of the instance says in its session."""
        await self.server.say("web-1", *statuses, **fields)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[Stream[pb.Instance, pb.InstanceStatus]]:
        async with self.instance.Create.open() as stream:
            await stream.send_message(WEB, end=True)
            yield stream
            await stream.cancel()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[MemoryStore]:
    made = MemoryStore(clock)
    yield made
    await made.close()


@asynccontextmanager
async def cloud_on(
    store: MemoryStore, clock: ManualClock, authority: TestAuthority, settings: FleetSettings = SETTINGS
) -> AsyncIterator[Cloud]:
    async with (
        fleet_on(store, clock) as fleet,
        Server(store, fleet.nodes, clock).running() as server,
        serving(server.instances, fleet.nodes, FakeIdentity(), authority, settings) as port,
    ):
        channel = dial(f"127.0.0.1:{port}", None)
        try:
            yield Cloud(fleet, server, channel)
        finally:
            channel.close()


@pytest.fixture
async def cloud(store: MemoryStore, clock: ManualClock, authority: TestAuthority) -> AsyncIterator[Cloud]:
    async with cloud_on(store, clock, authority) as made:
        yield made


async def until(stream: Stream[pb.Instance, pb.InstanceStatus], status: int) -> pb.InstanceStatus:
    """The next update of that status."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            told = await stream.recv_message()
            assert told is not None, "it is over"
            if told.status == status:
                return told


async def test_a_node_shows_up_and_is_ready_when_it_first_reports(cloud):
    registered = await cloud.register("node-1")
    assert registered.subnet.endswith(".0/24")
    [node] = cloud.fleet.nodes.list()
    assert (node.id, node.is_foreign, node.status) == ("node-1", True, NodeStatus.REGISTERING)
    resources = pb.Resource(limit=pb.ResourceSummary(cpu=4000))
    await cloud.node.Status([pb.NodeStatus(id="node-1", resource=resources)])
    [node] = cloud.fleet.nodes.list()
    assert (node.status, node.resources, node.subnet) == (
        NodeStatus.READY,
        Resources(Millicores(4000)),
        registered.subnet,
    )


async def test_a_server_that_starts_again_knows_its_nodes_and_they_keep_their_subnets(
    store, clock, authority
):
    async with cloud_on(store, clock, authority) as before:
        first = await before.register("node-1")
        other = await before.register("node-2")
        await before.node.Status(
            [pb.NodeStatus(id="node-1", resource=pb.Resource(limit=pb.ResourceSummary(cpu=7)))]
        )
    assert first.subnet != other.subnet
    async with cloud_on(store, clock, authority) as after:
        # Without registering again, as with it.
        await after.node.Status([pb.NodeStatus(id="node-1")])
        assert await after.register("node-1") == first
        assert after.fleet.nodes.get("node-1").resources == Resources(Millicores(7))


async def test_a_node_that_leaves_and_comes_back_soon_gets_its_subnet_again(cloud):
    first = await cloud.register("node-1")
    assert (await cloud.node.Unregister(pb.NodeUnregisterRequest(id="node-1"))).code == 0
    assert cloud.fleet.nodes.list() == []
    assert (await cloud.register("node-2")).subnet != first.subnet
    assert (await cloud.register("node-1")).subnet == first.subnet


async def test_nothing_is_placed_on_a_node_that_takes_no_orders_and_that_is_explained(cloud):
    await cloud.register("node-1")
    await cloud.node.Status(
        [pb.NodeStatus(id="node-1", resource=pb.Resource(limit=pb.ResourceSummary(cpu=4000)))]
    )
    async with cloud.following() as stream:
        waiting = await stream.recv_message()
        while "takes no orders" not in waiting.statusDescription:
            waiting = await stream.recv_message()
    assert waiting.status == pb.SCHEDULING
    [verdict] = cloud.instances.explain("web-1")
    assert [refusal.why for refusal in verdict.rejections] == ["takes no orders"]
    assert cloud.instances.get("web-1").node is None


async def test_silence_counts_even_if_the_stream_of_a_node_is_open(cloud):
    await cloud.register("node-1")
    async with cloud.node.Status.open() as stream:
        await stream.send_message(pb.NodeStatus(id="node-1"))
        await eventually(lambda: cloud.fleet.nodes.get("node-1").status is NodeStatus.READY)
        await cloud.fleet.hear("node-1")
        for liveness in (Liveness.SUSPECT, Liveness.LOST):
            await cloud.fleet.pass_time(30)
            await eventually(lambda is_now=liveness: cloud.fleet.nodes.liveness(NodeId("node-1")) is is_now)
        await eventually(lambda: cloud.fleet.nodes.get("node-1").status is NodeStatus.LOST)
        # It only has to speak again.
        await stream.send_message(pb.NodeStatus(id="node-1"))
        await eventually(lambda: cloud.fleet.nodes.get("node-1").status is NodeStatus.READY)
        await stream.end()
        await stream.recv_message()


async def test_the_end_of_a_stream_unregisters_nobody(cloud):
    await cloud.register("node-1")
    for _ in range(2):
        await cloud.node.Status([pb.NodeStatus(id="node-1")])
    assert cloud.fleet.nodes.get("node-1").status is NodeStatus.READY
    assert await cloud.fleet.events("node.unregistered") == []


async def test_an_inventory_replaces_the_one_before_and_silence_about_it_does_not(cloud):
    await cloud.register("node-1")
    for names, known in (("ab", ("a", "b")), ("ab", ("a", "b")), ("b", ("b",)), ("", ("b",))):
        instances = [pb.Instance(id=name) for name in names]
        await cloud.node.Status([pb.NodeStatus(id="node-1", instances=instances)])
        report = cloud.fleet.nodes.foreign_report(NodeId("node-1"))
        assert report is not None
        assert report.instances is not None
        assert tuple(one.id for one in report.instances) == known


async def test_what_a_node_says_of_its_usage_and_its_instances_is_kept_in_both_documents_words(cloud):
    used, limit = {"cpu": 5, "memory": 6}, {"cpu": 50}
    some = Resources(Millicores(5), Megabytes(6))
    for name in ("node-1", "node-2"):
        await cloud.register(name)
    new = {"id": "x", "name": "web", "uri": "example.org/web", "resource": {"limit": limit, "usage": used}}
    await cloud.node.Status(
        [
            pb.NodeStatus(
                id="node-1", resource={"usage": used}, instances=[pb.Instance(status="FAILED", **new)]
            )
        ]
    )
    old = {**new, "resource": {"max": limit, "usage": used}}
    await SchedulerServiceStub(cloud.channel).setNodeStatus(
        a.NodeStatus(id="node-2", resource={"usage": used}, instances=[a.Instance(status="FAILED", **old)])
    )
    for name in ("node-1", "node-2"):
        report = cloud.fleet.nodes.foreign_report(NodeId(name))
        assert report is not None
        assert report.usage == some
        assert report.instances == (
            ReportedInstance(
                InstanceId("x"),
                "web",
                InstanceStatus.FAILED,
                "example.org/web",
                Resources(Millicores(50)),
                some,
            ),
        )


async def placed(cloud: Cloud) -> None:
    """A node of our own, for instances to be on."""
    await cloud.fleet.join("n")
    await cloud.fleet.hear("n")


async def test_an_instance_is_followed_from_its_wish_to_its_end_each_step_with_its_event(cloud):
    await placed(cloud)
    async with cloud.instance.Create.open() as stream:
        await stream.send_message(WEB, end=True)
        await until(stream, pb.SCHEDULED)
        for status in (InstanceStatus.STARTING, InstanceStatus.RUNNING):
            await cloud.see(status)
            assert (await until(stream, pb.Status.Value(status))).resource.limit.cpu == 100
        await cloud.see(InstanceStatus.CRASHED, reason="exited with 1", exit_code=1)
        crashed = await until(stream, pb.FAILED)
        assert (crashed.reason, crashed.exit_code) == ("CRASHED", 1)
        await cloud.see(InstanceStatus.STARTING)
        await until(stream, pb.STARTING)
        await cloud.see(InstanceStatus.RUNNING)
        await until(stream, pb.RUNNING)
        await cloud.see(InstanceStatus.TERMINATED, exit_code=0)
        assert [told.status async for told in stream] == [pb.TERMINATED]
    kinds = [told.event.kind for told in await cloud.instances.events("web-1")]
    assert kinds == [
        f"instance.{status}"
        for status in (
            *("scheduling", "scheduled", "starting", "running", "crashed"),
            *("starting", "running", "terminated"),
        )
    ]


async def test_what_ended_well_is_not_started_again_and_keeps_its_room_in_mind(cloud):
    await placed(cloud)
    async with cloud.following() as stream:
        await until(stream, pb.SCHEDULED)
    await cloud.see(InstanceStatus.STARTING, InstanceStatus.RUNNING, InstanceStatus.TERMINATED)
    after = cloud.instances.get("web-1")
    assert after.observed.status is InstanceStatus.TERMINATED
    assert after.spec.resources == Resources(Millicores(100))


async def test_stopping_keeps_the_instance_and_starting_takes_it_up_again(cloud):
    await placed(cloud)
    async with cloud.following() as stream:
        await until(stream, pb.SCHEDULED)
        await cloud.server.obey("n")
        await until(stream, pb.RUNNING)
        await cloud.instance.Stop(pb.InstanceIdentifier(id="web-1"))
        await cloud.server.obey("n")
        await until(stream, pb.STOPPED)
        await cloud.instance.Start(pb.InstanceIdentifier(id="web-1"))
        await cloud.server.obey("n")
        await until(stream, pb.RUNNING)


async def test_what_is_destroyed_is_told_to_the_end_and_never_comes_back(cloud):
    await placed(cloud)
    async with cloud.instance.Create.open() as stream:
        await stream.send_message(WEB, end=True)
        await until(stream, pb.SCHEDULED)
        await cloud.server.obey("n")
        await until(stream, pb.RUNNING)
        for _ in range(2):
            await cloud.instance.Destroy(pb.InstanceIdentifier(id="web-1"))
        await until(stream, pb.DESTROYING)
        await cloud.server.obey("n")
        assert [told.status async for told in stream] == [pb.TERMINATED]
    assert cloud.instances.list().total == 0


async def test_nobody_ends_an_instance_by_saying_so_while_its_node_runs_it(cloud):
    await placed(cloud)
    async with cloud.following() as stream:
        await until(stream, pb.SCHEDULED)
        await cloud.see(InstanceStatus.STARTING, InstanceStatus.RUNNING)
        await until(stream, pb.RUNNING)
        for lie in ("TERMINATED", "CRASHED", "STOPPING", "DESTROYING"):
            with pytest.raises(GRPCError, match="what that node sees counts") as caught:
                await cloud.tell(lie)
            assert caught.value.status is GRPCStatus.FAILED_PRECONDITION
        await cloud.tell("RUNNING")
        await cloud.see(InstanceStatus.STOPPING)
        assert (await stream.recv_message()).status == pb.STOPPING  # and nothing came in between
    kinds = [told.event.kind for told in await cloud.instances.events("web-1")]
    assert kinds[-2:] == ["instance.running", "instance.stopping"]


async def test_a_stream_carries_what_a_running_instance_uses_at_the_interval_of_reports(
    store, clock, authority
):
    async with cloud_on(store, clock, authority, FleetSettings(report_s=0.01)) as cloud:
        await placed(cloud)
        async with cloud.following() as stream:
            await until(stream, pb.SCHEDULED)
            await cloud.see(InstanceStatus.STARTING, InstanceStatus.RUNNING)
            for cpu in (7, 90, 30):
                await cloud.see(InstanceStatus.RUNNING, usage=Resources(Millicores(cpu)))
                told = await until(stream, pb.RUNNING)
                while told.resource.usage.cpu != cpu:
                    told = await until(stream, pb.RUNNING)
                assert told.resource.limit.cpu == 100


async def test_one_that_failed_is_repeated_at_a_pace_and_can_be_made_again_once_it_is_gone(cloud):
    await placed(cloud)
    async with cloud.instance.Create.open() as stream:
        await stream.send_message(WEB, end=True)
        await until(stream, pb.SCHEDULED)
        await cloud.see(InstanceStatus.STARTING, InstanceStatus.FAILED, reason="no such image")
        assert [told.status async for told in stream] == [pb.FAILED]
    assert [told.status for told in await cloud.instance.Create(WEB)] == [pb.FAILED]
    async with cloud.instance.Create.open() as held:
        await held.send_message(WEB, end=True)
        assert (await held.recv_message()).statusDescription == "no such image"
        await cloud.instance.Destroy(pb.InstanceIdentifier(id="web-1"))
        await cloud.server.obey("n")
        assert [told.status async for told in held] == [pb.TERMINATED]
    async with cloud.following() as stream:
        await until(stream, pb.SCHEDULED)


async def test_a_client_finds_its_instance_again_on_a_server_that_started_again(store, clock, authority):
    async with cloud_on(store, clock, authority) as before:
        await placed(before)
        async with before.following() as stream:
            await until(stream, pb.SCHEDULED)
            await before.server.obey("n")
            await until(stream, pb.RUNNING)
    async with cloud_on(store, clock, authority) as after:
        async with after.following() as stream:
            assert (await stream.recv_message()).status == pb.RUNNING
            await after.see(InstanceStatus.STOPPING)
            await until(stream, pb.STOPPING)
        assert after.instances.list().total == 1


async def test_what_is_created_is_in_the_default_namespace_and_ids_reach_every_other(cloud: Cloud) -> None:
    async with cloud.following() as stream:
        await stream.recv_message()
    assert cloud.instances.get("web-1").namespace == "default"
    far, _ = await cloud.instances.create(
        InstanceSpec("web", "example.org/web"), namespace=Namespace("shop"), id="far-1", actor="me"
    )
    with pytest.raises(GRPCError, match="exists in another namespace") as refused:
        await cloud.instance.Create(pb.Instance(id="far-1", name="web", uri="example.org/web"))
    assert refused.value.status is GRPCStatus.ALREADY_EXISTS
    await cloud.instance.Stop(pb.InstanceIdentifier(id="far-1"))
    assert cloud.instances.get("far-1").desired == "STOPPED"
    await cloud.instance.Start(pb.InstanceIdentifier(id="far-1"))
    assert cloud.instances.get("far-1").desired == "RUNNING"
    await cloud.instance.Destroy(pb.InstanceIdentifier(id="far-1"))
    await cloud.server.becomes(far.id, None)


async def test_the_cell_of_a_contract_is_started_stopped_and_destroyed_by_the_market_alone(cloud):
    cell = InstanceSpec(name="contract-01hx", uri="contract:01hx", kind=WorkloadKind.CELL)
    made, _ = await cloud.instances.create(cell, actor=MARKET, namespace=MARKET_NAMESPACE, id="contract-01hx")
    for call in (cloud.instance.Start, cloud.instance.Stop, cloud.instance.Destroy):
        with pytest.raises(GRPCError, match="is the cell of a contract") as caught:
            await call(pb.InstanceIdentifier(id=made.id))
        assert caught.value.status is GRPCStatus.PERMISSION_DENIED
    assert cloud.instances.get(made.id).desired is DesiredStatus.RUNNING

"""InstanceService and setInstanceStatus: wishes, streams, what is refused, and what stays as it is."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from grpclib.client import Stream
from grpclib.const import Status as Code
from grpclib.exceptions import GRPCError
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.room import Megabytes, Room
from skerry.model.statuses import Desired, Status
from skerry.wire.grpc.channel import dial
from skerry.wire.kudo.grpc_scheduler import spec_of
from skerry.wire.proto import kudo_controller_pb2 as a
from skerry.wire.proto import kudo_scheduler_pb2 as pb
from skerry.wire.proto.kudo_services_grpc import InstanceServiceStub, SchedulerServiceStub
from tests.support.waiting import eventually

WEB = pb.Instance(id="web-1", name="web", uri="example.org/web:1.2")


@pytest.fixture
def instances(channel) -> InstanceServiceStub:
    return InstanceServiceStub(channel)


@pytest.fixture
def tell(channel):
    async def told(status: str, **fields: object) -> None:
        await SchedulerServiceStub(channel).setInstanceStatus(
            a.InstanceStatus(id="web-1", status=status, **fields)
        )

    return told


@asynccontextmanager
async def creating(
    instances: InstanceServiceStub, message: pb.Instance = WEB
) -> AsyncIterator[Stream[pb.Instance, pb.InstanceStatus]]:
    async with instances.Create.open() as stream:
        await stream.send_message(message, end=True)
        yield stream
        await stream.cancel()


async def running(served, node: str = "node-1") -> None:
    """web-1, on a node."""
    await served.instances.create(spec_of(WEB), actor="somebody", id="web-1")
    served.instances.bind("web-1", node)
    served.instances.become("web-1", Status.STARTING, Status.RUNNING)


async def test_the_first_message_is_the_status_now_and_comes_at_once(instances):
    async with creating(instances) as stream:
        first = await stream.recv_message()
    assert (first.id, first.status, first.statusDescription) == ("web-1", pb.SCHEDULING, "waits for a node")


async def test_an_instance_without_an_id_gets_one(instances, served):
    async with creating(instances, pb.Instance(name="web", uri="example.org/web")) as stream:
        first = await stream.recv_message()
    assert first.id == "assigned-0"
    assert list(served.instances.all) == ["assigned-0"]


@pytest.mark.parametrize(
    ("steps", "last"),
    [
        ([Status.SCHEDULED, Status.STARTING, Status.RUNNING, Status.TERMINATED], pb.TERMINATED),
        ([Status.SCHEDULED, Status.STARTING, Status.FAILED], pb.FAILED),
        ([Status.DESTROYING, Status.TERMINATED], pb.TERMINATED),
    ],
)
async def test_the_stream_ends_well_when_the_instance_is_over(instances, served, steps, last):
    async with instances.Create.open() as stream:
        await stream.send_message(WEB, end=True)
        await stream.recv_message()
        served.instances.become("web-1", *steps)
        told = [message.status async for message in stream]
    assert (len(told), told[-1]) == (len(steps), last)


async def test_a_crash_does_not_end_the_stream(instances, served):
    await running(served)
    async with creating(instances) as stream:
        await stream.recv_message()
        served.instances.become("web-1", Status.CRASHED, reason="exited with 3", exit_code=3)
        crashed = await stream.recv_message()
        served.instances.become("web-1", Status.STARTING)
        assert (await stream.recv_message()).status == pb.STARTING
    assert (crashed.status, crashed.reason, crashed.exit_code) == (pb.FAILED, "CRASHED", 3)
    assert crashed.statusDescription == "CRASHED: exited with 3"


async def test_creating_it_again_follows_the_one_that_is_there(instances, served):
    await running(served)
    async with creating(instances) as one, creating(instances) as two:
        assert [(await stream.recv_message()).status for stream in (one, two)] == [pb.RUNNING] * 2
        served.instances.become("web-1", Status.STOPPING)
        assert [(await stream.recv_message()).status for stream in (one, two)] == [pb.STOPPING] * 2
    assert len(served.instances.all) == 1


async def test_one_that_is_over_is_told_once(instances, served):
    await running(served)
    served.instances.become("web-1", Status.TERMINATED)
    assert [message.status for message in await instances.Create(WEB)] == [pb.TERMINATED]


async def test_another_spec_under_the_same_id_is_refused(instances, served):
    await running(served)
    with pytest.raises(GRPCError) as caught:
        await instances.Create(pb.Instance(id="web-1", name="web", uri="example.org/web:2"))
    assert caught.value.status is Code.ALREADY_EXISTS
    assert served.instances.all["web-1"].spec.uri == "example.org/web:1.2"


async def test_the_status_and_the_address_that_a_client_writes_are_passed_over(instances, served):
    message = pb.Instance(
        id="web-1",
        name="web",
        uri="example.org/web",
        status=pb.TERMINATED,
        ip="10.0.0.1",
        resource=pb.Resource(usage=pb.ResourceSummary(cpu=7)),
    )
    async with creating(instances, message) as stream:
        assert (await stream.recv_message()).status == pb.SCHEDULING
    assert served.instances.all["web-1"].ip == ""
    assert served.instances.usage("web-1") == Room()


async def test_hanging_up_changes_nothing(instances, served):
    await running(served)
    before = served.instances.all["web-1"]
    async with creating(instances) as stream:
        await stream.recv_message()
        assert served.instances.watched == 1
    await eventually(lambda: served.instances.watched == 0)
    assert served.instances.all["web-1"] is before


async def test_nothing_is_said_about_an_instance_whose_wish_could_not_be_stored(instances, served):
    served.instances.fails = errors.Unavailable("the store is away; try again")
    with pytest.raises(GRPCError) as caught:
        await instances.Create(WEB)
    assert caught.value.status is Code.UNAVAILABLE
    assert served.instances.all == {}


@pytest.mark.parametrize(
    ("method", "desired"),
    [("Start", Desired.RUNNING), ("Stop", Desired.STOPPED), ("Destroy", Desired.DESTROYED)],
)
async def test_a_wish_is_taken_twice_and_is_the_callers(instances, served, method, desired):
    await running(served)
    for _ in range(2):
        await getattr(instances, method)(pb.InstanceIdentifier(id="web-1"))
    assert served.instances.all["web-1"].desired is desired
    assert {actor for what, _, actor in served.instances.wishes if what == desired.lower()} == {
        f"uid:{os.getuid()}"
    }


@pytest.mark.parametrize("method", ["Start", "Stop", "Destroy"])
async def test_a_wish_for_what_is_not_there_is_not_found(instances, method):
    with pytest.raises(GRPCError) as caught:
        await getattr(instances, method)(pb.InstanceIdentifier(id="nobody"))
    assert caught.value.status is Code.NOT_FOUND


async def test_what_is_over_cannot_be_started_again(instances, served):
    await running(served)
    served.instances.become("web-1", Status.TERMINATED)
    served.instances.put(replace(served.instances.all["web-1"], desired=Desired.STOPPED))
    with pytest.raises(GRPCError, match="TERMINATED, which is final") as caught:
        await instances.Start(pb.InstanceIdentifier(id="web-1"))
    assert caught.value.status is Code.FAILED_PRECONDITION


async def test_an_image_from_a_path_on_the_node_takes_an_admin(served):
    message = pb.Instance(name="web", uri="rootfs:/srv/web")
    pair = served.authority.issue("somebody", "deployer")
    line = dial(f"localhost:{served.port}", served.authority.client_context(pair))
    try:
        with pytest.raises(GRPCError, match="only an admin") as caught:
            await InstanceServiceStub(line).Create(message)
        assert caught.value.status is Code.PERMISSION_DENIED
        async with creating(InstanceServiceStub(line)) as stream:
            assert (await stream.recv_message()).id == "web-1"
    finally:
        line.close()
    assert list(served.instances.all) == ["web-1"]


# setInstanceStatus


@pytest.mark.parametrize("steps", [[], [Status.SCHEDULED]])
async def test_a_message_without_a_status_says_running_and_makes_nobody_run(channel, served, steps):
    await served.instances.create(spec_of(WEB), actor="somebody", id="web-1")
    served.instances.become("web-1", *steps)
    with pytest.raises(GRPCError, match="cannot become RUNNING") as caught:
        await SchedulerServiceStub(channel).setInstanceStatus(a.InstanceStatus(id="web-1"))
    assert caught.value.status is Code.FAILED_PRECONDITION
    assert served.instances.all["web-1"].observed.status is not Status.RUNNING


async def test_a_repeat_is_taken_whatever_the_status_is(served, tell):
    await served.instances.create(spec_of(WEB), actor="somebody", id="web-1")
    await tell("SCHEDULING")
    for steps in ([Status.SCHEDULED], [Status.STARTING], [Status.RUNNING], [Status.STOPPING]):
        served.instances.become("web-1", *steps)
        await tell(steps[-1])
    served.instances.become("web-1", Status.DESTROYING)
    served.instances.put(served.instances.all["web-1"].wish(Desired.DESTROYED))
    await tell("DESTROYING")


@pytest.mark.parametrize(
    ("steps", "status"),
    [
        ([], "SCHEDULING"),
        ([], "SCHEDULED"),
        ([], "STOPPED"),
        ([], "FAILED"),
        ([Status.STOPPING], "RUNNING"),
        ([Status.STOPPING, Status.STOPPED], "RUNNING"),
        ([Status.STOPPING, Status.STOPPED], "TERMINATED"),
        ([Status.CRASHED], "RUNNING"),
        ([Status.TERMINATED], "RUNNING"),
        ([Status.TERMINATED], "FAILED"),
    ],
)
async def test_a_transition_that_cannot_be_is_refused_and_changes_nothing(served, tell, steps, status):
    await running(served)
    served.instances.become("web-1", *steps)
    before = served.instances.all["web-1"]
    with pytest.raises(GRPCError) as caught:
        await tell(status)
    assert caught.value.status is Code.FAILED_PRECONDITION
    assert served.instances.all["web-1"] == before


async def test_what_is_not_said_of_an_instance_stays(served, tell):
    await running(served)
    used = Room(memory=Megabytes(64))
    served.instances.used["web-1"] = used
    before = served.instances.all["web-1"]
    await tell("RUNNING", description="still well")
    after = served.instances.all["web-1"]
    assert (after.spec, after.ip, after.restarts, after.node) == (
        *(before.spec, "10.64.0.2", 3),
        before.node,
    )
    assert served.instances.usage("web-1") == used
    assert (after.observed.reason, after.observed.actor) == ("still well", f"uid:{os.getuid()}")


async def test_what_is_said_of_use_and_exit_is_taken(served, tell):
    await running(served)
    await tell("RUNNING", resource=a.Resource(usage=a.ResourceSummary(memory=9)))
    assert served.instances.usage("web-1") == Room(memory=Megabytes(9))
    await tell("CRASHED", exit_code=0)
    assert served.instances.all["web-1"].observed.exit_code == 0


async def test_a_status_of_an_instance_that_is_not_there_is_not_found(tell):
    with pytest.raises(GRPCError) as caught:
        await tell("RUNNING")
    assert caught.value.status is Code.NOT_FOUND


async def test_a_node_tells_only_of_what_it_has(served):
    await running(served, node="node-1")
    for node, code in (("node-1", None), ("node-2", Code.PERMISSION_DENIED)):
        pair = served.authority.issue(node, "node")
        line = dial(f"localhost:{served.port}", served.authority.client_context(pair))
        told = None
        try:
            await SchedulerServiceStub(line).setInstanceStatus(
                a.InstanceStatus(id="web-1", status="RUNNING", description=node)
            )
        except GRPCError as error:
            told = error.status
        finally:
            line.close()
        assert told is code
    assert served.instances.all["web-1"].observed.reason == "node-1"
    assert served.instances.all["web-1"].observed.actor == "node/node-1"


async def test_a_report_that_a_newer_copy_overtook_is_refused(served, tell):
    await running(served)
    stale = served.instances.all["web-1"]
    served.instances.get = lambda id: stale  # what it was, a moment ago
    served.instances.put(replace(stale, generation=stale.generation + 1))
    with pytest.raises(GRPCError, match="generation 1 is over") as caught:
        await tell("STOPPING")
    assert caught.value.status is Code.FAILED_PRECONDITION

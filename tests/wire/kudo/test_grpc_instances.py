"""InstanceService and setInstanceStatus: wishes, streams, what is refused, and what stays as it is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from grpclib.client import Stream
from grpclib.const import Status as Code
from grpclib.exceptions import GRPCError
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.images import ImageAccess
from skerry.model.resources import Megabytes, Resources
from skerry.model.settings import FleetSettings
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.transport.grpc.channels import dial
from skerry.transport.proto import kudo_controller_pb2 as a
from skerry.transport.proto import kudo_scheduler_pb2 as pb
from skerry.transport.proto.kudo_services_grpc import InstanceServiceStub, SchedulerServiceStub
from skerry.wire.kudo.grpc_scheduler_messages import decode_spec
from tests.support.waiting import eventually
from tests.transport.grpc.fakes import FakeIdentity
from tests.wire.kudo.grpc_fakes import FakeInstances, FakeNodes
from tests.wire.kudo.grpc_serving import SETTINGS, serving

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


async def running(served, node: str | None = "node-1") -> None:
    """web-1, on a node; without one, nobody but those who call is there to say how it is."""
    await served.instances.create(decode_spec(WEB, ImageAccess.REGISTRIES), actor="somebody", id="web-1")
    if node is None:
        served.instances.become("web-1", InstanceStatus.SCHEDULED)
    else:
        served.instances.bind("web-1", node)
    served.instances.become("web-1", InstanceStatus.STARTING, InstanceStatus.RUNNING)


async def test_the_first_message_is_the_status_now_and_comes_at_once(instances):
    async with creating(instances) as stream:
        first = await stream.recv_message()
    assert (first.id, first.status, first.statusDescription) == ("web-1", pb.SCHEDULING, "waits for a node")


@pytest.mark.parametrize(("sent", "is_kept"), [("create-1", True), ("two words", False), ("x" * 65, False)])
async def test_an_instance_carries_the_id_of_the_request_or_one_that_is_made(
    instances, served, sent, is_kept
):
    async with instances.Create.open(metadata={"x-request-id": sent}) as stream:
        await stream.send_message(WEB, end=True)
        await stream.recv_message()
        await stream.cancel()
    made = served.instances.all["web-1"].request_id
    assert made
    assert (made == sent) is is_kept


async def test_an_instance_without_an_id_gets_one(instances, served):
    async with creating(instances, pb.Instance(name="web", uri="example.org/web")) as stream:
        first = await stream.recv_message()
    assert first.id == "assigned-0"
    assert list(served.instances.all) == ["assigned-0"]


async def test_an_instance_without_a_name_gets_one_and_is_found_again_by_its_id(instances, served):
    for id in ("web-1", ""):
        async with creating(instances, pb.Instance(id=id, uri="example.org/team/web:1")) as stream:
            await stream.recv_message()
    names = [one.spec.name for one in served.instances.all.values()]
    assert [name.rpartition("-")[0] for name in names] == ["web", "web"]
    assert names[0] != names[1]
    async with creating(instances, pb.Instance(id="web-1", uri="example.org/team/web:1")) as stream:
        assert (await stream.recv_message()).id == "web-1"
    assert len(served.instances.all) == 2


@pytest.mark.parametrize(
    ("steps", "last"),
    [
        (
            [
                InstanceStatus.SCHEDULED,
                InstanceStatus.STARTING,
                InstanceStatus.RUNNING,
                InstanceStatus.TERMINATED,
            ],
            pb.TERMINATED,
        ),
        ([InstanceStatus.SCHEDULED, InstanceStatus.STARTING, InstanceStatus.FAILED], pb.FAILED),
        ([InstanceStatus.DESTROYING, InstanceStatus.TERMINATED], pb.TERMINATED),
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
        served.instances.become("web-1", InstanceStatus.CRASHED, reason="exited with 3", exit_code=3)
        crashed = await stream.recv_message()
        served.instances.become("web-1", InstanceStatus.STARTING)
        assert (await stream.recv_message()).status == pb.STARTING
    assert (crashed.status, crashed.reason, crashed.exit_code) == (pb.FAILED, "CRASHED", 3)
    assert crashed.statusDescription == "CRASHED: exited with 3"


async def test_creating_it_again_follows_the_one_that_is_there(instances, served):
    await running(served)
    async with creating(instances) as one, creating(instances) as two:
        assert [(await stream.recv_message()).status for stream in (one, two)] == [pb.RUNNING] * 2
        served.instances.become("web-1", InstanceStatus.STOPPING)
        assert [(await stream.recv_message()).status for stream in (one, two)] == [pb.STOPPING] * 2
    assert len(served.instances.all) == 1


async def over(served) -> None:
    """web-1, which has failed."""
    await running(served)
    served.instances.become(
        "web-1", InstanceStatus.CRASHED, InstanceStatus.FAILED, reason="no restart is left"
    )


async def repeat_like_kudos_controller(instances: InstanceServiceStub, told: list[int]) -> None:
    """Create, read to the end, and create again at once unless the last status was TERMINATED."""
    while True:
        last = (await instances.Create(WEB))[-1].status
        told.append(last)
        if last == pb.TERMINATED:
            return


async def test_one_that_is_over_is_told_at_once_and_its_first_stream_ends(instances, served):
    await over(served)
    assert [message.status for message in await instances.Create(WEB)] == [pb.FAILED]


async def test_a_stream_that_is_repeated_too_soon_tells_the_state_at_once_and_stays_open(instances, served):
    await over(served)
    await instances.Create(WEB)
    async with creating(instances) as stream:
        again = await stream.recv_message()
        assert (again.status, again.statusDescription) == (pb.FAILED, "no restart is left")
        await eventually(lambda: served.instances.held == 1)
    await eventually(lambda: served.instances.held == 0)  # as the client has hung up


async def test_kudos_controller_makes_no_hot_loop_of_an_instance_that_has_failed(instances, served):
    await over(served)
    told: list[int] = []
    controller = asyncio.ensure_future(repeat_like_kudos_controller(instances, told))
    await eventually(lambda: served.instances.held == 1)
    assert told == [pb.FAILED]
    served.instances.remove("web-1")
    await controller
    assert told == [pb.FAILED, pb.TERMINATED]  # its id is free, and nobody makes it again by mistake


async def test_a_held_stream_ends_by_itself_after_its_back_off(authority):
    fakes, quick = FakeInstances(), FleetSettings(restart_base_s=0.01)
    await fakes.create(decode_spec(WEB, ImageAccess.REGISTRIES), actor="somebody", id="web-1")
    fakes.become("web-1", InstanceStatus.SCHEDULED, InstanceStatus.STARTING, InstanceStatus.FAILED)
    async with serving(fakes, FakeNodes(), FakeIdentity(), authority, quick) as port:
        line = dial(f"127.0.0.1:{port}", None)
        for _ in range(3):
            assert [message.status for message in await InstanceServiceStub(line).Create(WEB)] == [pb.FAILED]
        line.close()


async def test_a_server_that_stops_does_not_wait_for_held_streams(authority):
    fakes = FakeInstances()
    await fakes.create(decode_spec(WEB, ImageAccess.REGISTRIES), actor="somebody", id="web-1")
    fakes.become("web-1", InstanceStatus.SCHEDULED, InstanceStatus.STARTING, InstanceStatus.FAILED)
    async with serving(fakes, FakeNodes(), FakeIdentity(), authority) as port:
        line = dial(f"127.0.0.1:{port}", None)
        await InstanceServiceStub(line).Create(WEB)
        held = asyncio.ensure_future(InstanceServiceStub(line).Create(WEB))
        await eventually(lambda: fakes.held == 1)
    with pytest.raises(GRPCError, match="the server is stopping"):
        await held
    line.close()
    assert fakes.held == 0


async def test_what_runs_is_told_again_at_the_interval_of_reports(instances, served):
    await running(served)
    async with creating(instances) as stream:
        await stream.recv_message()
    assert served.instances.repeats == {SETTINGS.report_s}


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
    assert served.instances.usage("web-1") == Resources()


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
    [("Start", DesiredStatus.RUNNING), ("Stop", DesiredStatus.STOPPED), ("Destroy", DesiredStatus.DESTROYED)],
)
async def test_a_wish_is_taken_twice_and_is_the_callers(instances, served, method, desired):
    await running(served)
    for _ in range(2):
        await getattr(instances, method)(pb.InstanceIdentifier(id="web-1"))
    assert served.instances.all["web-1"].desired is desired
    assert {actor for what, _, actor in served.instances.desired_changes if what == desired.lower()} == {
        f"uid:{os.getuid()}"
    }


@pytest.mark.parametrize("method", ["Start", "Stop", "Destroy"])
async def test_a_wish_for_what_is_not_there_is_not_found(instances, method):
    with pytest.raises(GRPCError) as caught:
        await getattr(instances, method)(pb.InstanceIdentifier(id="nobody"))
    assert caught.value.status is Code.NOT_FOUND


async def test_what_is_over_cannot_be_started_again(instances, served):
    await running(served)
    served.instances.become("web-1", InstanceStatus.TERMINATED)
    served.instances.put(replace(served.instances.all["web-1"], desired=DesiredStatus.STOPPED))
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


@pytest.mark.parametrize("steps", [[], [InstanceStatus.SCHEDULED]])
async def test_a_message_without_a_status_says_running_and_makes_nobody_run(channel, served, steps):
    await served.instances.create(decode_spec(WEB, ImageAccess.REGISTRIES), actor="somebody", id="web-1")
    served.instances.become("web-1", *steps)
    with pytest.raises(GRPCError, match="cannot become RUNNING") as caught:
        await SchedulerServiceStub(channel).setInstanceStatus(a.InstanceStatus(id="web-1"))
    assert caught.value.status is Code.FAILED_PRECONDITION
    assert served.instances.all["web-1"].observed.status is not InstanceStatus.RUNNING


async def test_a_repeat_is_taken_whatever_the_status_is(served, tell):
    await served.instances.create(decode_spec(WEB, ImageAccess.REGISTRIES), actor="somebody", id="web-1")
    await tell("SCHEDULING")
    for steps in (
        [InstanceStatus.SCHEDULED],
        [InstanceStatus.STARTING],
        [InstanceStatus.RUNNING],
        [InstanceStatus.STOPPING],
    ):
        served.instances.become("web-1", *steps)
        await tell(steps[-1])
    served.instances.become("web-1", InstanceStatus.DESTROYING)
    served.instances.put(served.instances.all["web-1"].with_desired(DesiredStatus.DESTROYED))
    await tell("DESTROYING")


@pytest.mark.parametrize(
    ("steps", "status"),
    [
        ([], "SCHEDULING"),
        ([], "SCHEDULED"),
        ([], "STOPPED"),
        ([], "FAILED"),
        ([InstanceStatus.STOPPING], "RUNNING"),
        ([InstanceStatus.STOPPING, InstanceStatus.STOPPED], "RUNNING"),
        ([InstanceStatus.STOPPING, InstanceStatus.STOPPED], "TERMINATED"),
        ([InstanceStatus.CRASHED], "RUNNING"),
        ([InstanceStatus.TERMINATED], "RUNNING"),
        ([InstanceStatus.TERMINATED], "FAILED"),
    ],
)
async def test_a_transition_that_cannot_be_is_refused_and_changes_nothing(served, tell, steps, status):
    await running(served, node=None)
    served.instances.become("web-1", *steps)
    before = served.instances.all["web-1"]
    with pytest.raises(GRPCError) as caught:
        await tell(status)
    assert caught.value.status is Code.FAILED_PRECONDITION
    assert served.instances.all["web-1"] == before


async def test_what_is_not_said_of_an_instance_stays(served, tell):
    await running(served, node=None)
    served.instances.put(replace(served.instances.all["web-1"], ip="10.64.0.2", restarts=3))
    used = Resources(memory=Megabytes(64))
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
    await running(served, node=None)
    await tell("RUNNING", resource=a.Resource(usage=a.ResourceSummary(memory=9)))
    assert served.instances.usage("web-1") == Resources(memory=Megabytes(9))
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


@pytest.mark.parametrize("status", ["STARTING", "STOPPING", "CRASHED", "TERMINATED", "DESTROYING"])
async def test_nobody_says_of_an_instance_on_a_node_what_the_node_does_not_see(served, tell, status):
    await running(served)
    before = served.instances.all["web-1"]
    with pytest.raises(GRPCError, match="on node node-1, which reports it by its own session") as caught:
        await tell(status, description="a lie")
    assert caught.value.status is Code.FAILED_PRECONDITION
    await tell("RUNNING", description="another", resource=a.Resource(usage=a.ResourceSummary(memory=9)))
    assert served.instances.all["web-1"] == before


async def test_a_report_that_a_newer_copy_overtook_is_refused(served, tell):
    await running(served, node=None)
    stale = served.instances.all["web-1"]
    served.instances.get = lambda id: stale  # what it was, a moment ago
    served.instances.put(replace(stale, generation=stale.generation + 1))
    with pytest.raises(GRPCError, match="generation 1 is over") as caught:
        await tell("STOPPING")
    assert caught.value.status is Code.FAILED_PRECONDITION

"""Nodes that lie, babble, flood or do not read; and callers that are no nodes."""

from __future__ import annotations

import asyncio
import time

import pytest
from grpclib.const import Status as GrpcStatus
from grpclib.exceptions import GRPCError

from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.node_messages import NodeHello, OrderUpdate, SessionHeartbeat
from skerry.model.streams import LogStreamRequest
from skerry.transport.links.nodes import service, session_handler
from skerry.transport.proto import nodes_pb2 as pb
from skerry.transport.proto.nodes_grpc import NodeServiceStub
from tests.support.fleets import FACTS, ROOM, instance_on
from tests.support.waiting import PATIENCE_S, eventually
from tests.transport.links.nodes.test_session import next_of

HELLO = NodeHello("edge", FACTS, ROOM)


async def refusal_of(
    served, *messages: pb.FromNode, node: str | None = "n1", role: str = "node"
) -> GRPCError:
    """How the server ends a session in which this is said."""
    return await refusal_by(NodeServiceStub(served.channel(node, role)).Session, *messages)


async def refusal_by(method, *messages, **options) -> GRPCError:
    async def speak() -> None:
        async with asyncio.timeout(PATIENCE_S), method.open(**options) as stream:
            await stream.send_request()
            for message in messages:
                await stream.send_message(message)
            while await stream.recv_message() is not None:
                pass
            await stream.recv_trailing_metadata()

    with pytest.raises(GRPCError) as caught:
        await speak()
    return caught.value


def hello() -> pb.FromNode:
    return pb.FromNode(hello=pb.Hello(name="edge"))


def reports(*many: pb.Report, sequence: int = 1) -> pb.FromNode:
    return pb.FromNode(reports=pb.Reports(sequence=sequence, reports=many))


# who


@pytest.mark.parametrize("role", ["admin", "deployer", "viewer", "invoker"])
async def test_only_nodes_have_sessions(served, role):
    error = await refusal_of(served, hello(), role=role)
    assert error.status is GrpcStatus.PERMISSION_DENIED
    assert not served.fleet.nodes.list()


async def test_the_user_who_runs_the_server_is_no_node(served):
    error = await refusal_of(served, hello(), node=None)
    assert error.status is GrpcStatus.PERMISSION_DENIED


async def test_a_join_token_is_no_node_yet(served):
    session = NodeServiceStub(served.channel(None)).Session
    error = await refusal_by(session, hello(), metadata={"authorization": "Bearer node"})
    assert error.status is GrpcStatus.FAILED_PRECONDITION
    assert "join first" in (error.message or "")


async def test_a_node_speaks_only_for_itself(served):
    """There is no word by which it could name another: whose reports they are is said by its certificate."""
    await served.fleet.bind(instance_on("victim", "i1"))
    thief = await served.connect("thief")
    await thief.hello(NodeHello("victim", FACTS, ROOM))
    assert {node.id for node in served.fleet.nodes.list()} == {"thief"}
    whole = await next_of(thief.messages())
    assert isinstance(whole, OrderUpdate)
    assert whole.orders == ()


async def test_a_node_does_not_get_at_the_tunnels_of_another(served):
    victim, thief = await served.connect("victim"), await served.connect("thief")
    await victim.hello(HELLO)
    await thief.hello(HELLO)
    messages = victim.messages()
    await next_of(messages)
    opening = served.sessions.open_tunnel(NodeId("victim"), InstanceId("i1"), LogStreamRequest())
    entering = asyncio.ensure_future(opening.__aenter__())
    asked = await next_of(messages)
    with pytest.raises(errors.NotFound):
        async with thief.tunnel(asked.id):
            pass
    async with victim.tunnel(asked.id) as theirs:
        ours = await entering
        await theirs.send(b"mine")
        assert await ours.receive() == b"mine"
        await opening.__aexit__(None, None, None)


async def test_a_revoked_node_is_let_go_at_its_next_word(served):
    node = await served.connect("n1")
    await node.hello(HELLO)
    messages = node.messages()
    await next_of(messages)
    served.revoked.add("")  # the serial that the fake identity gives to everybody
    await node.send(SessionHeartbeat())
    with pytest.raises(errors.Unauthenticated, match="no longer counts"):
        await next_of(messages)


# what


@pytest.mark.parametrize(
    "first",
    [
        pb.FromNode(),
        pb.FromNode(heartbeat=pb.Heartbeat()),
        pb.FromNode(reports=pb.Reports(sequence=1)),
        pb.FromNode(hello=pb.Hello(name="x\n")),
        pb.FromNode(hello=pb.Hello(name="x", facts=pb.Facts(kernel="y" * 1000))),
        pb.FromNode(hello=pb.Hello(name="x", room=pb.Room(cpu_milli=2**32 - 1))),
        pb.FromNode(hello=pb.Hello(name="x", labels={"no good": "y"})),
        pb.FromNode(hello=pb.Hello(name="x", labels={f"k{n}": "v" for n in range(100)})),
    ],
    ids=["empty", "heartbeat", "reports", "name", "facts", "room", "label", "labels"],
)
async def test_a_session_that_begins_badly_is_refused_and_leaves_nothing(served, first):
    error = await refusal_of(served, first)
    assert error.status is GrpcStatus.INVALID_ARGUMENT
    assert not served.fleet.nodes.list()
    assert not served.sessions._sessions


async def test_a_session_without_a_word_is_ended(served, monkeypatch):
    monkeypatch.setattr(service, "_FIRST_MESSAGE_S", 0.05)
    error = await refusal_of(served)
    assert error.status is GrpcStatus.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    "bad",
    [
        pb.FromNode(),
        reports(pb.Report(instance="../etc", status=pb.STATUS_RUNNING)),
        reports(pb.Report(instance="i1")),
        reports(pb.Report(instance="i1", status=99)),
        reports(pb.Report(instance="i1", status=pb.STATUS_RUNNING, at=float("nan"))),
        reports(pb.Report(instance="i1", status=pb.STATUS_RUNNING, ip="x" * 65)),
        reports(pb.Report(instance="i1", status=pb.STATUS_RUNNING, usage=pb.Room(memory_mb=2**31))),
        reports(sequence=0),
    ],
    ids=["empty", "instance", "no status", "status", "time", "ip", "usage", "sequence"],
)
async def test_garbage_in_a_session_ends_it_and_changes_nothing(served, bad):
    error = await refusal_of(served, hello(), bad)
    assert error.status is GrpcStatus.INVALID_ARGUMENT
    assert not served.instances.reports
    await eventually(lambda: not served.sessions._sessions)


async def test_too_many_reports_at_once_are_refused(served):
    many = [pb.Report(instance=f"i{n}", status=pb.STATUS_RUNNING) for n in range(1001)]
    error = await refusal_of(served, hello(), reports(*many))
    assert error.status is GrpcStatus.RESOURCE_EXHAUSTED
    assert not served.instances.reports


async def test_an_oversize_message_is_refused(served):
    error = await refusal_of(
        served, hello(), reports(pb.Report(instance="i1", status=pb.STATUS_RUNNING, reason="x" * (5 << 20)))
    )
    assert error.status is GrpcStatus.RESOURCE_EXHAUSTED


async def test_a_long_or_odd_reason_is_cut_and_not_refused(served):
    """The node would send it again for ever."""
    node = await served.connect("n1")
    async with NodeServiceStub(served.channel("n2")).Session.open() as stream:
        await stream.send_message(hello())
        await stream.send_message(
            reports(pb.Report(instance="i1", status=pb.STATUS_FAILED, reason="\x1b[31m\n" + "x" * 5000))
        )
        await eventually(lambda: served.instances.reports)
        await stream.cancel()
    [(_, (report,))] = served.instances.reports
    assert report.reason.startswith(" [31m x")
    assert len(report.reason) == 1000
    await node.hello(HELLO)


async def test_a_node_that_floods_is_slowed_down_and_others_are_served(served, monkeypatch):
    monkeypatch.setattr(session_handler, "_MESSAGES_PER_S", 5.0)
    heard, plain = 0, served.sessions.received

    def count(session) -> None:
        nonlocal heard
        heard += session.node == "flood"
        plain(session)

    monkeypatch.setattr(served.sessions, "received", count)
    flood = await served.connect("flood")
    await flood.hello(HELLO)
    began = time.monotonic()
    for _ in range(100):
        await flood.send(SessionHeartbeat())
    quiet = await served.connect("quiet")
    await quiet.hello(HELLO)
    assert isinstance(await next_of(quiet.messages()), OrderUpdate)
    await eventually(lambda: heard >= 8)
    assert heard <= 6 + 5 * (time.monotonic() - began)  # a second's worth at once, and one under way


async def test_a_node_that_does_not_read_costs_no_more_than_its_orders_and_is_let_go(served, monkeypatch):
    monkeypatch.setattr(session_handler, "CLOSE_GRACE_S", 0.05)
    async with NodeServiceStub(served.channel("n1")).Session.open() as stream:
        await stream.send_message(hello())
        await eventually(lambda: served.sessions._sessions)
        session = served.sessions._sessions[NodeId("n1")]
        for number in range(400):
            await served.fleet.bind(instance_on("n1", f"i{number}", generation=1))
        assert len(session._orders) <= 256
        session.end("test")
        await eventually(lambda: not served.sessions._sessions)
        await stream.cancel()


# tunnels


@pytest.mark.parametrize(
    ("frames", "status"),
    [
        ([pb.Frame(data=b"x")], GrpcStatus.INVALID_ARGUMENT),
        ([pb.Frame()], GrpcStatus.INVALID_ARGUMENT),
        ([pb.Frame(open="")], GrpcStatus.NOT_FOUND),
        ([pb.Frame(open="0" * 32)], GrpcStatus.NOT_FOUND),
    ],
)
async def test_a_tunnel_that_nobody_asked_for_is_refused(served, frames, status):
    error = await refusal_by(NodeServiceStub(served.channel()).Tunnel, *frames)
    assert error.status is status

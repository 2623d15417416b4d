"""Tunnels by way of another server: somebody at one, the node at another, and what passes between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from grpclib.const import Status as GrpcStatus
from grpclib.exceptions import GRPCError

from skerry.control.cluster.servers import ServerDirectory
from skerry.control.sessions.node_session import NodeSessions
from skerry.control.sessions.tunnels import TunnelEndpoint
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.node_messages import NodeHello, TunnelRequest
from skerry.model.settings import FleetSettings
from skerry.model.streams import MAX_FRAME, ExecStreamRequest, LogStreamRequest, StreamRequest
from skerry.transport.links.nodes.tunnel_router import TunnelRouter
from skerry.transport.proto import nodes_pb2 as pb
from skerry.transport.proto.nodes_grpc import ServerServiceStub
from tests.control.sessions.test_node_session import FakeInstances
from tests.support.certificates import TestAuthority
from tests.support.fleets import FACTS, ROOM, fleet_on
from tests.support.waiting import PATIENCE_S, eventually
from tests.transport.links.nodes.conftest import Served
from tests.transport.links.nodes.test_session import next_of

N1, I1, LOGS = NodeId("n1"), InstanceId("i1"), LogStreamRequest()


class Elsewhere:
    """Another server than the one that nodes connect to."""

    def __init__(self, sessions: NodeSessions, servers: ServerDirectory, authority: TestAuthority) -> None:
        self._sessions = sessions
        self._servers = servers
        self._authority = authority

    def ways(self, role: str = "admin") -> TunnelRouter:
        """From there, with a certificate of this role."""
        pair = self._authority.issue("local-admin", role)
        return TunnelRouter(self._sessions, self._servers, self._authority.client_context(pair))

    def knows(self, node: NodeId) -> bool:
        return self._sessions.elsewhere(node) is not None


@pytest.fixture
async def elsewhere(served: Served, authority: TestAuthority) -> AsyncIterator[Elsewhere]:
    store, clock = served.fleet.store, served.fleet.clock
    async with AsyncExitStack() as undo:
        fleet = await undo.enter_async_context(fleet_on(store, clock, server="http://two:8080"))
        sessions = NodeSessions(fleet.nodes, FakeInstances(fleet.instance_table), FleetSettings())
        one = ServerDirectory(store, name="http://one:8080", address=f"127.0.0.1:{served.port}", lease_s=60)
        two = ServerDirectory(store, name="http://two:8080", address="127.0.0.1:1", lease_s=60)
        undo.push_async_callback(cancel_and_wait, [asyncio.ensure_future(each.run()) for each in (one, two)])
        await eventually(lambda: len(two.addresses) == 2)
        yield Elsewhere(sessions, two, authority)


@asynccontextmanager
async def joined(served: Served, elsewhere: Elsewhere, ask: StreamRequest = LOGS) -> AsyncIterator[tuple]:
    """The end of who asked elsewhere, the node's end, what the node was asked, and how to hang up."""
    node = await served.connect("n1")
    await node.hello(NodeHello("edge", FACTS, ROOM))
    messages = node.messages()
    await next_of(messages)
    await eventually(lambda: elsewhere.knows(N1))
    opening = elsewhere.ways().open_tunnel(N1, I1, ask)
    entering = asyncio.ensure_future(opening.__aenter__())
    asked = await next_of(messages)
    async with node.tunnel(asked.id) as theirs, AsyncExitStack() as undo:
        ours = await entering
        undo.push_async_exit(opening)
        yield ours, theirs, asked, undo.aclose


async def test_a_node_is_asked_for_exactly_what_somebody_wants_elsewhere(served, elsewhere):
    ask = ExecStreamRequest(("sh", "-c", "echo ü"), ("A=b",), "root", "/tmp", True, True, 24, 80)
    async with joined(served, elsewhere, ask) as (_, _, asked, _):
        assert asked == TunnelRequest(asked.id, I1, ask)
        assert asked.id


async def test_frames_pass_both_ways_and_so_does_the_end(served, elsewhere):
    async with joined(served, elsewhere) as (ours, theirs, _, _):
        await ours.send(b"\x00\xff")
        assert await theirs.receive() == b"\x00\xff"
        await theirs.send(b"x" * MAX_FRAME)
        assert await ours.receive() == b"x" * MAX_FRAME
        await ours.end()
        assert await theirs.receive() is None
        await theirs.send(b"last")
        await theirs.end()
        assert [await ours.receive(), await ours.receive()] == [b"last", None]


async def test_what_goes_wrong_at_the_node_is_told_as_what_it_is(served, elsewhere):
    async with joined(served, elsewhere) as (ours, theirs, _, _):
        await theirs.fail(errors.NotFound("there is no instance 'i1' here"))
        with pytest.raises(errors.NotFound, match="no instance 'i1'"):
            await ours.receive()


async def test_the_node_learns_when_who_asked_has_gone(served, elsewhere):
    async with joined(served, elsewhere) as (_, theirs, _, hang_up):
        await hang_up()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(errors.Unavailable):
                await theirs.receive()
    await eventually(lambda: not served.sessions.tunnels._open)


async def test_a_node_that_is_connected_here_is_reached_without_a_detour(served, authority):
    node = await served.connect("n1")
    await node.hello(NodeHello("edge", FACTS, ROOM))
    messages = node.messages()
    await next_of(messages)
    nobody = ServerDirectory(served.fleet.store, name="http://one:8080", address="127.0.0.1:1", lease_s=60)
    tls = authority.client_context(authority.issue("local-admin", "admin"))
    opening = TunnelRouter(served.sessions, nobody, tls).open_tunnel(N1, I1, LOGS)
    entering = asyncio.ensure_future(opening.__aenter__())
    async with node.tunnel((await next_of(messages)).id):
        assert isinstance(await entering, TunnelEndpoint)
        await opening.__aexit__(None, None, None)


async def test_a_node_that_is_connected_nowhere_is_unavailable(elsewhere):
    with pytest.raises(errors.Unavailable, match="is not connected"):
        async with elsewhere.ways().open_tunnel(N1, I1, LOGS):
            pass


async def test_a_server_does_not_pass_on_what_another_passed_on(served, authority):
    """It is asked for a node that it knows to be elsewhere: it names that server, and goes no further."""
    async with fleet_on(served.fleet.store, served.fleet.clock, server="http://three:8080") as three:
        third = NodeSessions(three.nodes, FakeInstances(three.instance_table), FleetSettings())
        async with third.connect("n1", NodeHello("edge", FACTS, ROOM)):
            await eventually(lambda: served.fleet.nodes.heartbeat(N1))
            stub = ServerServiceStub(served.channel("local-admin", "admin"))
            wanted = pb.Reach(node="n1", tunnel=pb.OpenTunnel(instance="i1", logs=pb.LogsAsk()))
            with pytest.raises(GRPCError, match="http://three:8080; ask there"):
                await stub.Reach([pb.Frame(reach=wanted)])


@pytest.mark.parametrize("role", ["deployer", "node", "viewer"])
async def test_only_admins_reach_what_is_elsewhere(served, elsewhere, role):
    node = await served.connect("n1")
    await node.hello(NodeHello("edge", FACTS, ROOM))
    await eventually(lambda: elsewhere.knows(N1))
    with pytest.raises(errors.Forbidden):
        async with elsewhere.ways(role).open_tunnel(N1, I1, LOGS):
            pass


@pytest.mark.parametrize(
    "frame",
    [
        pb.Frame(open="id"),
        pb.Frame(reach=pb.Reach(node="n1")),
        pb.Frame(reach=pb.Reach(node="", tunnel=pb.OpenTunnel(instance="i1", logs=pb.LogsAsk()))),
        pb.Frame(reach=pb.Reach(node="n1", tunnel=pb.OpenTunnel(instance="../", logs=pb.LogsAsk()))),
    ],
    ids=["no reach", "no ask", "no node", "no instance"],
)
async def test_what_makes_no_sense_is_invalid(served, frame):
    stub = ServerServiceStub(served.channel("local-admin", "admin"))
    with pytest.raises(GRPCError) as refused:
        await stub.Reach([frame])
    assert refused.value.status is GrpcStatus.INVALID_ARGUMENT

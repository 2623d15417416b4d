"""The server's half of `skerry.nodes.v1`: calls of nodes become sessions and ends of tunnels.

A node is identified only by the certificate of its connection. `skerry.control.sessions.node_session` has the
sessions, `skerry.transport.links.nodes.session_handler` their messages; here the first message must come
soon, and a node whose certificate was revoked is disconnected at its next message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

import structlog
from grpclib.server import Stream

from skerry.control.sessions import node_session
from skerry.control.sessions.tunnels import TunnelEndpoint
from skerry.kit.clock import Clock
from skerry.kit.tasks import run_together
from skerry.model import errors, ids
from skerry.model.callers import AuthMethod, Caller
from skerry.model.ids import InstanceId, NodeId
from skerry.transport.grpc.call_streams import answering_of, caller_of, peer_address
from skerry.transport.links.nodes import messages, protocol
from skerry.transport.links.nodes.session_handler import CLOSE_GRACE_S, handle_session
from skerry.transport.proto import nodes_pb2 as pb
from skerry.transport.proto.nodes_grpc import NodeServiceBase, ServerServiceBase
from skerry.transport.tunnels import tunnel_codec

log = structlog.get_logger(__name__)

M = TypeVar("M")
R = TypeVar("R")

_FIRST_MESSAGE_S: Final = 10.0


class NodeSessionService(NodeServiceBase):
    """Serves `skerry.nodes.v1.NodeService`. `is_revoked` is whether the certificate of a serial is."""

    def __init__(
        self, nodes: node_session.NodeSessions, clock: Clock, *, is_revoked: Callable[[str], bool]
    ) -> None:
        self._sessions = nodes
        self._clock = clock
        self._is_revoked = is_revoked

    async def Session(self, stream: Stream[pb.FromNode, pb.ToNode]) -> None:  # noqa: N802 - gRPC's name
        caller = caller_of(stream)
        node = calling_node(caller)
        first = await _first_of(stream)
        if first.WhichOneof("message") != "hello":
            raise errors.Invalid("the first message of a session must be a hello", field="hello")
        hello, address = messages.decode_hello(first.hello), peer_address(stream)
        protocol.check_node_version(hello.facts.version)
        async with self._sessions.connect(node, hello, address) as session:
            await handle_session(
                stream,
                self._sessions,
                session,
                self._clock,
                check=lambda: self._check(caller),
                answering=answering_of(stream),
            )

    async def Tunnel(self, stream: Stream[pb.Frame, pb.Frame]) -> None:  # noqa: N802 - gRPC's name
        node = calling_node(caller_of(stream))
        first = await _first_of(stream)
        if first.WhichOneof("frame") != "open":
            raise errors.Invalid("the first frame of a tunnel must hold its id", field="open")
        async with self._sessions.tunnels.dialled(node, first.open) as end:
            await stream.send_initial_metadata()  # so that the node knows it was accepted
            await _relay(stream, end)

    def _check(self, caller: Caller) -> None:
        if self._is_revoked(caller.serial):
            raise errors.Unauthenticated(
                "the certificate of this session no longer counts; connect again with a new one"
            )


class ServerTunnelService(ServerServiceBase):
    """Serves `skerry.nodes.v1.ServerService`: requests of another server, for the nodes that are connected
    here."""

    def __init__(self, nodes: node_session.NodeSessions) -> None:
        self._sessions = nodes

    async def Reach(self, stream: Stream[pb.Frame, pb.Frame]) -> None:  # noqa: N802 - gRPC's name
        first = await _first_of(stream)
        if first.WhichOneof("frame") != "reach":
            raise errors.Invalid("the first frame must name the instance and the request", field="reach")
        node = NodeId(ids.check_id(first.reach.node, "node"))
        request = tunnel_codec.decode_tunnel(first.reach.tunnel)
        instance = InstanceId(ids.check_id(request.instance, "instance"))
        # Only for nodes that are connected here, so a tunnel passes at most two servers.
        async with self._sessions.open_tunnel(node, instance, request.stream) as end:
            await stream.send_initial_metadata()
            await _relay(stream, end)


async def _relay(stream: Stream[pb.Frame, pb.Frame], end: TunnelEndpoint) -> None:
    """Relay frames between both sides, until both have finished or one is closed."""
    await run_together(_relay_from_server(stream, end), _relay_to_server(stream, end))
    with suppress(TimeoutError):
        await asyncio.wait_for(stream.recv_message(), CLOSE_GRACE_S)  # until it hangs up


async def _relay_from_server(stream: Stream[pb.Frame, pb.Frame], end: TunnelEndpoint) -> None:
    """Relay frames from the calling server, until it has finished."""
    while (frame := await stream.recv_message()) is not None:
        match frame.WhichOneof("frame"):
            case "data":
                await end.send(frame.data)
            case "end":
                break
            case "failure":
                await end.fail(tunnel_codec.decode_failure(frame.failure))
                return
            case _:
                raise errors.Invalid("a frame must hold data, an end or a failure")
    await end.end()


async def _relay_to_server(stream: Stream[pb.Frame, pb.Frame], end: TunnelEndpoint) -> None:
    """Relay frames to the calling server, until there are no more; after a failure the caller ends the
    call."""
    try:
        while (frame := await end.receive()) is not None:
            await stream.send_message(tunnel_codec.encode_data(frame))
    except errors.SkerryError as error:
        await stream.send_message(tunnel_codec.encode_failure(error))
        await asyncio.sleep(CLOSE_GRACE_S)
        raise
    await stream.send_message(tunnel_codec.END)


async def _first_of(stream: Stream[M, R]) -> M:
    try:
        async with asyncio.timeout(_FIRST_MESSAGE_S):
            first = await stream.recv_message()
    except TimeoutError:
        raise errors.TimedOut(f"no message came within {_FIRST_MESSAGE_S:g} s") from None
    if first is None:
        raise errors.Invalid("the call ended before it began; send a message first")
    return first


def calling_node(caller: Caller) -> NodeId:
    """The node of the connection's certificate; a caller with a join token is no node yet."""
    if caller.origin is not AuthMethod.CERTIFICATE or not caller.node:
        raise errors.FailedPrecondition("join first: a node shows the certificate that it gets for its token")
    return NodeId(caller.node)

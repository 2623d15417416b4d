"""The server's half of `skerry.nodes.v1`: calls of nodes become sessions and ends of tunnels.

A node is known by the certificate of its connection, and by nothing that it says: nobody can speak for
another. What a session means is `skerry.control.sessions`, and how it goes on `skerry.wire.nodes.attending`;
here the first message must come soon, and a node whose certificate is revoked is let go at its next word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import structlog
from grpclib.server import Stream

from skerry.control import sessions
from skerry.control.tunnels import End
from skerry.kit.clock import Clock
from skerry.kit.tasks import give_up
from skerry.model import errors, ids
from skerry.model.identity import Caller, Origin
from skerry.model.ids import InstanceId, NodeId
from skerry.wire.grpc.streams import caller_of
from skerry.wire.nodes import messages, tunnels
from skerry.wire.nodes.attending import LAST_WORD_S, attend
from skerry.wire.proto import nodes_pb2 as pb
from skerry.wire.proto.nodes_grpc import NodeServiceBase, ServerServiceBase

log = structlog.get_logger(__name__)

M = TypeVar("M")
R = TypeVar("R")

_FIRST_WORD_S: Final = 10.0


class NodeService(NodeServiceBase):
    """Serves `skerry.nodes.v1.NodeService`. `counts` says whether a certificate of this serial still does."""

    def __init__(self, nodes: sessions.Sessions, clock: Clock, *, counts: Callable[[str], bool]) -> None:
        self._sessions = nodes
        self._clock = clock
        self._counts = counts

    async def Session(self, stream: Stream[pb.FromNode, pb.ToNode]) -> None:  # noqa: N802 - gRPC's name
        caller = caller_of(stream)
        node = _node_of(caller)
        first = await _first_of(stream)
        if first.WhichOneof("message") != "hello":
            raise errors.Invalid("the first message of a session must be a hello", field="hello")
        async with self._sessions.connect(node, messages.hello_of(first.hello)) as session:
            await attend(stream, self._sessions, session, self._clock, check=lambda: self._check(caller))

    async def Tunnel(self, stream: Stream[pb.Frame, pb.Frame]) -> None:  # noqa: N802 - gRPC's name
        node = _node_of(caller_of(stream))
        first = await _first_of(stream)
        if first.WhichOneof("frame") != "open":
            raise errors.Invalid("the first frame of a tunnel must hold its id", field="open")
        async with self._sessions.tunnels.dialled(node, first.open) as end:
            await stream.send_initial_metadata()  # so that the node knows it was let in
            await _pass_on(stream, end)

    def _check(self, caller: Caller) -> None:
        if not self._counts(caller.serial):
            raise errors.Unauthenticated(
                "the certificate of this session no longer counts; connect again with a new one"
            )


class ServerService(ServerServiceBase):
    """Serves `skerry.nodes.v1.ServerService`: what another server asks for, of the nodes that are here."""

    def __init__(self, nodes: sessions.Sessions) -> None:
        self._sessions = nodes

    async def Reach(self, stream: Stream[pb.Frame, pb.Frame]) -> None:  # noqa: N802 - gRPC's name
        first = await _first_of(stream)
        if first.WhichOneof("frame") != "reach":
            raise errors.Invalid("the first frame must say what is to be reached", field="reach")
        node = NodeId(ids.check_id(first.reach.node, "node"))
        asked = tunnels.tunnel_of(first.reach.tunnel)
        instance = InstanceId(ids.check_id(asked.instance, "instance"))
        # Of the nodes that are connected here only, so no tunnel ever goes from server to server to server.
        async with self._sessions.open_tunnel(node, instance, asked.ask) as end:
            await stream.send_initial_metadata()
            await _pass_on(stream, end)


async def _pass_on(stream: Stream[pb.Frame, pb.Frame], end: End) -> None:
    """What comes from either side goes to the other, until both have no more or one is gone."""
    ways = [asyncio.ensure_future(_from_far(stream, end)), asyncio.ensure_future(_to_far(stream, end))]
    try:
        await asyncio.gather(*ways)
        await asyncio.wait_for(stream.recv_message(), LAST_WORD_S)  # until it hangs up
    except TimeoutError:
        pass
    finally:
        await give_up(ways)


async def _from_far(stream: Stream[pb.Frame, pb.Frame], end: End) -> None:
    """Pass on what comes from who has called, until it has no more."""
    while (frame := await stream.recv_message()) is not None:
        match frame.WhichOneof("frame"):
            case "data":
                await end.send(frame.data)
            case "end":
                break
            case "failure":
                await end.fail(tunnels.failure_of(frame.failure))
                return
            case _:
                raise errors.Invalid("a frame must hold data, an end or a failure")
    await end.end()


async def _to_far(stream: Stream[pb.Frame, pb.Frame], end: End) -> None:
    """Pass on what is for who has called, until there is no more; after a failure it is for it to hang up."""
    try:
        while (frame := await end.receive()) is not None:
            await stream.send_message(tunnels.told_data(frame))
    except errors.SkerryError as error:
        await stream.send_message(tunnels.told_failure(error))
        await asyncio.sleep(LAST_WORD_S)
        raise
    await stream.send_message(tunnels.END)


async def _first_of(stream: Stream[M, R]) -> M:
    try:
        async with asyncio.timeout(_FIRST_WORD_S):
            first = await stream.recv_message()
    except TimeoutError:
        raise errors.TimedOut(f"nothing was said within {_FIRST_WORD_S:g} s") from None
    if first is None:
        raise errors.Invalid("the call ended before it began; send a message first")
    return first


def _node_of(caller: Caller) -> NodeId:
    """Whose certificate made the connection; who has a join token is no node yet."""
    if caller.origin is not Origin.CERTIFICATE or not caller.node:
        raise errors.Refused("join first: a node shows the certificate that it gets for its token")
    return NodeId(caller.node)

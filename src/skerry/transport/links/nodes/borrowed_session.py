"""The session of a borrowed node over a contract tunnel: that of any node, filtered.

`skerry.market.buyer.borrowed_node_session` opens the tunnel and knows the node's identity here. What the node
states about itself is replaced by that; it does not get the addresses of our servers, and does not dial
tunnels.
"""

from __future__ import annotations

import asyncio

from skerry.control.sessions.node_session import NodeSessions
from skerry.kit.clock import Clock
from skerry.kit.tasks import cancel_and_wait
from skerry.market.buyer.borrowed_node_session import BorrowedNodeHooks, BorrowedNodeIdentity
from skerry.model.streams import TunnelStream
from skerry.transport.links.nodes import tunnel_connection
from skerry.transport.links.nodes.messages import encode_resources
from skerry.transport.links.nodes.session_handler import handle_session
from skerry.transport.proto import nodes_pb2 as pb
from skerry.transport.tunnels import tunnel_codec


class BorrowedNodeConversations:
    """Has the sessions of borrowed nodes, for the market."""

    def __init__(self, sessions: NodeSessions, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock

    async def __call__(
        self, frames: TunnelStream, identity: BorrowedNodeIdentity, hooks: BorrowedNodeHooks
    ) -> None:
        line = _FilteredNodeStream(
            tunnel_connection.TunnelMessageStream(frames, pb.FromNode), identity, hooks
        )
        try:
            hello = tunnel_connection.decode_first_hello(await line.recv_message())
            async with self._sessions.connect(identity.node, hello) as session:
                hooks.set_connected(True)
                await handle_session(line, self._sessions, session, self._clock, check=_always)
        finally:
            hooks.set_connected(False)
            await cancel_and_wait(line.joined)


class _FilteredNodeStream:
    """The message stream of a borrowed node, without what it may not send or get."""

    def __init__(
        self,
        link: tunnel_connection.TunnelMessageStream[pb.ToNode, pb.FromNode],
        identity: BorrowedNodeIdentity,
        hooks: BorrowedNodeHooks,
    ) -> None:
        self._link = link
        self._identity = identity
        self._hooks = hooks
        self.joined: set[asyncio.Future[None]] = set()

    async def recv_message(self) -> pb.FromNode | None:
        message = await self._link.recv_message()
        if message is not None:
            self._hooks.frame_received()
            if message.HasField("hello"):
                message.hello.CopyFrom(self._presented(message.hello))
        return message

    async def send_message(self, message: pb.ToNode) -> None:
        match message.WhichOneof("message"):
            case "open_tunnel":
                request = tunnel_codec.decode_tunnel(message.open_tunnel)
                joined = asyncio.ensure_future(self._hooks.join(request))
                self.joined.add(joined)
                joined.add_done_callback(self.joined.discard)
            case "servers":
                pass
            case _:
                await self._link.send_message(message)

    def _presented(self, hello: pb.Hello) -> pb.Hello:
        own = self._identity
        return pb.Hello(
            name=own.name, facts=hello.facts, room=encode_resources(own.resources), labels=own.labels
        )


def _always() -> None:
    """A borrowed node is connected for as long as its tunnel is open."""

"""The session of a borrowed node over a contract tunnel: that of any node, filtered.

`skerry.market.buyer.borrowed_node_session` opens the tunnel and knows the node's identity here. What the node
states about itself is replaced by that; it does not get the addresses of our servers, and does not dial
tunnels. If it takes part in our mesh it gets the network objects that this needs, and no others: its provider
can read them.
"""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address, IPv4Network

from msgspec.structs import replace

from skerry.control.sessions.node_session import NodeSessions
from skerry.kit.clock import Clock
from skerry.kit.tasks import cancel_and_wait
from skerry.market.buyer.borrowed_node_session import BorrowedNodeHooks, BorrowedNodeIdentity
from skerry.model.container_options import NodeFeature
from skerry.model.mesh import MeshPeer
from skerry.model.network_objects import InstanceAddress, NodeLocation, ServiceAddress, ServiceSubnet
from skerry.model.network_policies import IsolatedNamespace, JobAddress
from skerry.model.streams import TunnelStream
from skerry.transport.links.nodes import tunnel_connection
from skerry.transport.links.nodes.messages import encode_resources
from skerry.transport.links.nodes.session_handler import handle_session
from skerry.transport.proto import nodes_pb2 as pb
from skerry.transport.tunnels import tunnel_codec

_NO_MESH = (
    "containers here are not in the mesh of this cloud: the provider does not allow it; ask it to set "
    "market.guest_mesh on its nodes"
)
_MESH_FEATURES = frozenset((NodeFeature.NETWORK, NodeFeature.POLICIES))
_MESH_KINDS = frozenset(
    each.kind
    for each in (
        MeshPeer,
        NodeLocation,
        ServiceSubnet,
        ServiceAddress,
        InstanceAddress,
        JobAddress,
        IsolatedNamespace,
    )
)


class BorrowedNodeConversations:
    """Has the sessions of borrowed nodes, for the market."""

    def __init__(self, sessions: NodeSessions, clock: Clock, *, has_mesh: bool = False) -> None:
        """Without `has_mesh` no borrowed node takes part in our mesh."""
        self._sessions = sessions
        self._clock = clock
        self._has_mesh = has_mesh

    async def __call__(
        self, frames: TunnelStream, identity: BorrowedNodeIdentity, hooks: BorrowedNodeHooks
    ) -> None:
        identity = replace(identity, in_mesh=identity.in_mesh and self._has_mesh)
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
        self._subnet = ""
        self.joined: set[asyncio.Future[None]] = set()

    async def recv_message(self) -> pb.FromNode | None:
        message = await self._link.recv_message()
        if message is not None:
            self._hooks.frame_received()
            if message.HasField("hello"):
                message.hello.CopyFrom(self._presented(message.hello))
            elif message.HasField("reports"):
                for report in message.reports.reports:
                    if report.ip and not self._is_own(report.ip):
                        report.ip = ""
        return message

    async def send_message(self, message: pb.ToNode) -> None:
        match message.WhichOneof("message"):
            case "open_tunnel":
                request = tunnel_codec.decode_tunnel(message.open_tunnel)
                joined = asyncio.ensure_future(self._hooks.join(request))
                self.joined.add(joined)
                joined.add_done_callback(self.joined.discard)
            case "welcome":
                self._subnet = message.welcome.subnet
                await self._link.send_message(message)
            case "servers":
                pass
            case "network":
                await self._link.send_message(_needed(message))
            case _:
                await self._link.send_message(message)

    def _is_own(self, address: str) -> bool:
        """False for an address of another node: services there would be reached by way of this one. Outside
        of the mesh addresses mean nothing."""
        try:
            return not self._identity.in_mesh or IPv4Address(address) in IPv4Network(self._subnet)
        except ValueError:
            return False

    def _presented(self, hello: pb.Hello) -> pb.Hello:
        own, facts = self._identity, hello.facts
        if not own.in_mesh:
            kept = [each for each in facts.features if each not in _MESH_FEATURES]
            del facts.features[:]
            facts.features.extend(kept)
        elif NodeFeature.NETWORK not in facts.features:
            facts.warnings.append(_NO_MESH)
        return pb.Hello(name=own.name, facts=facts, room=encode_resources(own.resources), labels=own.labels)


def _needed(message: pb.ToNode) -> pb.ToNode:
    """Network objects, without kinds that the mesh does not need."""
    network = message.network
    return pb.ToNode(
        network=pb.Network(
            more=network.more,
            whole=network.whole,
            objects=[each for each in network.objects if each.kind in _MESH_KINDS],
            gone=[each for each in network.gone if each.kind in _MESH_KINDS],
        )
    )


def _always() -> None:
    """A borrowed node is connected for as long as its tunnel is open."""

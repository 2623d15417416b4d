"""The mesh on a server: what nodes are told of it.

Called by `skerry.daemon.control_plane`. The interface of a node is `skerry.daemon.node_mesh`.
"""

from __future__ import annotations

import msgspec

from skerry.control.mesh.peers import MeshPeers
from skerry.control.mesh.tables import MeshTables
from skerry.control.network.feed import NetworkObjects
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.sessions.node_session import NodeSessions
from skerry.daemon.server_base import ServerBase
from skerry.model.ids import NodeId
from skerry.model.mesh import MeshEncryption, MeshLinks, MeshNode
from skerry.wire.own.mesh.endpoints import MeshContext


class MeshParts(msgspec.Struct, frozen=True):
    """The mesh as a server knows it."""

    tables: MeshTables
    peers: MeshPeers
    context: MeshContext

    def feed(self, objects: NetworkObjects) -> None:
        """Tell nodes their peers, and take their reports."""
        objects.add(self.peers)
        objects.handle(MeshNode, self.peers.node_reported)
        objects.handle(MeshLinks, self.peers.links_reported)

    def follow_sessions(self, sessions: NodeSessions, base: ServerBase) -> None:
        """Learn from sessions where nodes are. That of this machine comes from nowhere: it is where the
        server is."""

        def observed(node: NodeId) -> str:
            if node == base.node:
                return base.addresses.for_nodes().rpartition(":")[0].strip("[]")
            return sessions.address(node)

        self.peers.observed = observed

    async def ready(self) -> None:
        await self.tables.ready()


def start(base: ServerBase, nodes: NodeRegistry) -> MeshParts:
    """Begin to read what is in the store."""
    tables = MeshTables(base.store, base.clock)
    peers = MeshPeers(nodes, tables, MeshEncryption(base.settings.mesh.encryption))
    base.loops.forever("mesh tables", tables.run, critical=True)
    base.loops.forever("mesh", peers.run)
    return MeshParts(tables, peers, MeshContext(peers, tables, base.clock))

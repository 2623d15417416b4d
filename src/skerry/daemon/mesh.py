"""The mesh of this process: on a server, what nodes are told of it; on a node, its interface.

Called by `skerry.daemon.control_plane` and `skerry.daemon.node_agent`.
"""

from __future__ import annotations

from dataclasses import dataclass

from skerry.control.mesh.peers import MeshPeers
from skerry.control.mesh.tables import MeshTables
from skerry.control.network.feed import NetworkObjects
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.sessions.node_session import NodeSessions
from skerry.daemon.containers import ContainerEngine
from skerry.daemon.role_parts import RoleContext
from skerry.daemon.server_base import ServerBase
from skerry.kit.tasks import TaskSupervisor
from skerry.model.ids import NodeId
from skerry.model.mesh import MeshEncryption, MeshLinks, MeshNode, MeshPeer
from skerry.node.agent.network_state import NetworkState
from skerry.node.network.mesh.mesh import KEY_FILE, MeshDeps, NodeMesh
from skerry.transport import host_identity
from skerry.wire.own.mesh.endpoints import MeshContext

__all__ = ["KEY_FILE", "MeshParts", "remove", "start", "start_node"]


@dataclass(frozen=True, slots=True)
class MeshParts:
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


async def remove(context: RoleContext, engine: ContainerEngine) -> None:
    """Have what an earlier process left of the mesh removed with the network of containers."""
    nobody = NodeId("leaving")  # it talks to no peer
    deps = MeshDeps(
        nobody, engine.network, context.clock, lambda report: None, tuple, lambda unreachable: None
    )
    mesh = await NodeMesh(context.folder, context.settings.mesh, deps).open()
    context.undo.push_async_callback(mesh.close)
    engine.network.call_when_removed(mesh.remove)


async def start_node(
    context: RoleContext, engine: ContainerEngine, node: NodeId, state: NetworkState, loops: TaskSupervisor
) -> NodeMesh:
    """Begin to follow the peers of this node. Raises Invalid (the settings)."""
    deps = MeshDeps(
        node,
        engine.network,
        context.clock,
        state.report,
        host_identity.read_addresses,
        engine.network.services.unreachable_changed,
    )
    mesh = await NodeMesh(context.folder, context.settings.mesh, deps).open()
    context.undo.push_async_callback(mesh.close)
    engine.network.call_when_removed(mesh.remove)
    state.subscribe(MeshPeer, mesh.set_peers)
    loops.forever("mesh", mesh.run)
    return mesh

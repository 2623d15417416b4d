"""The mesh on a node: its interface, and the peers that servers tell it of.

Called by `skerry.daemon.node_agent`. Apart from `skerry.daemon.mesh`, so that a node imports nothing of it.
"""

from __future__ import annotations

from typing import Final

from skerry.daemon.containers import ContainerEngine
from skerry.daemon.role_parts import RoleContext
from skerry.kit.tasks import TaskSupervisor
from skerry.model.ids import NodeId
from skerry.model.mesh import MeshPeer
from skerry.node.agent.network_state import NetworkState
from skerry.node.network.mesh.mesh import MeshDeps, NodeMesh
from skerry.transport import host_identity

_ALONE: Final = (
    "the network of its containers belongs to an ordinary user, and nothing connects it to other machines: "
    "'skerry doctor' says what is missing, or start the node as root"
)


def hindrance(context: RoleContext) -> str:
    """Why this node can have no links; empty if it can."""
    return "" if context.enforcement.has_mesh_links else _ALONE


async def start(
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
        hindrance(context),
        engine.namespace,
    )
    mesh = await NodeMesh(context.folder, context.settings.mesh, deps).open()
    context.undo.push_async_callback(mesh.close)
    engine.network.call_when_removed(mesh.remove)
    state.subscribe(MeshPeer, mesh.set_peers)
    loops.forever("mesh", mesh.run)
    return mesh

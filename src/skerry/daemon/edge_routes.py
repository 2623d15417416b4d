"""Routes on the node of this process, if it is an edge node.

Called by `skerry.daemon.node_agent`.
"""

from __future__ import annotations

import structlog

from skerry.daemon.role_parts import RoleContext
from skerry.kit.tasks import TaskSupervisor
from skerry.model import errors
from skerry.node.agent.network_state import NetworkState
from skerry.node.routes import edge
from skerry.node.routes.certificate_follower import CertificateFollower
from skerry.node.routes.edge import EdgeRoutes
from skerry.node.secrets.node_secrets import NodeSecrets

log = structlog.get_logger(__name__)


async def start(
    context: RoleContext,
    key: str,
    state: NetworkState,
    secrets: NodeSecrets,
    loops: TaskSupervisor,
    *,
    is_server: bool,
) -> EdgeRoutes | None:
    """Serve routes, if this node is to: one that was told to, and that of a server. `key` distinguishes the
    Skerrys of one machine."""
    if not (context.settings.node.edge or is_server):
        return None
    if reason := edge.lacking(context.settings.routes):
        if context.settings.node.edge:
            raise errors.FailedPrecondition(f"node.edge: this machine cannot serve routes: {reason}")
        log.info("routes.unavailable", reason=reason)
        return None
    routes = EdgeRoutes(edge.edge_files(context.folder, key), context.settings.routes, state)
    await routes.open()
    context.undo.push_async_callback(routes.close)
    loops.forever("routes of this node", routes.run)
    certificates = CertificateFollower(state, routes, secrets.values)
    secrets.add_user(certificates.refs)
    loops.forever("certificates of routes", certificates.run)
    return routes

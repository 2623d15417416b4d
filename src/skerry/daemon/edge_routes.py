"""Routes on the node of this process, if it is an edge node.

Called by `skerry.daemon.node_agent`.
"""

from __future__ import annotations

from pathlib import Path

import structlog
from msgspec.structs import replace

from skerry.daemon.role_parts import RoleContext
from skerry.kit.tasks import TaskSupervisor
from skerry.model import errors
from skerry.model.enforcement import Isolation
from skerry.node.agent.network_state import NetworkState
from skerry.node.network.network import Network
from skerry.node.routes import edge
from skerry.node.routes.edge import EdgeRoutes
from skerry.node.secrets.node_secrets import NodeSecrets
from skerry.node.tls.route_certificates import RouteCertificates
from skerry.transport import addresses

log = structlog.get_logger(__name__)


def is_edge(context: RoleContext, *, is_server: bool) -> bool:
    """Whether this node serves routes. Raises FailedPrecondition if it is told to, and cannot."""
    reason = _lacking(context)
    if reason and context.settings.node.edge:
        raise errors.FailedPrecondition(f"node.edge: this machine cannot serve routes: {reason}")
    return not reason and (context.settings.node.edge or is_server)


def _lacking(context: RoleContext) -> str:
    """Why this node cannot serve routes; empty if it can."""
    if context.enforcement.isolation is Isolation.ROOT:
        return edge.lacking(context.settings.routes)
    return (
        "it is of an ordinary user, whose containers are in a network of their own, which HAProxy is not in; "
        "publish ports of containers, or start the node as root"
    )


def web_socket(context: RoleContext, key: str | None, *, is_server: bool) -> Path:
    """Where web functions are served: as set, else where the HAProxy of this node can reach it, and in the
    data folder if it has none."""
    named = context.settings.functions.web_socket
    if not named and key is not None and is_edge(context, is_server=is_server):
        return edge.edge_files(context.folder, key).web_socket
    return addresses.web_socket(named, context.folder)


async def start(
    context: RoleContext,
    network: Network,
    state: NetworkState,
    secrets: NodeSecrets,
    loops: TaskSupervisor,
    *,
    is_server: bool,
) -> EdgeRoutes | None:
    """Serve routes, if this node is to: one that was told to, and that of a server. The key of the `network`
    distinguishes the Skerrys of one machine."""
    if not is_edge(context, is_server=is_server):
        # It may have been one, and HAProxy outlives the agent.
        await edge.remove(edge.edge_files(context.folder, network.key), context.settings.routes.program)
        if reason := _lacking(context):
            log.info("routes.unavailable", reason=reason)
        return None
    paths = replace(
        edge.edge_files(context.folder, network.key),
        web_socket=web_socket(context, network.key, is_server=is_server),
    )
    routes = EdgeRoutes(paths, context.settings.routes, state)
    await routes.open()
    # As containers do, routes outlive the agent: the next one adopts both. With the network of the last
    # container HAProxy goes, too.
    context.undo.push_async_callback(routes.detach)
    network.call_when_removed(routes.remove)
    loops.forever("routes of this node", routes.run)
    loops.forever("certificates of routes", RouteCertificates(state, secrets, routes).run)
    return routes

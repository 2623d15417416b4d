"""The socket of web functions, for the HAProxy of this machine. Both roles have it."""

from __future__ import annotations

from pathlib import Path

from skerry.daemon.function_apps import build_web_app
from skerry.daemon.role_parts import RoleContext
from skerry.transport import unix_sockets
from skerry.transport.access.gate import AccessGate
from skerry.transport.http.server import HttpServer
from skerry.wire.serverledge.context import ServerledgeContext


def serve_socket(
    context: RoleContext, gate: AccessGate, functions: ServerledgeContext, path: Path
) -> HttpServer:
    """Serve web functions on the socket `path`; the caller stops the server."""
    settings = context.settings
    server = HttpServer(
        build_web_app(settings, context.clock, gate, functions), settings.http, trusted_uids=frozenset()
    )
    permissions = unix_sockets.group_permissions(settings.functions.web_socket_group)
    server.start_unix(path, permissions, listener="http-web", option="functions.web_socket")
    return server

"""Routes tunnels to an instance, wherever its node is connected: here, or at another server, which relays.

`TunnelRouter` is in front of the sessions of this server. A server calls another with the certificate of its
own local admin, and only after it has authorized its own caller: no caller gets more access by it than an
admin, and servers need no secrets beyond the CA that they share.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skerry.control.cluster.servers import ServerDirectory
from skerry.control.sessions.node_session import NodeSessions
from skerry.control.sessions.tunnels import TunnelEndpoint
from skerry.model.ids import InstanceId, NodeId
from skerry.model.streams import StreamRequest
from skerry.transport.links.nodes.client import GrpcTunnel, open_remote_tunnel


class TunnelRouter:
    """`tls` has our certificate for other servers."""

    def __init__(self, sessions: NodeSessions, servers: ServerDirectory, tls: ssl.SSLContext) -> None:
        self._sessions = sessions
        self._servers = servers
        self._tls = tls

    @asynccontextmanager
    async def open_tunnel(
        self, node: NodeId, instance: InstanceId, request: StreamRequest
    ) -> AsyncIterator[TunnelEndpoint | GrpcTunnel]:
        """Our end of a tunnel to an instance on the node; `Unavailable` if the node is not connected."""
        server = self._sessions.elsewhere(node)
        address = None if server is None else self._servers.address_of(server)
        if address is None:
            async with self._sessions.open_tunnel(node, instance, request) as end:
                yield end
        else:
            async with open_remote_tunnel(address, self._tls, node, instance, request) as tunnel:
                yield tunnel

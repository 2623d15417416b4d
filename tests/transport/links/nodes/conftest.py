"""A server of nodes on loopback, with real TLS, over a store in memory; and nodes that dial it."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from grpclib.client import Channel

from skerry.control.sessions.node_session import NodeSessions
from skerry.control.sessions.tunnels import TunnelBroker
from skerry.kit.clock import ManualClock, SystemClock
from skerry.model.settings import FleetSettings, GrpcSettings
from skerry.store.local.memory import MemoryStore
from skerry.transport.access.gate import AccessGate
from skerry.transport.grpc import health
from skerry.transport.grpc.channels import dial
from skerry.transport.grpc.server import GrpcServer
from skerry.transport.links.nodes.client import GrpcControlConnection, GrpcControlDialer
from skerry.transport.links.nodes.service import NodeSessionService, ServerTunnelService
from tests.control.sessions.test_node_session import FakeInstances
from tests.support.certificates import TestAuthority
from tests.support.fleets import Fleet, fleet_on
from tests.transport.grpc.fakes import FakeIdentity


class Listening:
    """A server of sessions, and ways to it."""

    def __init__(self, sessions: NodeSessions, authority: TestAuthority) -> None:
        self.sessions = sessions
        self.revoked: set[str] = set()
        service = NodeSessionService(self.sessions, SystemClock(), is_revoked=self.revoked.__contains__)
        self._server = GrpcServer(
            health.with_health_and_reflection([service, ServerTunnelService(self.sessions)], {}),
            AccessGate(FakeIdentity(), os.getuid()),
            GrpcSettings(),
        )
        self._authority = authority
        self._stack = AsyncExitStack()
        self.port = 0

    async def start(self) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        await self._server.listen_tcp(listening, self._authority.server_context(), plaintext=True)

    async def stop(self) -> None:
        await self._stack.aclose()
        await self._server.stop(5.0)

    def dialler(self, node: str = "n1", role: str = "node") -> GrpcControlDialer:
        tls = self._authority.client_context(self._authority.issue(node, role))
        return GrpcControlDialer(f"127.0.0.1:{self.port}", tls)

    async def connect(self, node: str = "n1", role: str = "node") -> GrpcControlConnection:
        """A connection that ends with the test."""
        return await self._stack.enter_async_context(self.dialler(node, role).dial())

    def channel(self, node: str | None = "n1", role: str = "node") -> Channel:
        """For tests that speak as no client of ours would; without a node, in plain text."""
        tls = None
        if node is not None:
            tls = self._authority.client_context(self._authority.issue(node, role))
        channel = dial(f"127.0.0.1:{self.port}", tls)
        self._stack.callback(channel.close)
        return channel


class Served(Listening):
    """One over a fleet, with fake instances."""

    def __init__(self, fleet: Fleet, instances: FakeInstances, authority: TestAuthority) -> None:
        super().__init__(
            NodeSessions(fleet.nodes, instances, FleetSettings(), tunnels=TunnelBroker(patience_s=5.0)),
            authority,
        )
        self.fleet = fleet
        self.instances = instances


@pytest.fixture
async def served(authority: TestAuthority) -> AsyncIterator[Served]:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with fleet_on(store, clock) as fleet:
        server = Served(fleet, FakeInstances(fleet.instance_table), authority)
        await server.start()
        yield server
        await server.stop()
    await store.close()

"""A real server on loopback, with real TLS, a fake identity behind the gate, and both event loops."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
import structlog
import uvloop
from grpclib.client import Channel

from skerry.model.settings import GrpcSettings
from skerry.transport.access.gate import AccessGate
from skerry.transport.grpc import health as grpc_health
from skerry.transport.grpc.channels import dial
from skerry.transport.grpc.connections import ConnectionLimits
from skerry.transport.grpc.server import GrpcServer
from skerry.wire.own.grpc_identity import IdentityService
from tests.support.certificates import SERVER_NAME, TestAuthority
from tests.transport.grpc.fakes import FakeIdentity

# The first loop of uvloop opens a pipe for signals that stays with the process: not a leak of the first test.
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(asyncio.sleep(0))


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    """A CA that the server does not know."""
    return TestAuthority(tmp_path_factory.mktemp("stranger"), "strange CA")


@pytest.fixture(scope="session")
def server_tls(authority: TestAuthority) -> ssl.SSLContext:
    return authority.server_context()


@pytest.fixture
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        yield lines


class Served:
    """A running server and how to reach it."""

    def __init__(self, server: GrpcServer, identity: FakeIdentity, authority: TestAuthority) -> None:
        self.server = server
        self.identity = identity
        self._authority = authority
        self.port = 0
        self.path = Path()
        self._channels: list[Channel] = []

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def tls(self, role: str) -> ssl.SSLContext:
        return self._authority.client_context(self._authority.issue(f"some-{role}", role))

    def channel(self, tls: ssl.SSLContext | None = None, *, unix: bool = False) -> Channel:
        made = dial(str(self.path), tls, server_name=SERVER_NAME) if unix else dial(self.target, tls)
        self._channels.append(made)
        return made

    async def stop(self, within_s: float = 5.0) -> None:
        for channel in self._channels:
            channel.close()
        await self.server.stop(within_s)


@pytest.fixture
async def serve(
    tmp_path: Path, authority: TestAuthority, server_tls: ssl.SSLContext
) -> AsyncIterator[Callable[..., object]]:
    """`await serve(plaintext=True, unix=True, ...)` starts a server, which ends with the test."""
    running: list[Served] = []

    async def start(
        *,
        plaintext: bool = True,
        tls: ssl.SSLContext | None = server_tls,
        unix: bool = False,
        services: list[object] | None = None,
        checks: dict[str, grpc_health.ReadinessCheck] | None = None,
        gate: AccessGate | None = None,
        health: grpc_health.HealthService | None = None,
        settings: GrpcSettings | None = None,
        limits: ConnectionLimits | None = None,
    ) -> Served:
        identity = FakeIdentity()
        own = grpc_health.with_health_and_reflection(
            [IdentityService(identity)] if services is None else services, checks or {}
        )
        server = GrpcServer(
            own if health is None else [health],
            gate or AccessGate(identity, os.getuid()),
            settings or GrpcSettings(),
            limits=limits,
        )
        served = Served(server, identity, authority)
        running.append(served)
        sock = socket.create_server(("127.0.0.1", 0))
        served.port = sock.getsockname()[1]
        await server.listen_tcp(sock, tls, plaintext=plaintext)
        if unix:
            served.path = tmp_path / "run" / "skerry.sock"
            await server.listen_unix(served.path, server_tls)
        return served

    yield start
    for served in running:
        await served.stop()

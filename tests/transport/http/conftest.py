"""A real HTTP server on loopback under uvloop, with a real identity, gate and event log in memory."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import msgspec
import pytest
import structlog
import uvloop

from skerry.control.context import ControlPlane
from skerry.control.events.log import EventLog
from skerry.control.identity.authenticator import Authenticator
from skerry.control.routes.problems import RouteProblems
from skerry.control.sessions.cell_lister import CellLister
from skerry.control.sessions.tunnels import NodeTunnels
from skerry.daemon.http import OwnerContexts, build_app
from skerry.daemon.openapi import openapi_bytes
from skerry.kit import pki
from skerry.kit.clock import SystemClock
from skerry.model.callers import Caller, Role
from skerry.model.settings import EventSettings, FunctionSettings, HttpSettings, Settings
from skerry.store.local.memory import MemoryStore
from skerry.transport.access.gate import AccessGate
from skerry.transport.access.peers import ConnectionPeer
from skerry.transport.http.asgi import ASGIApp
from skerry.transport.http.front_pool import FrontPool
from skerry.transport.http.server import HttpServer
from skerry.wire.kudo.context import KudoContext
from skerry.wire.own.alerts.endpoints import AlertContext
from skerry.wire.own.context import OwnContext
from skerry.wire.own.http_routes.context import RouteContext
from skerry.wire.own.jobs.context import JobContext
from skerry.wire.own.market.context import MarketContext
from skerry.wire.own.mesh.endpoints import MeshContext
from skerry.wire.own.namespaces.endpoints import NamespaceContext
from skerry.wire.own.secrets.context import SecretContext
from skerry.wire.own.services.context import ServiceContext
from skerry.wire.own.snapshots.context import SnapshotContext
from skerry.wire.own.telemetry.endpoints import TelemetryContext
from skerry.wire.own.tls.context import TlsContext
from skerry.wire.own.volumes.context import VolumeContext
from skerry.wire.rear.context import RearContext
from skerry.wire.serverledge.context import ServerledgeContext
from tests.support.backups import backup_context
from tests.support.clouds import following
from tests.support.controls import Control, control_on
from tests.transport.http.talking import Wire

# The first loop of libuv opens a pipe for signals that stays for the life of the process.
uvloop.new_event_loop().close()


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


class StrangerGate(AccessGate):
    """The gate as another user of this machine meets it: the kernel's word on the uid is not enough."""

    def caller(self, peer: ConnectionPeer, authorization: str | None, *, is_forwarded: bool) -> Caller:
        return super().caller(
            msgspec.structs.replace(peer, uid=65534), authorization, is_forwarded=is_forwarded
        )


@dataclass
class Site:
    """A running server and what is behind it."""

    server: HttpServer
    plane: ControlPlane
    control: Control
    scheme: str = "http"
    sessions: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def url(self) -> str:
        host, port = self.server.address
        return f"{self.scheme}://{host}:{port}"

    async def session(self, **options: Any) -> aiohttp.ClientSession:
        """A client that is closed with the site."""
        return await self.sessions.enter_async_context(aiohttp.ClientSession(self.url, **options))

    async def bearer(self, role: Role, *namespaces: str) -> dict[str, str]:
        """Headers with a fresh token of this role, bound to `namespaces` if there are any."""
        _, text = await self.plane.identity.create_token(
            role, ttl_s=None, note="", actor="test", namespaces=namespaces
        )
        return {"Authorization": f"Bearer {text}"}

    async def wire(self) -> Wire:
        """A raw connection that is closed with the site."""
        wire = await Wire.to(*self.server.address)
        self.sessions.callback(wire.close)
        return wire


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> pki.CertificateAuthority:
    return pki.CertificateAuthority.load_or_create(tmp_path_factory.mktemp("pki"), SystemClock())


@pytest.fixture
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        yield lines


@asynccontextmanager
async def serving(
    authority: pki.CertificateAuthority,
    *,
    http: HttpSettings | None = None,
    events: EventSettings | None = None,
    functions: FunctionSettings | None = None,
    gate: type[AccessGate] = AccessGate,
    app: ASGIApp | None = None,
    tls: ssl.SSLContext | None = None,
    checks: dict[str, Callable[[], Awaitable[None]]] | None = None,
    lacking: tuple[str, ...] = (),
    tunnels: NodeTunnels | None = None,
    serverledge: ServerledgeContext | None = None,
    rear: RearContext | None = None,
    desk: MarketContext | None = None,
    leads: bool = False,
    fronts: FrontPool | None = None,
) -> AsyncIterator[Site]:
    """A server with everything behind it; with `app`, that is served instead of Skerry's own."""
    clock = SystemClock()
    settings = Settings(
        http=http or HttpSettings(),
        events=events or EventSettings(),
        functions=functions or FunctionSettings(),
    )
    async with AsyncExitStack() as undo:
        store = MemoryStore(clock)
        undo.push_async_callback(store.close)
        log = EventLog(store, clock, settings.events)
        identity = Authenticator(store, log, authority, clock, settings.identity)
        await undo.enter_async_context(following(identity))
        plane = ControlPlane(
            settings=settings,
            clock=clock,
            store=store,
            identity=identity,
            events=log,
            authority=authority,
            started_at=clock.now(),
            checks=checks or {},
            lacking=lacking,
        )
        control = await undo.enter_async_context(control_on(store, log, clock, leads=leads))
        kudo = KudoContext(
            control.workloads,
            control.instances,
            control.nodes,
            tunnels or control.sessions,
            clock,
            CellLister(control.nodes, tunnels or control.sessions, clock),
        )
        built = app or build_app(
            OwnContext.of(
                plane,
                lambda: "127.0.0.1:50052",
                lambda: ["https://192.0.2.1:1323", "https://hub:1323", "https://192.0.2.1:1323"],
                openapi_bytes,
            ),
            gate(identity, os.geteuid()),
            kudo,
            serverledge,
            rear,
            desk,
            owners=OwnerContexts(
                ServiceContext(control.services),
                JobContext(control.jobs, control.schedules, control.clock),
                NamespaceContext(control.namespaces, control.connections),
                SecretContext(control.secrets, control.rotation, lambda: 0),
                VolumeContext(control.volumes),
                SnapshotContext(control.snapshots),
                MeshContext(control.mesh, control.mesh_tables, clock),
                TlsContext(control.tls),
                RouteContext(
                    control.routes,
                    RouteProblems(control.services.tables.services, lambda key: None, control.nodes).of,
                ),
                backup_context(
                    store, log, clock, settings.backup, Path(undo.enter_context(TemporaryDirectory()))
                ),
                TelemetryContext(control.nodes, kudo.tunnels, "http://hub:1323", lambda: ()),
                AlertContext(control.alerts),
            ),
            own_names=lambda: frozenset({"hub.example"}),
        )
        server = HttpServer(built, settings.http, fronts=fronts)
        if fronts is not None:
            undo.push_async_callback(fronts.stop)
        site = Site(server, plane, control, "https" if tls else "http")
        await server.start(socket.create_server(("127.0.0.1", 0)), tls)
        undo.push_async_callback(server.stop, 5.0)
        undo.push_async_callback(site.sessions.aclose)
        yield site


Serve = Callable[..., Awaitable[Site]]


@pytest.fixture
async def serve(
    authority: pki.CertificateAuthority, logged: list[structlog.typing.EventDict]
) -> AsyncIterator[Serve]:
    """`await serve(http=..., app=...)` starts a server as `serving` does; it ends with the test."""
    async with AsyncExitStack() as undo:
        yield lambda **options: undo.enter_async_context(serving(authority, **options))

"""A real HTTP server on loopback under uvloop, with a real identity, gate and event log in memory."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
import pytest
import structlog
import uvloop
from starlette.types import ASGIApp

from skerry.control.events import EventLog
from skerry.control.identity import Identity
from skerry.control.plane import Plane
from skerry.kit import pki
from skerry.kit.clock import SystemClock
from skerry.model.identity import Caller, Role
from skerry.model.settings import EventSettings, FunctionSettings, HttpSettings, Settings
from skerry.store.memory import MemoryStore
from skerry.wire.gate import Gate
from skerry.wire.http.app import build_app
from skerry.wire.http.server import HttpServer
from skerry.wire.kudo.context import Kudo
from skerry.wire.kudo.keeper import Tunnels
from skerry.wire.market.context import MarketDesk
from skerry.wire.peers import Peer
from skerry.wire.rear.context import Rear
from skerry.wire.serverledge.context import Serverledge
from tests.support.clouds import following
from tests.support.controls import Control, control_on
from tests.wire.http.talking import Wire

# The first loop of libuv opens a pipe for signals that stays for the life of the process.
uvloop.new_event_loop().close()


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


class StrangerGate(Gate):
    """The gate as another user of this machine meets it: the kernel's word on the uid is not enough."""

    def caller(self, peer: Peer, authorization: str | None) -> Caller:
        return super().caller(msgspec.structs.replace(peer, uid=65534), authorization)


@dataclass
class Site:
    """A running server and what is behind it."""

    server: HttpServer
    plane: Plane
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

    async def bearer(self, role: Role) -> dict[str, str]:
        """Headers with a fresh token of this role."""
        _, text = await self.plane.identity.create_token(role, ttl_s=None, note="", actor="test")
        return {"Authorization": f"Bearer {text}"}

    async def wire(self) -> Wire:
        """A raw connection that is closed with the site."""
        wire = await Wire.to(*self.server.address)
        self.sessions.callback(wire.close)
        return wire


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> pki.Authority:
    return pki.Authority.load_or_create(tmp_path_factory.mktemp("pki"), SystemClock())


@pytest.fixture
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        yield lines


@asynccontextmanager
async def serving(
    authority: pki.Authority,
    *,
    http: HttpSettings | None = None,
    events: EventSettings | None = None,
    functions: FunctionSettings | None = None,
    gate: type[Gate] = Gate,
    app: ASGIApp | None = None,
    tls: ssl.SSLContext | None = None,
    checks: dict[str, Callable[[], Awaitable[None]]] | None = None,
    lacking: tuple[str, ...] = (),
    tunnels: Tunnels | None = None,
    serverledge: Serverledge | None = None,
    rear: Rear | None = None,
    desk: MarketDesk | None = None,
    leads: bool = False,
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
        identity = Identity(store, log, authority, clock, settings.identity)
        await undo.enter_async_context(following(identity))
        plane = Plane(
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
        kudo = Kudo(control.workloads, control.instances, control.nodes, tunnels or control.sessions, clock)
        built = app or build_app(
            plane, gate(identity, os.geteuid()), lambda: "127.0.0.1:50052", kudo, serverledge, rear, desk
        )
        server = HttpServer(built, settings.http)
        site = Site(server, plane, control, "https" if tls else "http")
        await server.start(socket.create_server(("127.0.0.1", 0)), tls)
        undo.push_async_callback(server.stop, 5.0)
        undo.push_async_callback(site.sessions.aclose)
        yield site


Serve = Callable[..., Awaitable[Site]]


@pytest.fixture
async def serve(authority: pki.Authority, logged: list[structlog.typing.EventDict]) -> AsyncIterator[Serve]:
    """`await serve(http=..., app=...)` starts a server as `serving` does; it ends with the test."""
    async with AsyncExitStack() as undo:
        yield lambda **options: undo.enter_async_context(serving(authority, **options))

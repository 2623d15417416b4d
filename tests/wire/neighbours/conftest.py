"""Two members on loopback with real TLS: one that asks, and a fake that serves."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import structlog

from skerry.functions.continuum.coordinates import START
from skerry.functions.continuum.neighbours import Begins, FarCall, Member, Standing
from skerry.functions.results import Polled
from skerry.kit import tls
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock, ManualClock, SystemClock
from skerry.model import errors
from skerry.model.calls import Answer, Ask, Report
from skerry.model.ids import Digest, FunctionName, NodeId
from skerry.model.settings import FunctionSettings
from skerry.wire.neighbours.answering import Limits
from skerry.wire.neighbours.links import KeptLinks
from skerry.wire.neighbours.serving import NeighbourServer
from tests.support.certificates import TestAuthority

HERE, THERE = NodeId("n1"), NodeId("n2")
STANDING = Standing(START, memory_free=512, cpus_free=1.5, waiting=3, warm={FunctionName("f"): 2})


def call(params: bytes = b"{}", **fields: Any) -> FarCall:
    return FarCall(Ask(FunctionName("f"), params), version=1, **fields)


def member(port: int) -> Member:
    return Member(THERE, "there", "edge", address=f"127.0.0.1:{port}")


class FakeServes:
    """Runs calls by doing nothing; a test may hold them before they have a worker, or while they run."""

    def __init__(self) -> None:
        self.is_warm = True
        self.error: Exception | None = None  # raised before it has a worker
        self.fault: Exception | None = None  # raised while it runs
        self.has_room = asyncio.Event()
        self.may_end = asyncio.Event()
        self.has_room.set()
        self.may_end.set()
        self.asked: list[FarCall] = []
        self.tasks: list[asyncio.Task[Any]] = []  # in which they are run
        self.begun: list[FarCall] = []
        self.cancelled: list[FarCall] = []
        self.hears: list[tuple[NodeId, Standing]] = []
        self.answers: Callable[[FarCall], bytes] = lambda call: call.ask.params
        self.codes: dict[str, bytes] = {}
        self.results: dict[str, Polled] = {}
        self.on_standing: Callable[[], None] = lambda: None

    async def invoke(self, call: FarCall, *, begins: Begins | None) -> Report:
        self.asked.append(call)
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        if self.error is not None:
            raise self.error
        try:
            await self.has_room.wait()
            if begins is not None:
                await begins()
            self.begun.append(call)
            if self.fault is not None:
                raise self.fault
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled.append(call)
            raise
        return Report(Answer(0.25, self.answers(call)), 0.5, is_warm=begins is None, node=THERE)

    def has_warm(self, function: FunctionName) -> bool:
        return self.is_warm and function == "f"

    def standing(self) -> Standing:
        self.on_standing()
        return STANDING

    def heard(self, node: NodeId, standing: Standing) -> None:
        self.hears.append((node, standing))

    async def code(self, digest: Digest) -> bytes:
        if digest not in self.codes:
            raise errors.NotFound("it is not here")
        return self.codes[digest]

    async def poll(self, id: str) -> Polled | None:
        return self.results.get(id)


class Cloud:
    """A CA, the contexts of its members, and what of it was started."""

    def __init__(self, authority: TestAuthority, stack: AsyncExitStack) -> None:
        self._authority = authority
        self._stack = stack
        self.is_here_revoked = False  # the certificate of whoever asks, as far as the other knows
        self.is_there_revoked = False

    def asking(self, node: str = HERE, role: str = "node") -> ssl.SSLContext:
        context = tls.client(self._authority.ca.read_bytes())
        pair = self._authority.issue(node, role)
        tls.load(context, pair.certificate, pair.key)
        return context

    def serving(self, node: str = THERE, role: str = "node") -> ssl.SSLContext:
        context = tls.mutual_server(self._authority.ca.read_bytes())
        pair = self._authority.issue(node, role, server=True)
        tls.load(context, pair.certificate, pair.key)
        return context

    def serve(
        self,
        serves: FakeServes,
        *,
        node: str = THERE,
        context: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        settings: FunctionSettings | None = None,
    ) -> Served:
        server = NeighbourServer(
            NodeId(node),
            serves,
            context or self.serving(),
            SystemClock(),
            settings or FunctionSettings(),
            counts=lambda serial: not self.is_here_revoked,
            limits=limits,
        )
        sock = socket.create_server(("127.0.0.1", 0))
        served = Served(server, sock.getsockname()[1])
        server.listen(sock)
        self._stack.push_async_callback(server.stop, 0.0)
        return served

    def links(
        self,
        context: ssl.SSLContext | None = None,
        *,
        clock: Clock | None = None,
        timeout_s: float = 10.0,
        settings: FunctionSettings | None = None,
        backoff: Backoff | None = None,
    ) -> KeptLinks:
        links = KeptLinks(
            HERE,
            context or self.asking(),
            clock or SystemClock(),
            settings or FunctionSettings(),
            timeout_s=timeout_s,
            counts=lambda serial: not self.is_there_revoked,
            backoff=backoff or Backoff(),
        )
        self._stack.push_async_callback(links.close)
        return links


class Served:
    """A running listener."""

    def __init__(self, server: NeighbourServer, port: int) -> None:
        self.server = server
        self.port = port

    def member(self) -> Member:
        return member(self.port)


@pytest.fixture
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


@pytest.fixture
async def cloud(authority: TestAuthority) -> AsyncIterator[Cloud]:
    async with AsyncExitStack() as stack:
        yield Cloud(authority, stack)


@pytest.fixture
async def serves() -> FakeServes:
    return FakeServes()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()

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

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.continuum.member_api import (
    BeforeStart,
    CodeList,
    ContinuumMember,
    ForwardedCall,
    FunctionCalls,
    MemberLoad,
    ResultCopy,
)
from skerry.functions.coordinates import START
from skerry.kit import tls
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock, ManualClock, SystemClock
from skerry.model import errors
from skerry.model.calls import CallReport, CallRequest, CallResult
from skerry.model.ids import Digest, FunctionName, NodeId
from skerry.model.settings import FunctionSettings
from skerry.transport.links.members.link_pool import LinkPool
from skerry.transport.links.members.server import MemberLinkServer
from skerry.transport.links.members.server_link import MemberLinkLimits
from tests.support.certificates import TestAuthority

HERE, THERE = NodeId("n1"), NodeId("n2")
LOAD = MemberLoad(START, memory_free=512, cpus_free=1.5, waiting=3, warm={FunctionName("f"): 2})


def call(params: bytes = b"{}", **fields: Any) -> ForwardedCall:
    return ForwardedCall(CallRequest(FunctionName("f"), params), version=1, **fields)


def member(port: int) -> ContinuumMember:
    return ContinuumMember(THERE, "there", "edge", address=f"127.0.0.1:{port}")


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
        self.asked: list[ForwardedCall] = []
        self.tasks: list[asyncio.Task[Any]] = []  # in which they are run
        self.begun: list[ForwardedCall] = []
        self.cancelled: list[ForwardedCall] = []
        self.loads: list[tuple[NodeId, MemberLoad]] = []
        self.answers: Callable[[ForwardedCall], bytes] = lambda call: call.request.params
        self.codes: dict[str, bytes] = {}
        self.results: dict[str, AsyncCallResult] = {}
        self.copies: list[ResultCopy] = []
        self.counted: tuple[FunctionCalls, ...] = ()
        self.on_load: Callable[[], None] = lambda: None

    async def invoke(self, call: ForwardedCall, *, begins: BeforeStart | None) -> CallReport:
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
        return CallReport(CallResult(0.25, self.answers(call)), 0.5, is_warm=begins is None, node=THERE)

    def has_warm(self, function: FunctionName) -> bool:
        return self.is_warm and function == "f"

    def load(self) -> MemberLoad:
        self.on_load()
        return LOAD

    def load_reported(self, node: NodeId, load: MemberLoad) -> None:
        self.loads.append((node, load))

    async def code(self, digest: Digest) -> bytes:
        if digest not in self.codes:
            raise errors.NotFound("it is not here")
        return self.codes[digest]

    async def poll(self, id: str) -> AsyncCallResult | None:
        return self.results.get(id)

    async def store_code(self, digest: Digest, source: NodeId) -> None:
        if self.error is not None:
            raise self.error
        await self.may_end.wait()
        self.codes[digest] = source.encode()

    def list_code(self, known: str) -> CodeList:
        digests = tuple(Digest(digest) for digest in self.codes)
        return CodeList(str(len(digests)), None if known == str(len(digests)) else digests)

    def calls(self) -> tuple[FunctionCalls, ...]:
        return self.counted

    async def store_result(self, copy: ResultCopy) -> None:
        if self.error is not None:
            raise self.error
        self.copies.append(copy)


class FakeAccess:
    """Everybody may have a link until a test says otherwise."""

    def __init__(self) -> None:
        self._are_all_revoked = False
        self._strangers: set[str] = set()
        self._listeners: list[Callable[[], None]] = []

    def is_revoked(self, serial: str) -> bool:
        return self._are_all_revoked

    def is_member(self, node: NodeId) -> bool:
        return node not in self._strangers

    def listen(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def revoke_all(self) -> None:
        self._are_all_revoked = True
        self._tell()

    def remove(self, node: str) -> None:
        self._strangers.add(node)
        self._tell()

    def _tell(self) -> None:
        for changed in self._listeners:
            changed()


class Cloud:
    """A CA, the contexts of its members, and what of it was started."""

    def __init__(self, authority: TestAuthority, stack: AsyncExitStack) -> None:
        self._authority = authority
        self._stack = stack
        self.asking_access = FakeAccess()  # what whoever asks knows of the other
        self.serving_access = FakeAccess()

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
        limits: MemberLinkLimits | None = None,
        settings: FunctionSettings | None = None,
    ) -> Served:
        server = MemberLinkServer(
            NodeId(node),
            serves,
            context or self.serving(),
            SystemClock(),
            settings or FunctionSettings(),
            access=self.serving_access,
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
    ) -> LinkPool:
        links = LinkPool(
            HERE,
            context or self.asking(),
            clock or SystemClock(),
            settings or FunctionSettings(),
            timeout_s=timeout_s,
            access=self.asking_access,
            backoff=backoff or Backoff(),
        )
        self._stack.push_async_callback(links.close)
        return links


class Served:
    """A running listener."""

    def __init__(self, server: MemberLinkServer, port: int) -> None:
        self.server = server
        self.port = port

    def member(self) -> ContinuumMember:
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

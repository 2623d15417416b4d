"""A call at a neighbour against the same call here, and against what TLS between two processes costs.

The worker is a fake: another process that repeats what it is sent, and so costs less than any real one. There
is one here and one there. Rounds of what is compared are interleaved, so that whatever else the machine does
hits all of it. Nothing is promised here: what is, is measured with real workers and over HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import cast

import structlog
import uvloop
from tests.support.links import OpenAccess

from bench.figures import Figure
from bench.members import IdleMember
from bench.serving import percentile
from skerry.functions.continuum.member_api import BeforeStart, ContinuumMember, ForwardedCall, MemberLoad
from skerry.functions.coordinates import START
from skerry.kit import pki, tls
from skerry.kit.clock import SystemClock
from skerry.model.callers import NODE_TLS_NAME, Role
from skerry.model.calls import CallReport, CallRequest, CallResult
from skerry.model.ids import FunctionName, NodeId
from skerry.model.settings import FunctionSettings
from skerry.transport.links.members.link_pool import LinkPool
from skerry.transport.links.members.server import MemberLinkServer

ROUNDS = 10
CALLS = 300
AT_ONCE = 64
HERE, THERE = NodeId("here"), NodeId("there")
STANDING = MemberLoad(START, 1024, 2.0, 0, {})
WORKER = "import socket\ns = socket.socket(fileno=0)\nwhile data := s.recv(65536): s.sendall(data)\n"


def measure() -> Iterator[Figure]:
    quieten()
    with tempfile.TemporaryDirectory(prefix="skerry-links-") as name:
        folder = Path(name)
        make_certificates(folder)
        with subprocess.Popen(
            [sys.executable, "-m", "bench.neighbours", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            ports = [int(port) for port in other.stdout.readline().split()]
            times = uvloop.run(ask(folder, *ports))
            other.stdin.close()
    p50 = {what: percentile(took, 0.5) for what, took in times.items()}
    yield Figure("call of a fake worker here, p50", p50["local"] * 1e6, "us")
    yield Figure("round trip over TLS and no more, p50", p50["echo"] * 1e6, "us", note="to another process")
    yield Figure("call at a neighbour, p50", p50["far"] * 1e6, "us", note="the same worker there")
    yield Figure("call at a neighbour that asks back, p50", p50["asking back"] * 1e6, "us")
    yield Figure("call at a neighbour, p99", percentile(times["far"], 0.99) * 1e6, "us")
    yield Figure("call at a neighbour, p50", p50["far"] / p50["local"], "x a call of a fake worker here")
    yield Figure(f"calls at a neighbour, {AT_ONCE} at once", 1 / p50["many"], "calls/s")


async def ask(folder: Path, port: int, echo_port: int) -> dict[str, list[float]]:
    links = LinkPool(
        HERE, client(folder), SystemClock(), FunctionSettings(), timeout_s=10.0, access=OpenAccess()
    )
    there = ContinuumMember(THERE, "there", "bench", address=f"127.0.0.1:{port}")
    call = ForwardedCall(CallRequest(FunctionName("noop"), b'{"a": 1}'), version=1)
    times: dict[str, list[float]] = {}

    async def take(what: str, work: Callable[[], Awaitable[object]], times_over: int = CALLS) -> None:
        for _ in range(times_over):
            began = time.perf_counter()
            await work()
            times.setdefault(what, []).append(time.perf_counter() - began)

    async def many() -> None:
        await asyncio.gather(*(links.invoke(there, call, at_once=True) for _ in range(AT_ONCE)))

    async with worker() as here, echoing(folder, echo_port) as echo:
        for turn in range(ROUNDS + 1):
            await take("local", lambda: here.invoke(call, begins=None))
            await take("far", lambda: links.invoke(there, call, at_once=True))
            await take("asking back", lambda: links.invoke(there, call, at_once=False))
            await take("echo", lambda: echo.ask(b"x" * 200))
            await take("many", many, 5)
            if turn == 0:
                times.clear()  # until all is warm
    await links.close()
    return times | {"many": [took / AT_ONCE for took in times["many"]]}


class Echo(asyncio.Protocol):
    """One question at a time, to somebody who repeats it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            assert self._transport is not None
            self._transport.write(data)
        else:
            self._answer.set_result(data)

    async def ask(self, question: bytes) -> bytes:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(question)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Serves(IdleMember):
    """A member with one warm worker for everything."""

    def __init__(self, process: Echo) -> None:
        super().__init__(STANDING)
        self._process = process
        self._turn = asyncio.Lock()

    async def invoke(self, call: ForwardedCall, *, begins: BeforeStart | None) -> CallReport:
        if begins is not None:
            await begins()
        began = time.monotonic()
        async with self._turn:
            result = await self._process.ask(call.request.params)
        took_s = time.monotonic() - began
        return CallReport(CallResult(took_s, result), took_s, is_warm=True, area="bench", node=THERE)

    def has_warm(self, function: FunctionName) -> bool:
        return True


@contextlib.asynccontextmanager
async def worker() -> AsyncIterator[Serves]:
    ours, its = socket.socketpair()
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", WORKER], stdin=its.fileno())
    its.close()
    ours.setblocking(False)
    line = Echo()
    await asyncio.get_running_loop().create_connection(lambda: line, sock=ours)
    try:
        yield Serves(line)
    finally:
        line.close()
        await asyncio.to_thread(process.wait)


@contextlib.asynccontextmanager
async def echoing(folder: Path, port: int) -> AsyncIterator[Echo]:
    line = Echo()
    await asyncio.get_running_loop().create_connection(
        lambda: line, "127.0.0.1", port, ssl=client(folder), server_hostname=NODE_TLS_NAME
    )
    try:
        yield line
    finally:
        line.close()


async def serve(folder: Path) -> None:
    """The other process: until its input ends."""
    context = tls.mutual_server((folder / "ca.crt").read_bytes())
    tls.load(context, folder / f"{THERE}.crt", folder / f"{THERE}.key")
    loop = asyncio.get_running_loop()
    async with worker() as serves:
        server = MemberLinkServer(
            THERE, serves, context, SystemClock(), FunctionSettings(), access=OpenAccess()
        )
        sock = socket.create_server(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        server.listen(sock)
        echo = await loop.create_server(Echo, "127.0.0.1", 0, ssl=context)
        print(port, echo.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        echo.close()
        await server.stop(0.0)


def client(folder: Path) -> ssl.SSLContext:
    context = tls.client((folder / "ca.crt").read_bytes())
    tls.load(context, folder / f"{HERE}.crt", folder / f"{HERE}.key")
    return context


def make_certificates(folder: Path) -> None:
    authority = pki.CertificateAuthority.load_or_create(folder, SystemClock())
    for node in (HERE, THERE):
        request = pki.SigningRequest.parse(pki.make_request(pki.load_or_create_key(folder / f"{node}.key")))
        issued = authority.issue(
            request,
            name=node,
            role=Role.NODE,
            lifetime_s=3600.0,
            server=True,
            client=True,
            hosts=[NODE_TLS_NAME],
        )
        (folder / f"{node}.crt").write_bytes(issued.pem)


def quieten() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


if __name__ == "__main__":
    quieten()
    uvloop.run(serve(Path(sys.argv[1])))

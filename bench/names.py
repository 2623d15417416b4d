"""The name server of containers: answers per second and their times, against a bare loop that echoes.

Both run in a process of their own, on uvloop and with the same reader of a socket, and are asked by the same
client: with many questions under way for the rate, with one at a time for the times. The zone has 1,000
services of 10 copies. Rates of one client are limited by a setting, which is raised here.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import random
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection

import dnslib
import uvloop

from bench.figures import Figure
from skerry.kit.clock import SystemClock
from skerry.model.ids import InstanceId, Namespace, NodeId, ServiceId
from skerry.model.network_objects import ServiceAddress, ServiceEndpoint
from skerry.node.network.dns.budgets import ClientLimit, WorkBudget
from skerry.node.network.dns.forwarder import Forwarder
from skerry.node.network.dns.listeners import DnsListener
from skerry.node.network.dns.reply_cache import ReplyCache
from skerry.node.network.dns.resolver import Resolver
from skerry.node.network.dns.views import NameViews
from skerry.node.network.dns.zone import Zone

LOCAL = "127.0.0.1"
SERVICES = 1000
COPIES = 10
QUESTIONS = 8000
WINDOW = 32
SINGLE = 2000
ROUNDS = 3


def measure() -> Iterator[Figure]:
    known = [_question(f"web{number % SERVICES}.shop.skerry", number) for number in range(QUESTIONS)]
    # Each is spelled as none before: every answer must be written.
    fresh = [_question(_spelled(number), number) for number in range(QUESTIONS)]
    with _serving(_echo) as echo, _serving(_serve_names) as names:
        _rate(names, known)  # from now on they are remembered
        bare, remembered, written = [], [], []
        for at in range(ROUNDS):  # taking turns, so that both have the same neighbours
            bare.append(_rate(echo, known))
            remembered.append(_rate(names, known))
            written.append(_rate(names, fresh[at::ROUNDS]))
        bare_s, answer_s = _times((echo, names), known)
    best = max(bare)
    yield Figure("answers per second, remembered", max(remembered), "1/s")
    yield Figure(
        "the same",
        max(remembered) / best,
        "x a bare echo",
        at_least=0.4,
        peer=best,
        peer_unit="1/s",
        peer_name="bare echo",
    )
    yield Figure("answers per second, each written anew", max(written), "1/s")
    yield Figure(
        "the same",
        max(written) / best,
        "x a bare echo",
        at_least=0.04,
        peer=best,
        peer_unit="1/s",
        peer_name="bare echo",
    )
    p99 = _percentile(answer_s)
    yield Figure("p50 of an answer, one at a time", statistics.median(answer_s) * 1e6, "us")
    yield Figure("p99 of an answer, one at a time", p99 * 1e6, "us")
    yield Figure(
        "the same",
        p99 / _percentile(bare_s),
        "x p99 of a bare echo",
        at_most=3.0,
        peer=_percentile(bare_s) * 1e6,
        peer_unit="us",
        peer_name="bare echo p99",
    )


def _question(name: str, id: int) -> bytes:
    record = dnslib.DNSRecord.question(name)
    record.header.id = id & 0xFFFF
    return bytes(record.pack())


def _spelled(number: int) -> str:
    """A name in a spelling that no other number has."""
    name = f"web{number % SERVICES}.shop.skerry"
    bits = random.getrandbits(len(name))
    return "".join(each.upper() if bits >> at & 1 else each for at, each in enumerate(name))


def _rate(port: int, packets: list[bytes]) -> float:
    """Questions answered per second, with `WINDOW` of them under way."""
    with _client(port) as client:
        began = time.monotonic()
        for packet in packets[:WINDOW]:
            client.send(packet)
        for packet in packets[WINDOW:]:
            client.recv(2000)
            client.send(packet)
        for _ in packets[:WINDOW]:
            client.recv(2000)
        return len(packets) / (time.monotonic() - began)


def _times(ports: Sequence[int], packets: list[bytes]) -> list[list[float]]:
    """The times of a question and its answer at each port, one at a time and in turns."""
    took: list[list[float]] = [[] for _ in ports]
    with contextlib.ExitStack() as undo:
        clients = [undo.enter_context(_client(port)) for port in ports]
        for packet in packets[:SINGLE]:
            for client, times in zip(clients, took, strict=True):
                began = time.monotonic()
                client.send(packet)
                client.recv(2000)
                times.append(time.monotonic() - began)
    return took


def _percentile(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


@contextlib.contextmanager
def _client(port: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(20)
        client.connect((LOCAL, port))
        yield client


@contextlib.contextmanager
def _serving(serve: Callable[[Connection], None]) -> Iterator[int]:
    """The port of a server in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _echo(parent: Connection) -> None:
    async def serve() -> None:
        echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        echo.setblocking(False)
        echo.bind((LOCAL, 0))

        def receive() -> None:
            for _ in range(32):
                try:
                    packet, sender = echo.recvfrom(1233)
                except BlockingIOError:
                    return
                echo.sendto(packet, sender)

        asyncio.get_running_loop().add_reader(echo, receive)
        parent.send(echo.getsockname()[1])
        await asyncio.Event().wait()

    uvloop.run(serve())


def _serve_names(parent: Connection) -> None:
    async def serve() -> None:
        clock, zone = SystemClock(), Zone("skerry")
        zone.replace(ServiceAddress, {f"s{number}": _service(number) for number in range(SERVICES)})
        resolver = Resolver(
            zone,
            NameViews(zone.namespace_of),
            Forwarder(lambda: (), ReplyCache(100, 100_000), clock),
            WorkBudget(1e9, 1e9),
            clock,
            ttl_s=5,
            is_confirmed=lambda: True,
        )
        listener = DnsListener(LOCAL, resolver, lambda client: True, ClientLimit(1, 1), idle_s=1)
        await listener.open(0)
        parent.send(listener.port)
        await asyncio.Event().wait()

    uvloop.run(serve())


def _service(number: int) -> ServiceAddress:
    return ServiceAddress(
        ServiceId(f"s{number}"),
        f"web{number}",
        Namespace("shop"),
        f"10.63.{number // 250}.{number % 250 + 1}",
        endpoints=tuple(
            ServiceEndpoint(
                InstanceId(f"i{number}-{index}"),
                NodeId("n"),
                f"10.{64 + index}.{number // 250}.{number % 250 + 2}",
                index=index,
            )
            for index in range(COPIES)
        ),
    )

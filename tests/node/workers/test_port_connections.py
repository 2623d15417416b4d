"""The way into a container: connections that lead to one process, or nowhere."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from skerry.kit.clock import ManualClock
from skerry.node.kernel import namespaces
from skerry.node.workers.port_connections import PortClosed, PortConnections
from tests.node.workers.servers import Process, Server, http, serving
from tests.support.shares import free_port
from tests.support.waiting import eventually

OK = http(b"ok")


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.kill()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@asynccontextmanager
async def connect_to(server: Server, process: Process, clock: ManualClock) -> AsyncIterator[PortConnections]:
    door = PortConnections(process.pidfd(), "127.0.0.1", server.port, clock)
    try:
        yield door
    finally:
        door.close()
        await asyncio.sleep(0)


async def request(door: PortConnections) -> bytes:
    connection = await door.acquire()
    try:
        return (await connection.post("/", b"", most=100))[1]
    finally:
        door.release(connection)


async def test_a_server_that_keeps_connections_is_called_by_the_same_again_and_by_several_at_once(
    process: Process, clock: ManualClock
) -> None:
    async with serving(OK) as server, connect_to(server, process, clock) as door:
        await request(door)
        clock.advance(0.1)
        assert [await request(door) for _ in range(3)] == [b"ok"] * 3
        assert server.connections == 1
        await asyncio.gather(request(door), request(door))
        assert server.connections == 2


async def test_a_connection_that_nobody_used_for_a_while_is_not_trusted(
    process: Process, clock: ManualClock
) -> None:
    async with serving(OK) as server, connect_to(server, process, clock) as door:
        await request(door)
        clock.advance(1.0)
        await request(door)
        assert server.connections == 2


async def test_a_server_that_closes_every_connection_without_a_word_loses_no_call(
    process: Process, clock: ManualClock
) -> None:
    async with serving(OK, ends=True) as server, connect_to(server, process, clock) as door:
        for _ in range(20):
            assert await request(door) == b"ok"
            clock.advance(0.001)
        assert server.connections == 20


async def test_nothing_is_sent_to_whoever_has_the_port_of_a_dead_process(
    process: Process, clock: ManualClock
) -> None:
    async with serving(OK) as server, connect_to(server, process, clock) as door:
        await request(door)
        process.kill()
        # The loop has not got to know it yet.
        with pytest.raises(PortClosed, match="ended"):
            await door.acquire()
        assert len(server.bodies) == 1


async def test_a_process_that_dies_while_a_connection_is_made_gets_none(
    process: Process, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(OK) as server, connect_to(server, process, clock) as door:
        opening: Callable[..., socket.socket] = door._make_socket

        def make_and_die() -> socket.socket:
            process.kill()
            return opening()

        monkeypatch.setattr(door, "_make_socket", make_and_die)
        with pytest.raises(PortClosed, match="ended"):
            await door.acquire()
        assert server.bodies == []


async def test_the_end_of_the_process_cuts_what_is_under_way_and_is_told(
    process: Process, clock: ManualClock
) -> None:
    async with serving(None) as server, connect_to(server, process, clock) as door:
        requesting = asyncio.ensure_future(request(door))
        await eventually(lambda: server.bodies == [b""])
        process.kill()
        await door.ended
        with pytest.raises(Exception, match="lost"):
            await requesting


async def test_nobody_listening_is_told(process: Process, clock: ManualClock) -> None:
    port = free_port()
    async with connect_to(Server(port), process, clock) as door:
        with pytest.raises(PortClosed, match="nothing listens"):
            await door.acquire()


async def test_a_process_of_another_group_is_not_entered(process: Process, clock: ManualClock) -> None:
    with pytest.raises(PortClosed):
        PortConnections.to(process._process.pid, "127.0.0.1", 8080, clock, group="no/such/group")
    with pytest.raises(PortClosed):
        PortConnections.to(2**22 + 1, "127.0.0.1", 8080, clock, group="functions/x")


@pytest.mark.root
async def test_a_process_without_a_network_is_reached_by_its_own_loopback(
    process: Process, clock: ManualClock
) -> None:
    """And nobody who listens on the same port of ours is."""

    def namespace() -> int:
        namespaces.enter_new_namespace()
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    async with serving(OK) as server:
        inside = namespaces.in_own_thread(namespace)
        door = PortConnections(process.pidfd(), "127.0.0.1", server.port, clock, namespace=inside)
        with pytest.raises(PortClosed):
            await door.acquire()
        door.close()
        assert server.connections == 0

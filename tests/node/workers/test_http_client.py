"""One POST after another over a kept connection, to servers of every kind."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from skerry.node.workers.http_client import HttpReplyTooLarge, MalformedHttpReply, WorkerHttpConnection
from tests.node.workers.servers import Server, http, serving
from tests.support.shares import free_port
from tests.support.waiting import eventually


@contextlib.asynccontextmanager
async def connected(server: Server) -> AsyncIterator[WorkerHttpConnection]:
    connection = await WorkerHttpConnection.open(socket.socket(), "127.0.0.1", server.port)
    try:
        yield connection
    finally:
        connection.close()
        await asyncio.sleep(0)  # the socket is closed by the loop


async def test_a_connection_serves_one_post_after_another() -> None:
    async with (
        serving(http(b"one"), http(b"two", status="500 No")) as server,
        connected(server) as connection,
    ):
        assert await connection.post("/invoke", b"{}", most=10) == (200, b"one")
        assert connection.is_usable
        assert await connection.post("/invoke", b"[1]", most=10) == (500, b"two")
    assert server.bodies == [b"{}", b"[1]"]
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + http(b"abc"),
        http(b"abc", version="1.0"),
        http(b"abc", Connection="close"),
    ],
)
async def test_whatever_way_an_answer_tells_its_length_it_is_read_whole(answer: bytes) -> None:
    async with serving(answer) as server, connected(server) as connection:
        assert await connection.post("/", b"", most=3) == (200, b"abc")


async def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    async with serving(b"HTTP/1.0 200 OK\r\n\r\nabc", ends=True) as server, connected(server) as connection:
        assert await connection.post("/", b"", most=3) == (200, b"abc")
        assert not connection.is_usable


@pytest.mark.parametrize("answer", [http(b"abc", version="1.0"), http(b"abc", Connection="close")])
async def test_a_server_that_keeps_no_connection_is_not_sent_a_second_post(answer: bytes) -> None:
    async with serving(answer) as server, connected(server) as connection:
        await connection.post("/", b"", most=3)
        assert not connection.is_usable
        with pytest.raises(MalformedHttpReply):
            await connection.post("/", b"", most=3)
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        http(b"abc")[:-1],
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
        b"SSH-2.0-x\r\n",
    ],
)
async def test_an_answer_that_is_not_whole_is_none(answer: bytes) -> None:
    async with serving(answer, ends=True) as server, connected(server) as connection:
        with pytest.raises(MalformedHttpReply):
            await connection.post("/", b"", most=100)
        assert not connection.is_usable


@pytest.mark.parametrize(
    "answer",
    [
        http(b"abcd"),
        b"HTTP/1.1 200 OK\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n",
        http(b"", X=70_000 * "x"),
    ],
)
async def test_an_answer_that_is_too_long_is_not_read_to_its_end(answer: bytes) -> None:
    async with serving(answer) as server, connected(server) as connection:
        with pytest.raises(HttpReplyTooLarge):
            await connection.post("/", b"", most=3)
        assert not connection.is_usable


async def test_a_second_answer_to_one_post_is_never_taken_for_that_to_the_next() -> None:
    async with serving(http(b"one") + http(b"evil")) as server, connected(server) as connection:
        with contextlib.suppress(MalformedHttpReply):
            assert await connection.post("/", b"", most=100) == (200, b"one")
        assert not connection.is_usable


async def test_what_comes_without_having_been_asked_for_ends_the_connection() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http(b"evil"))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, connected(Server(port)) as connection:
        await eventually(lambda: not connection.is_usable)


async def test_a_connection_that_the_server_closes_is_seen_to_be_closed() -> None:
    async with serving(http(b"one"), ends=True) as server, connected(server) as connection:
        await connection.post("/", b"", most=3)
        await eventually(lambda: not connection.is_usable)


async def test_a_post_that_is_cancelled_leaves_a_connection_of_no_use() -> None:
    async with serving(None) as server, connected(server) as connection:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await connection.post("/", b"", most=3)
        assert not connection.is_usable


async def test_a_large_body_arrives_whole() -> None:
    body = bytes(range(256)) * 20_000
    async with serving(http(b"ok")) as server, connected(server) as connection:
        assert await connection.post("/", body, most=3) == (200, b"ok")
    assert server.bodies == [body]


async def test_nobody_listens_is_an_error_of_the_system_and_leaves_no_socket() -> None:
    port = free_port()
    with pytest.raises(ConnectionRefusedError):
        await WorkerHttpConnection.open(socket.socket(), "127.0.0.1", port)

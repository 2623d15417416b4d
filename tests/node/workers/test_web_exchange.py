"""HTTP requests to the port of a container, as they came, and replies that are handed on part by part."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from skerry.kit.response_stream import WINDOW, ResponseStream
from skerry.model.web_calls import InvalidResponse, WebRequestHead, WebResponseHead
from skerry.node.workers.http_client import ClientLeft, MalformedHttpReply, WorkerHttpConnection
from tests.support.waiting import eventually

Reply = Callable[[asyncio.StreamWriter], None]


@asynccontextmanager
async def connected(
    *replies: bytes, endless: bool = False
) -> AsyncIterator[tuple[WorkerHttpConnection, list[bytes]]]:
    """A connection to a server that sends `replies`, one for each request, and the heads that it got."""
    heads: list[bytes] = []
    waiting = iter(replies)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(next(waiting))
                while endless:
                    writer.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
                    await writer.drain()
                if b"connection: close" in replies[0]:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, StopIteration):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = await WorkerHttpConnection.open(socket.socket(), "127.0.0.1", port)
    try:
        yield connection, heads
    finally:
        connection.close()
        server.close()
        await asyncio.sleep(0)


async def exchanged(connection: WorkerHttpConnection, head: WebRequestHead) -> tuple[WebResponseHead, bytes]:
    response: ResponseStream[WebResponseHead] = ResponseStream()
    await connection.exchange(head, b"", response)
    response.end()
    got = await response.wait_head()
    assert got is not None
    return got, await response.read()


GET = WebRequestHead("GET", "/a%20b", "x=1", (("host", "a.example"), ("x-a", "1"), ("x-a", "2")), "192.0.2.1")


async def test_a_request_is_sent_as_it_came_and_its_reply_comes_back() -> None:
    reply = b"HTTP/1.1 404 No\r\ncontent-length: 2\r\nX-B: c\r\nkeep-alive: 5\r\n\r\nhi"
    async with connected(reply, reply) as (connection, heads):
        for _ in range(2):
            head, body = await exchanged(connection, GET)
            assert (head.status, body) == (404, b"hi")
            assert head.headers == (("x-b", "c"), ("content-length", "2"))
        assert (
            heads
            == [
                b"GET /a%20b?x=1 HTTP/1.1\r\nhost: a.example\r\nx-a: 1\r\nx-a: 2\r\n"
                b"x-forwarded-for: 192.0.2.1\r\n\r\n"
            ]
            * 2
        )
        assert connection.is_usable


@pytest.mark.parametrize(
    ("reply", "body"),
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", b"abc"),
        (b"HTTP/1.1 204 None\r\n\r\n", b""),
        (b"HTTP/1.0 200 OK\r\nconnection: close\r\n\r\nabc", b"abc"),
    ],
)
async def test_whatever_way_a_reply_tells_its_length_it_is_handed_on(reply: bytes, body: bytes) -> None:
    async with connected(reply) as (connection, _):
        assert (await exchanged(connection, GET))[1] == body


async def test_a_reply_to_head_has_no_body() -> None:
    async with connected(b"HTTP/1.1 200 OK\r\ncontent-length: 300\r\n\r\n") as (connection, _):
        head, body = await exchanged(connection, WebRequestHead("HEAD", "/"))
        assert (head.content_length, body) == (300, b"")
        assert not connection.is_usable


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"nonsense\r\n\r\n", MalformedHttpReply),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", MalformedHttpReply),
        (b"HTTP/1.1 700 Odd\r\ncontent-length: 0\r\n\r\n", InvalidResponse),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", InvalidResponse),
    ],
)
async def test_an_invalid_reply_is_an_error(reply: bytes, error: type[Exception]) -> None:
    async with connected(reply) as (connection, _):
        with pytest.raises(error):
            await connection.exchange(GET, b"", ResponseStream())


async def test_a_reply_is_read_as_fast_as_it_is_taken_and_no_longer() -> None:
    begin = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    async with connected(begin, endless=True) as (connection, _):
        response: ResponseStream[WebResponseHead] = ResponseStream()
        call = asyncio.ensure_future(connection.exchange(GET, b"", response))
        for _ in range(20):
            await eventually(lambda: response.unread >= WINDOW // 2)
            assert response.unread < 2 * WINDOW
            assert await response.read()
        response.abandon()
        with pytest.raises(ClientLeft):
            await call
        assert not connection.is_usable

"""Servers that checks meet: good, slow, silent, talkative and broken ones, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from skerry.node.containers.ports import ExecHandle

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
NAME = "i-web"


@contextlib.asynccontextmanager
async def serving(handler: Handler, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """The port of a server that handles each connection so, and closes it after that."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError):
                await handler(reader, writer)
        finally:
            tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    server = await asyncio.start_server(handle, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def answering(data: bytes, *, then: Callable[[], Awaitable[None]] | None = None) -> Handler:
    """Reads a request, says `data`, and closes; or does something else first."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(data)
        await writer.drain()
        if then is not None:
            await then()

    return handle


async def hang() -> None:
    await asyncio.get_running_loop().create_future()


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await hang()


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer that never ends."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def flood_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: " + b"y" * 4096 + b"\r\n")
        await writer.drain()


def closed_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port: int = some.getsockname()[1]
        return port


class LocalContainers:
    """One container, whose network is this process's own."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._address = address
        self.opened: list[socket.socket] = []

    def address(self, name: str) -> str:
        return self._address

    def open_socket(self, name: str) -> asyncio.Future[socket.socket]:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.opened.append(made)
        opening = asyncio.get_running_loop().create_future()
        opening.set_result(made)
        return opening

    async def exec(self, name: str, arguments: tuple[str, ...], *, stdio: tuple[int, int, int]) -> ExecHandle:
        raise AssertionError("there are no commands here")

"""The forwarder: bytes pass both ways, and a server that is away is an end of the connection."""

from __future__ import annotations

import asyncio
import socket

from skerry.demo.forwarder import forward
from skerry.kit.tasks import cancel_and_wait


async def _upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data.upper())
    writer.close()
    await writer.wait_closed()


async def test_bytes_pass_both_ways() -> None:
    server = await asyncio.start_server(_upper, "127.0.0.1", 0)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    task = asyncio.ensure_future(forward(listener, "127.0.0.1", server.sockets[0].getsockname()[1]))
    async with asyncio.timeout(10), server:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"question")
        assert await reader.readexactly(8) == b"QUESTION"
        writer.close()
        await writer.wait_closed()
        await cancel_and_wait([task])


async def test_without_a_server_the_connection_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        away = unused.getsockname()[1]
    listener = socket.create_server(("127.0.0.1", 0))
    task = asyncio.ensure_future(forward(listener, "127.0.0.1", away))
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        await cancel_and_wait([task])

"""Servers that answer as a test says, and processes that stand for their containers."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """What it was sent, and where it is."""

    port: int = 0
    connections: int = 0
    bodies: list[bytes] = field(default_factory=list)


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of a request; empty at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b"", b""
    length = next(
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    )
    return head, await reader.readexactly(length)


@asynccontextmanager
async def serving(*answers: bytes | None, ends: bool = False, at_once: int = 1000) -> AsyncIterator[Server]:
    """Gives `answers` in turn, the last again and again; None is none at all, for ever. With `ends` each
    connection is closed after one. Of `at_once` connections, others wait for the end of one."""
    served = Server()
    free = asyncio.Semaphore(at_once)
    going: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        going.add(task)
        served.connections += 1
        try:
            await free.acquire()
            while True:
                head, body = await read_request(reader)
                if not head:
                    return
                number = len(served.bodies)
                served.bodies.append(body)
                answer = answers[min(number, len(answers) - 1)]
                if answer is None:
                    await asyncio.Event().wait()
                assert answer is not None
                writer.write(answer)
                await writer.drain()
                if ends:
                    return
        except (ConnectionError, asyncio.CancelledError):
            pass  # the caller has gone, or the test is over
        finally:
            free.release()
            going.discard(task)
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        for task in list(going):
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)
        await server.wait_closed()


def http(body: bytes, status: str = "200 OK", version: str = "1.1", **headers: str) -> bytes:
    """An answer that tells its length."""
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/{version} {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


class Process:
    """A process that does nothing, until it is killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["sleep", "1000"])

    def pidfd(self) -> int:
        return os.pidfd_open(self._process.pid)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

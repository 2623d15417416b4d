"""The floor of a warm call: the least code that parses HTTP, hands the body to a worker process over a
socketpair, and answers with what it returns.

Run as a program it prints its URL and serves until it is terminated. Workers get one call at a time, as
Skerry's do by default, and other calls wait. Nothing else of a platform is here: no access, no limits, no
checks, no time-outs, no counts, no isolation. It is what is left to compare with, not something to use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from typing import cast

import httptools
import uvloop

_AT_ONCE = 65536
_Call = tuple["_Connection", bytes]


def work(end: socket.socket) -> None:
    """A worker: JSON in, the result of a handler that does nothing out."""
    while data := end.recv(_AT_ONCE):
        json.loads(data)
        end.sendall(json.dumps({}).encode())


class _Workers:
    """The workers that are free, and the calls that wait for one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ends: list[socket.socket]) -> None:
        self._free = deque(ends)
        self._waiting: deque[_Call] = deque()
        self._running: dict[socket.socket, _Connection] = {}
        for end in ends:
            end.setblocking(False)
            loop.add_reader(end, self._read, end)

    def call(self, connection: _Connection, body: bytes) -> None:
        if self._free:
            self._send(self._free.pop(), connection, body)
        else:
            self._waiting.append((connection, body))

    def _send(self, end: socket.socket, connection: _Connection, body: bytes) -> None:
        self._running[end] = connection
        end.send(body)

    def _read(self, end: socket.socket) -> None:
        result = end.recv(_AT_ONCE)
        connection = self._running.pop(end)
        if self._waiting:
            self._send(end, *self._waiting.popleft())
        else:
            self._free.append(end)
        connection.answer(result)


class _Connection(asyncio.Protocol):
    def __init__(self, workers: _Workers) -> None:
        self._workers = workers
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        self._workers.call(self, body)

    def answer(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        if not self._transport.is_closing():
            self._transport.write(head + body)


async def _serve(ends: list[socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    workers = _Workers(loop, ends)
    server = await loop.create_server(lambda: _Connection(workers), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await server.serve_forever()


def _main(workers: int) -> None:
    ends = []
    for _ in range(workers):
        ours, theirs = socket.socketpair()
        if not os.fork():
            ours.close()
            work(theirs)
            os._exit(0)
        theirs.close()
        ends.append(ours)
    uvloop.run(_serve(ends))


@contextlib.contextmanager
def floor(workers: int) -> Iterator[str]:
    """The URL of one that runs."""
    command = [sys.executable, "-m", "bench.floor", str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


if __name__ == "__main__":
    _main(int(sys.argv[1]))

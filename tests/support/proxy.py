"""A TCP proxy in the test's own event loop that can cut connections and lose what is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from tests.support.shares import free_port


class Proxy:
    """`async with Proxy(port) as proxy`: connections to `proxy.address` reach `port` on loopback."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._own_port = free_port()
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.connections = 0
        self.loses_requests = False
        self.loses_answers = False
        self.lost = 0  # bytes

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._own_port}"

    async def __aenter__(self) -> Proxy:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._own_port)

    async def refuse(self) -> None:
        """Take no more connections and cut those there are."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.cut()

    async def cut(self) -> None:
        """Break every connection; new ones are taken."""
        for writer in self._writers:
            writer.transport.abort()
        pumps = list(self._pumps)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(far_writer)
        for source, sink, is_lossy in (
            (reader, far_writer, lambda: self.loses_requests),
            (far_reader, writer, lambda: self.loses_answers),
        ):
            pump = asyncio.ensure_future(self._pump(source, sink, is_lossy))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_lossy: Callable[[], bool]
    ) -> None:
        try:
            while data := await source.read(65536):
                if is_lossy():
                    self.lost += len(data)
                    continue
                sink.write(data)
                await sink.drain()
        except OSError:
            pass  # the other side broke first
        finally:
            sink.transport.abort()
            self._writers.discard(sink)

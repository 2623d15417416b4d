"""A gRPC client without manners: HTTP/2 frames by hand, over plain TCP, TLS, or TLS on a unix socket."""

from __future__ import annotations

import asyncio
import ssl
import struct
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

from tests.support.waiting import PATIENCE_S


def framed(body: bytes, *, compressed: bool = False, size: int | None = None) -> bytes:
    return struct.pack(">?I", compressed, len(body) if size is None else size) + body


class RawClient:
    """`async with RawClient(port) as raw: status, text = await raw.call(path, framed(...))`."""

    def __init__(
        self, where: int | Path, tls: ssl.SSLContext | None = None, *, server_name: str = "localhost"
    ) -> None:
        self._where = where
        self._tls = tls
        self._server_name = server_name if tls else None
        self.http2 = H2Connection(
            H2Configuration(
                client_side=True,
                header_encoding="latin-1",
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self.is_goaway = False
        self._events: list[Event] = []

    async def __aenter__(self) -> RawClient:
        if isinstance(self._where, Path):
            opening = asyncio.open_unix_connection(
                self._where, ssl=self._tls, server_hostname=self._server_name
            )
        else:
            opening = asyncio.open_connection(
                "127.0.0.1", self._where, ssl=self._tls, server_hostname=self._server_name
            )
        self.reader, self.writer = await opening
        self.http2.initiate_connection()
        await self.flush()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass  # the server was quicker

    async def flush(self) -> None:
        if data := self.http2.data_to_send():
            self.writer.write(data)
            await self.writer.drain()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def start(self, path: str, /, *more: tuple[str, str], **replaced: str) -> int:
        """Send the headers of a call; the names in `replaced` stand for `:name`, empty for none."""
        pseudo = {"method": "POST", "scheme": "http", "authority": "localhost", "path": path} | replaced
        headers = [(f":{name}", value) for name, value in pseudo.items() if value]
        if not any(name == "content-type" for name, _ in more):
            headers.append(("content-type", "application/grpc"))
        stream = self.http2.get_next_available_stream_id()
        self.http2.send_headers(stream, [*headers, ("te", "trailers"), *more])
        await self.flush()
        return stream

    async def write(self, stream: int, data: bytes, *, end: bool = True) -> None:
        while len(data) > (room := min(self.http2.local_flow_control_window(stream), 16384)):
            self.http2.send_data(stream, data[:room])
            data = data[room:]
        self.http2.send_data(stream, data, end_stream=end)
        await self.flush()

    async def call(
        self, path: str, data: bytes = b"", /, *more: tuple[str, str], **replaced: str
    ) -> tuple[int, str]:
        """One whole call: its grpc-status and its grpc-message."""
        stream = await self.start(path, *more, **replaced)
        await self.write(stream, data)
        headers = await self.answer(stream)
        return int(headers["grpc-status"]), unquote(headers.get("grpc-message", ""))

    async def first_status(self, path: str, data: bytes, /, *more: tuple[str, str]) -> int:
        """The grpc-status of a call, or 0 as soon as it has a first message; for calls that never end."""
        stream = await self.start(path, *more)
        await self.write(stream, data)
        while True:
            event = await self._next_event(stream)
            if isinstance(event, DataReceived):
                return 0
            if isinstance(event, ResponseReceived | TrailersReceived) and "grpc-status" in dict(
                event.headers
            ):
                return int(dict(event.headers)["grpc-status"])

    async def answer(self, stream: int) -> dict[str, str]:
        """All headers and trailers of the answer; `data` holds its body, `reset` the code of a reset."""
        found: dict[str, str] = {}
        while True:
            event = await self._next_event(stream)
            if isinstance(event, ResponseReceived | TrailersReceived):
                found |= dict(event.headers)
                if event.stream_ended is not None:
                    return found
            elif isinstance(event, DataReceived):
                found["data"] = found.get("data", "") + event.data.hex()
            elif isinstance(event, StreamReset):
                return found | {"reset": str(int(event.error_code))}
            elif isinstance(event, StreamEnded):
                return found

    async def ended(self) -> bool:
        """Read until the server closes; True if it said goodbye before."""
        while await self._read():
            pass
        return self.is_goaway

    async def _next_event(self, stream: int) -> Event:
        while True:
            for index, event in enumerate(self._events):
                if getattr(event, "stream_id", None) == stream:
                    return self._events.pop(index)
            if not await self._read():
                raise ConnectionError("the server closed the connection")

    async def _read(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            try:
                data = await self.reader.read(65536)
            except OSError:
                return False
        if not data:
            return False
        for event in self.http2.receive_data(data):
            self._events.append(event)
            self.is_goaway |= isinstance(event, ConnectionTerminated)
        if not self.is_goaway:
            await self.flush()
        return True

"""A client that speaks bytes, for what no proper client would send."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from tests.support.waiting import PATIENCE_S


@dataclass(frozen=True)
class Answer:
    """A whole answer as it was read."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, host: str, port: int) -> Wire:
        return cls(*await asyncio.open_connection(host, port))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def finish_sending(self) -> None:
        self.writer.write_eof()

    async def answer(self) -> Answer:
        """The next answer with a Content-Length."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)
            }
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(first.split(" ")[1]), headers, body)

    async def rest(self) -> bytes:
        """What comes until the server closes; a reset counts as closing."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read(-1)
            except ConnectionError:
                return b""

    def vanish(self) -> None:
        """Go away without a word."""
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def post(path: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    sent = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {len(body) if length is None else length}",
        *headers,
        "",
        "",
    ]
    return "\r\n".join(sent).encode() + body

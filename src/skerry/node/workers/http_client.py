"""One POST after another over a connection that is kept: HTTP as workers of images are spoken to.

`skerry.node.workers.container_workers` says where to and what; here are only bytes. There is no redirect, no
proxy, no second try and no name to look up: what is sent reaches whoever the socket was connected to, or
nobody. What comes without having been asked for ends the connection, so that it is never taken for an answer.
"""

from __future__ import annotations

import asyncio
import select
import socket
from typing import Final, cast

import httptools

_MAX_HEADERS: Final = 64 * 1024


class MalformedHttpReply(Exception):
    """There was no whole answer: the connection ended before, or what came is no HTTP."""


class HttpReplyTooLarge(Exception):
    """The answer is longer than it may be."""


class WorkerHttpConnection(asyncio.Protocol):
    """A connection to one server."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._answer: _Answer | None = None  # that is waited for
        self._waiter: asyncio.Future[None] | None = None
        self._is_open = True
        self.idle_since = 0.0  # for whoever keeps it

    @classmethod
    async def open(cls, made: socket.socket, host: str, port: int) -> WorkerHttpConnection:
        """By a socket that is not connected yet, and is closed if this fails. Raises OSError."""
        loop = asyncio.get_running_loop()
        try:
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(made, (host, port))
            _, connection = await loop.create_connection(lambda: cls(f"{host}:{port}"), sock=made)
        except BaseException:
            made.close()
            raise
        return connection

    @property
    def is_usable(self) -> bool:
        """False as soon as the other side has closed it, or sent what nobody waits for, whether or not the
        loop has got to know it."""
        if not self._is_open or self._transport is None:
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN | select.POLLRDHUP)
        return not poll.poll(0)

    async def post(self, path: str, body: bytes, *, most: int) -> tuple[int, bytes]:
        """Status and body of the answer, which has at most `most` bytes. Unless this returns, the connection
        is of no more use. Raises MalformedHttpReply, HttpReplyTooLarge."""
        if self._transport is None or self._waiter is not None or not self.is_usable:
            raise MalformedHttpReply("the connection was closed")
        answer = self._answer = _Answer(most)
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._transport.writelines((head.encode(), body))
        try:
            await waiter
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = self._waiter = None
        if not answer.keeps_alive:
            self.close()
        return answer.status, answer.body

    def close(self) -> None:
        """At once: what is unsent is dropped."""
        self._is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        answer, waiter = self._answer, self._waiter
        if answer is None or waiter is None or waiter.done():
            self.close()  # nobody has asked
            return
        try:
            answer.feed(data)
        except (MalformedHttpReply, HttpReplyTooLarge) as error:
            waiter.set_exception(error)
            return
        if answer.is_whole:
            waiter.set_result(None)

    def eof_received(self) -> bool:
        self._is_open = False
        if self._waiter is not None and not self._waiter.done():
            if self._answer is not None and self._answer.may_end_here:
                self._waiter.set_result(None)
            else:
                self._waiter.set_exception(
                    MalformedHttpReply("the connection was closed before the answer was whole")
                )
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(
                MalformedHttpReply("the connection was cut before the answer was whole")
            )


class _Answer:
    """An answer as it comes in."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[bytes] = []
        self._size = 0
        self._header_size = 0
        self._tells_its_length = False
        self._is_too_much = False
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.is_whole = False
        self.keeps_alive = False

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._is_too_much:
                raise HttpReplyTooLarge from None
            raise MalformedHttpReply(
                f"what it answered is no HTTP that could be understood: {error}"
            ) from None

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)

    @property
    def may_end_here(self) -> bool:
        """True if it goes on until the connection ends, which it does."""
        return self.status != 0 and not self._tells_its_length

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_size += len(name) + len(value)
        self._check(self._header_size, _MAX_HEADERS)
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._tells_its_length = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status // 100 != 1:  # `100 Continue` and its like come before the answer
            self.status = status

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        self._check(self._size, self._most)
        self._parts.append(data)

    def on_message_begin(self) -> None:
        if self.is_whole:
            raise MalformedHttpReply  # a second answer, to nothing

    def on_message_complete(self) -> None:
        if self.status:
            self.is_whole = True
            self.keeps_alive = self._parser.should_keep_alive()

    def _check(self, size: int, most: int) -> None:
        if size > most:
            self._is_too_much = True
            raise HttpReplyTooLarge

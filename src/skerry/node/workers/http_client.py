"""A minimal HTTP client for container workers: one request after another over a kept connection.

`skerry.node.workers.container_workers` decides where to and what. There are no redirects, proxies, retries or
name lookups: a request reaches the host that the socket was connected to, or fails. Unsolicited data ends the
connection, so that it is never taken for a reply. A reply is read as a whole (`post`), or handed on part by
part while its reader takes it (`exchange`).
"""

from __future__ import annotations

import asyncio
import select
import socket
from typing import Final, cast

import httptools

from skerry.kit.response_stream import WINDOW, ResponseStream
from skerry.model import web_calls
from skerry.model.web_calls import WebRequestHead, WebResponseHead

_MAX_HEADERS: Final = 64 * 1024


class MalformedHttpReply(Exception):
    """There was no complete reply: the connection ended before, or it is not valid HTTP."""


class HttpReplyTooLarge(Exception):
    """The reply is over its size limit."""


class WorkerHttpConnection(asyncio.Protocol):
    """A connection to one server."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._reply: _HttpReply | _StreamedReply | None = None  # expected
        self._waiter: asyncio.Future[None] | None = None
        self._is_open = True
        self.idle_since = 0.0  # for the pool of connections

    @classmethod
    async def open(cls, sock: socket.socket, host: str, port: int) -> WorkerHttpConnection:
        """Connect a socket, which is closed on failure. Raises OSError."""
        loop = asyncio.get_running_loop()
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, (host, port))
            _, connection = await loop.create_connection(lambda: cls(f"{host}:{port}"), sock=sock)
        except BaseException:
            sock.close()
            raise
        return connection

    @property
    def is_usable(self) -> bool:
        """False as soon as the other side has closed it, or sent unsolicited data, whether or not the loop
        has noticed."""
        if not self._is_open or self._transport is None:
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN | select.POLLRDHUP)
        return not poll.poll(0)

    async def post(self, path: str, body: bytes, *, most: int, traceparent: str = "") -> tuple[int, bytes]:
        """Status and body of the reply, which has at most `most` bytes. Unless this returns, the connection
        is unusable. Raises MalformedHttpReply, HttpReplyTooLarge."""
        reply = _HttpReply(most)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n"
        )
        if traceparent:
            head += f"traceparent: {traceparent}\r\n"
        await self._perform(f"{head}\r\n".encode(), body, reply)
        return reply.status, reply.body

    async def exchange(
        self, request: WebRequestHead, body: bytes, response: ResponseStream[WebResponseHead]
    ) -> None:
        """Send a request as it is, and hand its reply on as it comes. Unless this returns, the connection is
        unusable. Raises MalformedHttpReply, `web_calls.InvalidResponse`; ClientLeft if the reader left."""
        reply = _StreamedReply(response, is_head=request.method == "HEAD")
        response.attach(self._note_read, self._note_left)
        await self._perform(_encode_head(request, self._host, len(body)), body, reply)
        if reply.ends_early:
            self.close()

    def _note_read(self, count: int) -> None:
        if self._transport is not None and self._is_open and isinstance(self._reply, _StreamedReply):
            self._transport.resume_reading()

    def _note_left(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ClientLeft())

    async def _perform(self, head: bytes, body: bytes, reply: _HttpReply | _StreamedReply) -> None:
        if self._transport is None or self._waiter is not None or not self.is_usable:
            raise MalformedHttpReply("the connection was closed")
        self._reply = reply
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        self._transport.writelines((head, body))
        try:
            await waiter
        except BaseException:
            self.close()
            raise
        finally:
            self._reply = self._waiter = None
        if not reply.keeps_alive:
            self.close()

    def close(self) -> None:
        """At once: unsent data is dropped."""
        self._is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        reply, waiter = self._reply, self._waiter
        if reply is None or waiter is None or waiter.done():
            self.close()  # unsolicited
            return
        try:
            reply.feed(data)
        except (MalformedHttpReply, HttpReplyTooLarge, web_calls.InvalidResponse) as error:
            waiter.set_exception(error)
            return
        if reply.is_whole:
            waiter.set_result(None)
        elif reply.is_ahead and self._transport is not None:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._is_open = False
        if self._waiter is not None and not self._waiter.done():
            if self._reply is not None and self._reply.may_end_here:
                self._waiter.set_result(None)
            else:
                self._waiter.set_exception(
                    MalformedHttpReply("the connection was closed before the reply was complete")
                )
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(
                MalformedHttpReply("the connection was lost before the reply was complete")
            )


class ClientLeft(Exception):
    """The reader of a streamed reply left before its end."""


class _StreamedReply:
    """A reply that is handed on as it arrives."""

    def __init__(self, response: ResponseStream[WebResponseHead], *, is_head: bool) -> None:
        self._response = response
        self._is_head = is_head
        self._headers: list[tuple[str, str]] = []
        self._parts: list[bytes] = []
        self._header_size = 0
        self._has_length = False
        self._error: Exception | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.is_whole = False
        self.keeps_alive = False
        self.ends_early = False  # the parser waits for a body that does not come

    def feed(self, data: bytes) -> None:
        """Raises MalformedHttpReply, `web_calls.InvalidResponse`."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._error is not None:
                raise self._error from None
            raise MalformedHttpReply(f"its reply is not valid HTTP: {error}") from None
        if self._parts:
            parts, self._parts = b"".join(self._parts), []
            self._response.write(parts)

    @property
    def is_ahead(self) -> bool:
        """True if its reader has to take more first."""
        return self._response.unread >= WINDOW // 2

    @property
    def may_end_here(self) -> bool:
        return self.status != 0 and not self._has_length

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_size += len(name) + len(value)
        if self._header_size > _MAX_HEADERS:
            self._error = web_calls.InvalidResponse(f"its headers are longer than {_MAX_HEADERS} bytes")
            raise self._error
        text = name.decode("latin-1").lower()
        self._has_length = self._has_length or text in ("content-length", "transfer-encoding")
        self._headers.append((text, value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status // 100 == 1:
            self._headers, self._has_length = [], False
            return
        try:
            head = web_calls.check_response(status, self._headers)
        except web_calls.InvalidResponse as error:
            self._error = error
            raise
        self.status = status
        self._response.begin(head)
        if self._is_head:
            self.is_whole = self.ends_early = True

    def on_body(self, data: bytes) -> None:
        if not self._is_head:
            self._parts.append(data)

    def on_message_begin(self) -> None:
        if self.is_whole:
            raise MalformedHttpReply  # a second reply, unsolicited

    def on_message_complete(self) -> None:
        if self.status:
            self.is_whole = True
            self.keeps_alive = self._parser.should_keep_alive()


def _encode_head(request: WebRequestHead, host: str, length: int) -> bytes:
    """The head of a request; what it consists of came in over HTTP and has no line breaks."""
    target = f"{request.path}?{request.query}" if request.query else request.path
    named = {name for name, _ in request.headers}
    lines = [f"{request.method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in request.headers if name != "content-length"]
    if "host" not in named:
        lines.append(f"host: {host}")
    if length or request.method in ("POST", "PUT", "PATCH"):
        lines.append(f"content-length: {length}")
    if request.client and "x-forwarded-for" not in named:
        lines.append(f"x-forwarded-for: {request.client}")
    return "\r\n".join((*lines, "", "")).encode("latin-1")


class _HttpReply:
    """A reply, parsed as it arrives."""

    is_ahead = False  # it is stored until it is complete

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[bytes] = []
        self._size = 0
        self._header_size = 0
        self._has_length = False
        self._is_too_large = False
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.is_whole = False
        self.keeps_alive = False

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._is_too_large:
                raise HttpReplyTooLarge from None
            raise MalformedHttpReply(f"its reply is not valid HTTP: {error}") from None

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)

    @property
    def may_end_here(self) -> bool:
        """True if its end is the end of the connection."""
        return self.status != 0 and not self._has_length

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_size += len(name) + len(value)
        self._check(self._header_size, _MAX_HEADERS)
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status // 100 != 1:  # `100 Continue` and the like come before the reply
            self.status = status

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        self._check(self._size, self._most)
        self._parts.append(data)

    def on_message_begin(self) -> None:
        if self.is_whole:
            raise MalformedHttpReply  # a second reply, unsolicited

    def on_message_complete(self) -> None:
        if self.status:
            self.is_whole = True
            self.keeps_alive = self._parser.should_keep_alive()

    def _check(self, size: int, most: int) -> None:
        if size > most:
            self._is_too_large = True
            raise HttpReplyTooLarge

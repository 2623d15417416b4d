"""WebSockets: messages of bytes in both directions, on a connection that began as a request.

The request passes the dispatcher like any other, so a client without access gets a plain HTTP error; only
then it is accepted here. The `websockets` package has the protocol, without I/O; the connection stays
`skerry.transport.http.connection.HttpConnection`, with its limits. A client that does not read, or does not
answer pings, is disconnected; one that sends too much is slowed down by flow control. Without compression. A
socket accepts either bytes, the frames of a program, or text; the other kind is refused. Both may be sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Final

import structlog
from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from skerry.kit.tasks import race
from skerry.model import errors
from skerry.transport.http.asgi import Scope, Send
from skerry.transport.http.connection import LINGER_S, HttpConnection
from skerry.transport.http.responses import ClientDisconnected, HttpError
from skerry.transport.http.streaming import STALL_S, until_refused
from skerry.transport.pacing import FrameBudget

log = structlog.get_logger(__name__)

Handshake = list[tuple[bytes, bytes]]
CHOSEN: Final = b"sec-websocket-protocol"

PING_S: Final = 20.0
# Input that waits for its reader; more is left to the kernel, and so to the client.
_MAX_WAITING: Final = 256 * 1024
_PER_MESSAGE: Final = 64  # bytes that a message counts for besides its own, so that there are not too many
# Answers to pings that a client makes us write without reading them.
_MAX_UNREAD: Final = 1024 * 1024
# Pings, pongs, empty messages and fragments of next to nothing: so many at once, and each second. A browser
# sends one pong for each of our pings, every 20 s; a program that pings by itself needs no more than this.
_CONTROL_BURST: Final = 200
_CONTROL_PER_S: Final = 20
_FRAGMENT: Final = 64  # bytes, from which on a part of a message is no such frame
_MAX_REASON: Final = 123  # bytes, by the protocol
_SILENT: Final = logging.Logger(__name__, logging.CRITICAL + 1)  # the request has its own line in the log


def accept(scope: Scope, subprotocols: Sequence[str] = ()) -> Handshake:
    """The headers that complete the handshake; raises `HttpError` if this is none, or a bad one.

    Of `subprotocols` the first that the client offers is chosen. One that offers none gets none, but one that
    offers only others is refused.
    """
    upgrade = dict(scope["headers"]).get(b"upgrade", b"")
    if scope["method"] != "GET" or upgrade.lower() != b"websocket":
        raise HttpError(
            426,
            "websocket-needed",
            "this path is a WebSocket; use a WebSocket client",
            [(b"upgrade", b"websocket")],
        )
    known = [Subprotocol(name) for name in subprotocols]

    def choose(protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        return ServerProtocol.select_subprotocol(protocol, offered) if offered else None

    protocol = ServerProtocol(subprotocols=known or None, select_subprotocol=choose, logger=_SILENT)
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    response = protocol.accept(Request("/", Headers(headers)))
    if response.status_code != 101:
        raise HttpError(400, "bad-websocket", f"the WebSocket handshake is wrong: {protocol.handshake_exc}")
    # The Date is the server's matter.
    return [(n.lower().encode(), v.encode()) for n, v in response.headers.raw_items() if n != "Date"]


async def serve(
    handler: Callable[[WebSocket], Awaitable[None]],
    handshake: Handshake,
    scope: Scope,
    send: Send,
    *,
    max_message: int,
    ping_s: float = PING_S,
    accepts_text: bool = False,
) -> None:
    """Complete the handshake and run `handler` to its end. What it raises is sent to the client on
    closing."""
    connection: HttpConnection = scope["state"]["connection"]
    socket = WebSocket(connection, max_message, accepts_text=accepts_text)
    connection.prepare_switch()
    await send({"type": "http.response.start", "status": 101, "headers": list(handshake)})
    connection.switch(socket)
    stopping: asyncio.Event = scope["state"]["stopping"]
    code, reason = CloseCode.NORMAL_CLOSURE, ""
    try:
        if await race(handler(socket), stopping.wait(), socket.keep_alive(ping_s), until_refused(scope)):
            code, reason = CloseCode.GOING_AWAY, "the server is stopping; try again"
    except errors.SkerryError as error:
        is_theirs = isinstance(error, (errors.Invalid, errors.Unauthenticated))
        code = CloseCode.POLICY_VIOLATION if is_theirs else CloseCode.INTERNAL_ERROR
        if isinstance(error, errors.Invalid):
            connection.blame()
        reason = f"{error.slug}: {error.message}"
    await socket.close(code, reason)


class WebSocket:
    """One conversation; made by `serve`."""

    def __init__(self, connection: HttpConnection, max_message: int, *, accepts_text: bool = False) -> None:
        self._connection = connection
        self._accepts_text = accepts_text
        self._protocol = ServerProtocol(state=OPEN, max_size=max_message, logger=_SILENT)
        self._messages: deque[bytes] = deque()
        self._parts = bytearray()  # of a message that is not complete
        self._waiting = 0  # bytes
        self._input_changed = asyncio.Event()
        self._is_over = False  # nothing more can come
        self._is_alive = True
        self._is_flooding = False
        self._budget = FrameBudget(_CONTROL_BURST, _CONTROL_PER_S, now=monotonic())

    async def receive(self) -> bytes | None:
        """The next message; None once there can be no more."""
        while not self._messages:
            if self._is_over:
                return None
            self._input_changed.clear()
            await self._input_changed.wait()
        message = self._messages.popleft()
        self._waiting -= len(message) + _PER_MESSAGE
        if self._waiting <= _MAX_WAITING // 2:
            self._connection.flow.resume_reading()
        return message

    async def send(self, message: bytes) -> None:
        """Send one message; returns when there is space for another. Raises `ClientDisconnected` if the
        client does not read."""
        await self._send(message, is_text=self._accepts_text)

    async def send_text(self, text: bytes) -> None:
        """The same of text, also in a conversation of bytes: something about it, and no part of it."""
        await self._send(text, is_text=True)

    async def _send(self, message: bytes, *, is_text: bool) -> None:
        if self._protocol.state is not OPEN or self._connection.transport.is_closing():
            raise ClientDisconnected
        if is_text:
            self._protocol.send_text(message)
        else:
            self._protocol.send_binary(message)
        self._flush()
        try:
            async with asyncio.timeout(STALL_S):
                await self._connection.flow.drain()
        except TimeoutError:
            raise ClientDisconnected from None

    async def close(self, code: int, reason: str) -> None:
        """Send a close frame, give the client a moment to send its own, and end the connection."""
        if self._protocol.state is OPEN:
            fitting = reason.encode()[:_MAX_REASON].decode(errors="ignore")
            self._protocol.send_close(code, fitting)
            self._flush()
        self._connection.flow.resume_reading()
        try:
            async with asyncio.timeout(LINGER_S):
                while not self._is_over or self._is_flooding:
                    self._input_changed.clear()
                    await self._input_changed.wait()
        except TimeoutError:
            pass  # it had its moment
        self._connection.transport.close()

    async def keep_alive(self, ping_s: float) -> None:
        """Ping the client, for ever; raises `ClientDisconnected` when it does not answer."""
        while True:
            await asyncio.sleep(ping_s)
            # While its input is held up, its answer is behind that input.
            if not self._is_alive and not self._connection.flow.read_paused:
                raise ClientDisconnected
            self._is_alive = False
            if self._protocol.state is OPEN:
                self._protocol.send_ping(b"")
                self._flush()

    # From the connection.

    def data_received(self, data: bytes) -> None:
        self._is_alive = True
        if self._is_over:
            return
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
                if self._is_flooding:
                    break
        self._flush()
        if self._protocol.close_rcvd is not None or self._protocol.parser_exc is not None:
            self.ended()
        if self._waiting > _MAX_WAITING:
            self._connection.flow.pause_reading()
        if self._connection.transport.get_write_buffer_size() > _MAX_UNREAD:
            self._connection.drop()

    def ended(self) -> None:
        self._is_over = True
        self._input_changed.set()

    def _take(self, frame: Frame) -> None:
        if _is_empty(frame) and not self._budget.spend(monotonic()):
            log.warning("websocket.flooded", client=self._connection.client)
            self._is_flooding = True
            self._protocol.fail(
                CloseCode.POLICY_VIOLATION, "too many pings, pongs, empty messages or tiny fragments"
            )
            self._connection.blame(at_once=True)
            self.ended()
        elif frame.opcode is (Opcode.BINARY if self._accepts_text else Opcode.TEXT):
            wanted = "text" if self._accepts_text else "binary"
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, f"send {wanted} messages")
            self.ended()
        elif frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT) and not self._is_over:
            self._parts += frame.data
            if frame.fin and self._accepts_text and not _is_utf8(self._parts):
                self._protocol.fail(CloseCode.INVALID_DATA, "text is UTF-8")
                self.ended()
            elif frame.fin:
                self._messages.append(bytes(self._parts))
                self._waiting += len(self._parts) + _PER_MESSAGE
                self._parts.clear()
                self._input_changed.set()

    def _flush(self) -> None:
        transport = self._connection.transport
        for part in self._protocol.data_to_send():
            if transport.is_closing():
                return
            if part:
                transport.write(part)
            elif transport.can_write_eof():
                transport.write_eof()


def _is_empty(frame: Frame) -> bool:
    if frame.opcode in (Opcode.PING, Opcode.PONG):
        return True
    return len(frame.data) < (1 if frame.fin else _FRAGMENT)


def _is_utf8(data: bytearray) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True

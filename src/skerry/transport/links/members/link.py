"""One end of a link: the connection, what both ends share, and why it is closed.

`client_link` is the end that dialled, `server_link` the other. A peer that sends an invalid message, or does
not read, loses its link; nothing it sends is answered after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, cast

import structlog

from skerry.transport.links.members.framing import FrameDecoder, MalformedFrame, encode_frame
from skerry.transport.links.members.messages import LinkMessage
from skerry.transport.pacing import PacedInput

log = structlog.get_logger(__name__)

M = TypeVar("M")

_UNSENT_BYTES: Final = 1024 * 1024  # above this, senders that can wait do
_FLOOD_BYTES: Final = 64 * 1024 * 1024  # the limit of messages that cannot wait
_FIRST_BYTES: Final = 4096  # of the first message, whose sender is not known yet
# The kernel's keep-alive, to notice a dead machine on an idle link.
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)


class MemberLink(asyncio.Protocol, Generic[M]):
    """`closed` is done once the socket is closed and nothing runs for this link any more."""

    def __init__(self, decode: Callable[[Any], M], *, stall_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._frames = FrameDecoder(decode, _FIRST_BYTES)
        self._stall_s = stall_s
        self._transport: asyncio.Transport | None = None
        self._is_over = False
        self._is_lost = False
        self._writable: asyncio.Future[None] | None = None  # set while the peer has to read first
        self._stall: asyncio.TimerHandle | None = None
        self._max_sent = _FIRST_BYTES  # the longest message that the peer takes
        self.closed: asyncio.Future[None] = self._loop.create_future()

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._input = PacedInput(self._transport, self._handle, self._loop)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            with contextlib.suppress(OSError):  # it is closed already
                for option in _KEEPALIVE:
                    connected.setsockopt(*option)
        if self._is_over:  # given up while the handshakes went on
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._input.feed(data)

    def _handle(self, data: bytes) -> None:
        if self._is_over:
            return
        try:
            self._frames.feed(data, self._take_while_open)
        except MalformedFrame as error:
            self.fail("garbage", str(error))
        except Exception as error:
            log.error("neighbour.broke", peer=self.peer, error=repr(error), exc_info=error)
            self.abort()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()
        self._watch_stall(self._unsent())

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = self._is_lost = True
        self._input.stop()
        self.resume_writing()  # waiters find that the link is closed

    # What both ends use

    @property
    @abstractmethod
    def peer(self) -> str:
        """For the log."""

    @abstractmethod
    def _take(self, message: M) -> None:
        """A message has come. May raise `MalformedFrame`."""

    @property
    def is_connected(self) -> bool:
        """True from the end of the handshakes until the socket is closed."""
        return self._transport is not None and not self._is_lost

    def send(self, message: LinkMessage) -> None:
        """Send what cannot wait; into the void if the link is over."""
        self.send_frame(encode_frame(message))

    def send_frame(self, frame: bytearray) -> None:
        if self._is_over or self._transport is None:
            return
        self._transport.write(frame)
        if self._writable is not None and self._unsent() > _FLOOD_BYTES + len(frame):
            self.fail("flooded", f"it reads nothing, and {self._unsent()} bytes wait for it")

    async def writable(self) -> None:
        """Wait while the peer has to read first."""
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def complete_handshake(self, takes: int, max_bytes: int) -> None:
        """The peer accepts messages of `takes` bytes, and may send those of `max_bytes` now."""
        self._max_sent = takes
        self._frames.max_bytes = max_bytes

    def fail(self, slug: str, reason: str) -> None:
        """Close the link because of the peer: a slug for metrics, and a sentence."""
        if not self._is_over:
            log.warning("neighbour.dropped", peer=self.peer, why=slug, reason=reason)
            self.abort()

    def abort(self) -> None:
        """Abort the connection; `connection_lost` follows."""
        self._is_over = True
        # Early releases of Python 3.11 cannot abort a TLS transport that is already gone.
        if self._transport is not None and not self._is_lost:
            self._transport.abort()

    def finish(self) -> None:
        """Close the link when all that was written is sent."""
        self._is_over = True
        if self._transport is not None and not self._is_lost:
            self._transport.close()

    def _take_while_open(self, message: M) -> None:
        if not self._is_over:
            self._take(message)

    def _unsent(self) -> int:
        assert self._transport is not None
        return self._transport.get_write_buffer_size()

    def _watch_stall(self, unsent: int) -> None:
        self._stall = self._loop.call_later(self._stall_s, self._check_stall, unsent)

    def _check_stall(self, before: int) -> None:
        """A peer may be slow, but not stall."""
        unsent = self._unsent()
        if unsent < before:
            self._watch_stall(unsent)
        else:
            self.fail("stalled", f"it took nothing for {self._stall_s:g} s, and {unsent} bytes wait for it")

"""One HTTP/2 connection: its limits, its signs of life, its running calls and its end.

`skerry.transport.listeners` makes one per accepted socket and waits for `closed`; every call goes to
`skerry.transport.grpc.dispatcher`. HTTP/2 itself is h2's, the stream mechanics are grpclib's. A peer that
breaks the protocol, floods us without reading, or falls silent loses its connection; the others notice
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Final, cast

import msgspec
import structlog
from grpclib import protocol
from grpclib.config import Configuration
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event
from h2.exceptions import DenialOfServiceError, FrameTooLargeError, ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import DataFrame, Frame, HeadersFrame

from skerry.transport.access.peers import ConnectionPeer, with_certificate
from skerry.transport.admission import ConnectionSlot
from skerry.transport.grpc.dispatcher import GrpcDispatcher, GrpcHeaders
from skerry.transport.grpc.inline_replies import InlineReply
from skerry.transport.grpc.write_buffer import CoalescingTransport
from skerry.transport.pacing import FrameBudget, PacedInput

log = structlog.get_logger(__name__)


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What one connection may use."""

    concurrent_calls: int = 256
    header_bytes: int = 16 * 1024
    stream_window_bytes: int = 1024 * 1024
    # Larger than a stream's, so that one call which nobody reads does not stop the others.
    connection_window_bytes: int = 4 * 1024 * 1024
    # Replies wait for the peer to read, but answers to its pings and settings cannot: this bounds them.
    unsent_bytes: int = 8 * 1024 * 1024
    # A peer that says nothing for this long is pinged; if it says nothing again, it is gone.
    silence_s: float = 30.0
    # Frames without content: resets, pings, settings, priorities, window updates, empty data. 3,000 at once
    # are a thousand calls that are cancelled as soon as they are made, with a small message and an empty end
    # of each; then it is so many each second, and some for each frame that the peer is sent: clients answer
    # data with window updates for the stream and the connection, and some with a ping. Of somebody who has
    # not shown who they are, each counts for five, and so do calls: answers earn that back, refusals do not.
    control_frames: int = 3000
    control_frames_per_s: int = 500
    control_frames_per_sent: int = 4


_H2 = H2Configuration(
    client_side=False,
    header_encoding="latin-1",  # never fails; what must be ASCII is checked where it is used
    # Names and order of headers are checked. The value of `:scheme` is not, on purpose: early Aurae clients
    # send `hxxp`.
    validate_inbound_headers=True,
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)
# grpclib's own keepalive waits for the peer to read before it closes a dead connection; ours does not.
_GRPCLIB = Configuration(_keepalive_time=None).__for_server__()

_FRAME_HEADER_BYTES: Final = 9
_TINY_DATA: Final = 64  # bytes; less of a stranger is next to nothing, and costs as much as any other frame
_STRANGERS_COST: Final = 5  # of a frame without content
_LINGER_S: Final = 0.1
_FLOODER_S: Final = 2.0  # until one that got GOAWAY is dropped; it is not read from meanwhile


class GrpcServerConnection(protocol.H2Protocol):
    """The server's end. `closed` is done once the socket is gone and no call of it runs any more."""

    def __init__(self, calls: GrpcDispatcher, limits: ConnectionLimits, place: ConnectionSlot) -> None:
        self._running = _RunningCalls(calls, self, limits.concurrent_calls)
        super().__init__(self._running, _GRPCLIB, _H2)
        self._limits = limits
        self.place = place
        self._loop = asyncio.get_running_loop()
        self._transport: CoalescingTransport | None = None
        self._inline: InlineReply | None = None
        self._was_heard = True
        self._is_pinged = False
        self._is_over = False
        self._is_lost = False
        self._timer: asyncio.TimerHandle | None = None
        self.peer = ConnectionPeer(address="")
        self.is_stopping = False
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = CoalescingTransport(cast(asyncio.Transport, transport), self._loop)
        self.peer = with_certificate(self.place.peer, transport)
        self._input = PacedInput(self._transport, self._handle, self._loop)
        http2 = _Http2(self._limits, self.place)
        http2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: self._limits.concurrent_calls,
                SettingCodes.MAX_HEADER_LIST_SIZE: self._limits.header_bytes,
                SettingCodes.INITIAL_WINDOW_SIZE: self._limits.stream_window_bytes,
            },
        )
        http2.decoder.max_header_list_size = self._limits.header_bytes
        default_window = http2.inbound_flow_control_window
        http2.initiate_connection()
        http2.increment_flow_control_window(self._limits.connection_window_bytes - default_window)
        self.connection = protocol.Connection(http2, self._transport, config=_GRPCLIB)
        self.processor = _Events(self._running, self.connection)
        self.connection.flush()
        self._timer = self._loop.call_later(self._limits.silence_s, self._check_life)

    def data_received(self, data: bytes) -> None:
        self._was_heard = True
        self._input.feed(data)

    def begin_call(self, begin: Callable[[], bool]) -> None:
        """Have a call that came in begin in its turn."""
        self.place.occupy()
        self._input.begin_call(begin)

    def set_inline_reply(self, reply: InlineReply | None) -> None:
        self._inline = reply

    def _handle(self, data: bytes) -> None:
        if self._is_over:
            return
        try:
            if self._inline is not None and self._is_answered(data, self._inline):
                return
            events = self.connection.feed(data)
            self._check_unfinished()
            self.connection.flush()
            for event in events:
                self.processor.process(event)
            if not self.connection.is_closing():
                self.connection.flush()
        except DenialOfServiceError as error:
            log.warning("connection.flooded", peer=self.peer.address, reason=str(error))
            self._end_flood()
        except ProtocolError as error:
            reason = f"{type(error).__name__}: {error}"
            log.warning("connection.broken", peer=self.peer.address, reason=reason)
            self.place.blame()
            self._end()
        except Exception as error:
            log.error("connection.failed", peer=self.peer.address, exc_info=error)
            self.abort()
        else:
            self._check_unsent()

    def _is_answered(self, data: bytes, inline: InlineReply) -> bool:
        """True if `data` was a message with an inline reply, and nothing is left to do."""
        if not self.place.is_known:  # small frames of strangers are counted
            return False
        http2 = self._http2
        reply = inline.take(data, http2)
        if reply is None:
            return False
        self.connection.flush()  # a window update, if one was due
        if reply and self._transport is not None:
            http2.sent_inline()
            self._transport.write_now(reply)
            self._check_unsent()
        return True

    def connection_lost(self, error: BaseException | None) -> None:
        if self._input.is_behind and not self._is_over and not self.place.is_known:
            # Who sends a flood and hangs up is not there any more when its frames are counted.
            self.place.blame()
        self._is_over = True
        self._is_lost = True
        self._input.stop()
        if self._timer is not None:
            self._timer.cancel()
        self.processor.close(reason="Connection lost")
        self._running.when_idle(self._report_closed)

    def stop(self) -> None:
        """Take no more calls; end those that stream replies, wait for the others, then say goodbye."""
        self.is_stopping = True
        if self._is_over:
            return
        self._running.cancel_endless()
        if not self._running:
            self._end()
            return
        # Some clients, grpclib's among them, drop an answer they have if the goodbye comes along with it.
        self._running.when_idle(partial(self._loop.call_later, _LINGER_S, self._end))

    def cancel(self) -> None:
        """End every call now; each client gets the reason: the server is stopping."""
        self.is_stopping = True
        self._running.close()

    def abort(self) -> None:
        """Drop the socket without another word."""
        self._is_over = True
        # Early releases of Python 3.11 cannot abort a TLS transport that is already gone.
        if self._transport is not None and not self._is_lost:
            self._transport.abort()

    def _check_life(self) -> None:
        if self._is_over or self.connection.is_closing():
            self.abort()  # it had its time to read the goodbye
            return
        if self._was_heard:
            self._was_heard = self._is_pinged = False
        elif not self._is_pinged:
            self._is_pinged = True
            self._http2.ping(b"skerry--")
            self.connection.flush()
        else:
            log.warning("connection.silent", peer=self.peer.address, calls=len(self._running))
            self.abort()
            return
        self._timer = self._loop.call_later(self._limits.silence_s, self._check_life)

    def _check_unfinished(self) -> None:
        """h2 looks at the length of a frame only when it has the whole, up to 16 MB of it."""
        unfinished = len(self._http2.incoming_buffer._data)
        if unfinished > self._http2.max_inbound_frame_size + _FRAME_HEADER_BYTES:
            self._http2.close_connection(ErrorCodes.FRAME_SIZE_ERROR)
            raise FrameTooLargeError(f"more than {self._http2.max_inbound_frame_size} bytes in one frame")

    def _check_unsent(self) -> None:
        assert self._transport is not None
        unsent = self._transport.get_write_buffer_size()
        if unsent > self._limits.unsent_bytes:
            log.warning("connection.flooded", peer=self.peer.address, unsent_bytes=unsent)
            self.abort()

    def _end(self) -> None:
        """Send what is pending, with a GOAWAY, and close."""
        if self._is_over or self._transport is None or self.connection.is_closing():
            return
        self._is_over = True
        try:
            self._http2.close_connection(ErrorCodes.NO_ERROR)
        except ProtocolError:
            pass  # h2 has queued its own GOAWAY, with the reason
        self.connection.flush()
        self._transport.close()

    def _end_flood(self) -> None:
        """h2 has queued a GOAWAY: send it, hear no more, end the calls, and drop the socket in a while."""
        self._is_over = True
        self.place.blame(at_once=True)
        self._input.stop()
        self.connection.flush()
        self._running.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_FLOODER_S, self.abort)

    def _report_closed(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    @property
    def _http2(self) -> _Http2:
        return cast(_Http2, self.connection._connection)


class _Http2(H2Connection):
    """h2's connection, which counts frames where none can pass uncounted, and before they cost anything."""

    def __init__(self, limits: ConnectionLimits, place: ConnectionSlot) -> None:
        super().__init__(config=_H2)
        self._place = place
        self._budget = FrameBudget(limits.control_frames, limits.control_frames_per_s, now=monotonic())
        self._earned = limits.control_frames_per_sent

    def _receive_frame(self, frame: Frame) -> list[Event]:
        if not self._has_content(frame) and not (
            self._budget.spend(monotonic(), self._cost()) and self._place.spend_frame()
        ):
            raise DenialOfServiceError(f"too many frames without content, the last a {type(frame).__name__}")
        return super()._receive_frame(frame)

    def sent_inline(self) -> None:
        """A frame of data was sent by an `InlineReply`."""
        self._budget.earn(self._earned * self._cost())

    def _cost(self) -> int:
        return 1 if self._place.is_known else _STRANGERS_COST

    def _has_content(self, frame: Frame) -> bool:
        if isinstance(frame, DataFrame):
            # Who is known may stream messages that are small. Padding is nothing in any case.
            return len(frame.data) >= (1 if self._place.is_known else _TINY_DATA)
        return isinstance(frame, HeadersFrame) and self._place.is_known

    def _prepare_for_sending(self, frames: list[Frame]) -> None:
        # A refusal is headers that end the stream: nothing to answer.
        if frames and isinstance(frames[0], HeadersFrame | DataFrame) and "END_STREAM" not in frames[0].flags:
            self._budget.earn(self._earned * len(frames) * self._cost())
        super()._prepare_for_sending(frames)


class _Events(protocol.EventsProcessor):
    """grpclib's reactions to HTTP/2 events, without two of its surprises."""

    def process(self, event: Event) -> None:
        if isinstance(event, DataReceived) and not event.flow_controlled_length:
            return  # an empty frame is legal and says nothing; grpclib would take it for the end
        try:
            super().process(event)
        except NotImplementedError:
            pass  # frames of unknown types must be ignored (RFC 9113, 5.5); grpclib would break off


class _RunningCalls(protocol.AbstractHandler):
    """The calls of one connection: those that wait for their turn, and the tasks of the others.

    There is no task for a call that waits: most calls of a flood are taken back, or lost with the connection,
    and then hundreds at once.
    """

    def __init__(self, calls: GrpcDispatcher, line: GrpcServerConnection, most: int) -> None:
        self._calls = calls
        self._line = line
        self._most = most
        self._waiting: dict[protocol.Stream, Callable[[], None]] = {}  # and how to release each
        self._tasks: dict[protocol.Stream, asyncio.Task[None]] = {}
        self._endless: set[protocol.Stream] = set()
        self._on_idle: Callable[[], object] | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._tasks)

    def accept(self, stream: protocol.Stream, headers: Any, release_stream: Callable[[], None]) -> None:
        # A client that opens and resets calls faster than they end passes HTTP/2's own limit, but not this.
        if self._line.is_stopping or len(self) >= self._most:
            _refuse(stream, release_stream)
            return
        self._waiting[stream] = release_stream
        self._line.begin_call(partial(self._begin, stream, headers))

    def cancel(self, stream: protocol.Stream) -> None:
        if task := self._tasks.get(stream):
            task.cancel()
        elif release := self._waiting.pop(stream, None):
            self._left(release)

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        while self._waiting:
            self._left(self._waiting.popitem()[1])

    def cancel_endless(self) -> None:
        """End the calls that stream replies, and those that have not begun."""
        for stream in self._endless:
            self._tasks[stream].cancel()
        while self._waiting:
            _refuse(*self._waiting.popitem())

    def when_idle(self, act: Callable[[], object]) -> None:
        """Call `act` as soon as there is no call; a later `act` replaces an earlier one."""
        if self:
            self._on_idle = act
        else:
            act()

    def _begin(self, stream: protocol.Stream, headers: GrpcHeaders) -> bool:
        """True if the call is still wanted."""
        release = self._waiting.pop(stream, None)
        if release is None:
            return False
        task = asyncio.get_running_loop().create_task(self._calls.answer(stream, headers, self._line))
        self._tasks[stream] = task
        if self._calls.is_endless(headers):
            self._endless.add(stream)
        # Not in the task itself: one that is cancelled before its first step runs none of its code.
        task.add_done_callback(partial(self._ended, stream, release))
        return True

    def _ended(self, stream: protocol.Stream, release: Callable[[], None], _: asyncio.Task[None]) -> None:
        del self._tasks[stream]
        self._endless.discard(stream)
        self._left(release)

    def _left(self, release: Callable[[], None]) -> None:
        release()
        if not self:
            self._line.place.rest()
            if self._on_idle is not None:
                self._on_idle()


def _refuse(stream: protocol.Stream, release: Callable[[], None]) -> None:
    """Nothing was done for this call: its client may send it again elsewhere."""
    if stream.closable:  # its reset may have come along with it
        stream.reset_nowait(ErrorCodes.REFUSED_STREAM)
    release()

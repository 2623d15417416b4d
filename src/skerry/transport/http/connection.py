"""One HTTP connection: uvicorn's httptools protocol, with the bounds that a server on a network needs.

Added to uvicorn's: a limit on the request head (431) and on its time (408), a limit on connections (503), a
timer in every state in which a client could keep a connection open for nothing, answers that reach a client
which is still sending, clients that close their sending half and wait, and the `ConnectionPeer` behind the
connection. What it refuses never becomes a request; it answers in the shape of `responses.Problem`.
`dispatcher` does all that needs a whole request. A request may take the connection over
for another protocol (`skerry.transport.http.websocket`); what is read then is no longer HTTP.

    silent ──first byte──▶ head ──complete──▶ body ──complete──▶ waiting for the answer ──▶ silent
    keep-alive timer      head timer         front's timer       front's timer

At any time at most one timer of `_alarm` is armed; `connection_lost` cancels it. The keep-alive timer is
separate: it is not reset by each request, but checks when it fires how long the connection has been idle.
"""

from __future__ import annotations

import asyncio
import enum
import math
import os
from collections.abc import Callable
from typing import Any, cast

import httptools
import structlog
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from skerry.model import errors
from skerry.model.settings import HttpSettings
from skerry.transport.access import peers
from skerry.transport.admission import ConnectionSlot
from skerry.transport.http import responses
from skerry.transport.http.direct import DirectDispatcher, DirectHead, DirectRequest, HeadCache, direct_path
from skerry.transport.http.direct_response import encode_response
from skerry.transport.http.response_transport import ResponseTransport, header_lines
from skerry.transport.http.upgraded_protocol import UpgradedProtocol
from skerry.transport.pacing import PacedInput

log = structlog.get_logger(__name__)

# How long a connection that is to close still takes in what the client is sending. Closing at once would
# make the kernel reset it, and the client would lose the answer with the reason.
LINGER_S = 2.0
# How long a new connection may take to send its request, if the server is about to hand over.
FIRST_REQUEST_S = 1.0
# How long the body of a request that may be direct may come behind its head: many clients send them apart.
BODY_PATIENCE_S = 0.05
# Requests that a client may send ahead on one connection before the first is answered.
MAX_PIPELINED = 64
# Bytes of a request with its headers and a small body.
_USUAL_REQUEST = 1024


class _Reading(enum.Enum):
    """What the next bytes of the client belong to."""

    NOTHING = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()


class _Refusal(Exception):
    """Raised inside the parser's callbacks to end the parsing."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class HttpConnection(HttpToolsProtocol):
    """`scope["state"]["connection"]` of every request that came over it."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        settings: HttpSettings,
        loop: asyncio.AbstractEventLoop,
        slot: ConnectionSlot | None,
        when_lost: Callable[[], None],
        direct: DirectDispatcher | None = None,
    ) -> None:
        """Without a `slot` its client gets the error that there is none."""
        super().__init__(config, server_state, app_state, loop)
        self._settings = settings
        self._retiring: asyncio.Event = app_state["retiring"]
        self._when_lost = when_lost
        self._direct = direct
        self._direct_path: str | None = None  # of a request that may be direct, if all of it comes at once
        self._body = b""  # of that request
        self._chunk = b""  # that is being parsed
        self._dated: list[tuple[bytes, bytes]] = []  # headers of every response, which change with the time
        self._date_line = b""
        self._heads: HeadCache | None = None  # of direct requests, once there was one
        self._slot = slot
        self.closed: asyncio.Future[None] = loop.create_future()
        self._reading = _Reading.NOTHING
        self._head_bytes = 0  # of the head so far; too few if it began behind something else in a chunk
        self._chunk_bytes = 0
        self._alarm_handle: asyncio.TimerHandle | None = None
        self._silent_since = math.inf  # a request is under way
        self._silence_timer: asyncio.TimerHandle | None = None
        self._discards_input = False  # input is thrown away
        self._is_leaving = False  # nothing more is written
        self._is_refused = slot is None
        self._leaves_at_eof = False
        self._running: RequestResponseCycle | DirectRequest | None = None
        self._peer: peers.ConnectionPeer | None = None
        self._is_upgrade = False  # the last request asked for another protocol: no other can follow
        self._ahead = b""  # what came behind it
        self._receiver: UpgradedProtocol | None = None

    # For the application.

    def peer(self) -> peers.ConnectionPeer:
        """Who is at the other end."""
        if self._peer is None:
            assert self._slot is not None, "a connection without a slot has no requests"
            self._peer = peers.with_certificate(self._slot.peer, self.transport)
        return self._peer

    def has_whole_request(self) -> bool:
        """True if the present request has been received completely."""
        return self._running is not None and not self._running.more_body

    def leave_at_eof(self) -> None:
        """The running request takes long: if its client sends no more, it has left and wants no answer."""
        self._leaves_at_eof = True

    def prepare_switch(self) -> None:
        """The running request is about to be answered with 101: a head that has neither body nor end."""
        assert isinstance(self._running, RequestResponseCycle), "only a request can switch"
        self._running.keep_alive = True
        self._running.chunked_encoding = False

    def switch(self, receiver: UpgradedProtocol) -> None:
        """That answer is given; from now on what is read is `receiver`'s."""
        assert isinstance(self._running, RequestResponseCycle), "only a request can switch"
        self._running.response_complete = True
        cast(ResponseTransport, self._running.transport).flush()
        self._receiver = receiver
        if self.transport.is_closing():
            receiver.ended()
        elif self._ahead:
            ahead, self._ahead = self._ahead, b""
            self._input.put_back(ahead)

    def recognize(self) -> None:
        """The client has authenticated."""
        if self._slot is not None:
            self._slot.recognize()

    def distrust(self) -> None:
        """What comes in here is passed on for others."""
        if self._slot is not None:
            self._slot.distrust()

    def blame(self, *, at_once: bool = False) -> None:
        """The client broke the protocol it switched to; with `at_once` it floods, and is not read from."""
        if self._slot is not None:
            self._slot.blame(at_once=at_once)
        if at_once:
            self._input.stop()

    def abort(self) -> None:
        """The same as `drop`, at any time."""
        if not self.closed.done() and self.transport is not None:
            self.drop()

    def drop(self) -> None:
        """End the connection now, without sending what is still waiting to be sent."""
        self._notify_cycles()
        self.transport.abort()

    # From the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._input = PacedInput(transport, self._handle, self.loop, at_once=_USUAL_REQUEST)
        self.flow = FlowControl(cast(asyncio.Transport, self._input))
        if self._is_refused:
            self._alarm(LINGER_S, self.drop)
        else:
            self._begin_idle()
            if self._retiring.is_set():
                self._alarm(FIRST_REQUEST_S, self._close_after_response)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_alarm()
        self._input.stop()
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        self.pipeline.clear()
        self._notify_cycles()
        super().connection_lost(exc)
        if self._receiver is not None:
            self._receiver.ended()
        self._when_lost()
        self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._input.feed(data)

    def _handle(self, data: bytes) -> None:
        if self._receiver is not None:
            self._receiver.data_received(data)
            return
        if self._discards_input:
            return
        if self._is_upgrade:
            self._keep_ahead(data)
            return
        if self._is_refused:
            self._refuse(503, "overloaded", "too many connections are open here; try again in a moment")
            return
        if self._heads is not None and self._repeats(self._heads, data):
            return
        self._chunk, self._chunk_bytes = data, len(data)
        self._head_bytes = 0 if self._reading is _Reading.BODY else self._head_bytes + len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The handler may accept; if it does not, this is the last request all the same, because the
            # client may already use the other protocol.
            self._is_upgrade = True
            self.cycle.keep_alive = False
            self._keep_ahead(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            self._give_up_direct()
            refusal = error.__context__
            if isinstance(refusal, _Refusal):
                self._refuse(refusal.status, refusal.code, str(refusal))
            elif isinstance(error, httptools.HttpParserCallbackError):
                self._refuse(400, "bad-http", "the request line names no path that can be read")
            else:
                self._refuse(400, "bad-http", f"this is not HTTP/1.1: {error}")
            return
        if self._direct_path is not None:
            if self._alarm_handle is None and not self._input.is_behind:
                self._alarm(BODY_PATIENCE_S, self._give_up_direct)
        elif self._reading is _Reading.HEAD:
            if self._head_bytes > self._settings.max_header_bytes:
                self._refuse(*self._head_too_large())
            elif self._alarm_handle is None:
                self._alarm(self._settings.header_timeout_s, self._head_took_too_long)

    def eof_received(self) -> bool | None:  # type: ignore[override]  # uvicorn's never keeps a connection open
        """The client will send no more. If it waits for an answer it still gets one."""
        if self._receiver is not None:
            self._receiver.ended()
            return None
        self._give_up_direct()
        if self._discards_input or self._is_refused or self.scheme == "https":
            return None
        if self._reading is not _Reading.NOTHING:
            part = "head" if self._reading is _Reading.HEAD else "body"
            self._refuse(400, "bad-http", f"the request ended within its {part}; send all of it")
        running = self._running
        if running is None or running.response_complete or running.disconnected:
            return None
        if running.response_started or self._leaves_at_eof:
            return None  # a client that waits cannot be distinguished from one that left
        self._discards_input = True
        self._reading = _Reading.NOTHING
        self.cycle.keep_alive = False
        return True

    # From the parser.

    def on_message_begin(self) -> None:
        self._cancel_alarm()
        self._silent_since = math.inf
        self._reading = _Reading.HEAD
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        # A chunk may hold more than this head, so this is only a first, cheap check.
        if self._head_bytes + self._chunk_bytes > self._settings.max_header_bytes:
            exact = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if exact > self._settings.max_header_bytes:
                raise _Refusal(*self._head_too_large())
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _Refusal(400, "bad-http", "too many requests were sent ahead; wait for answers")
        self._cancel_alarm()
        if (
            self._direct is not None
            and self.url.startswith(self._direct.direct_prefixes)
            and self._may_be_direct()
        ):
            self._direct_path, self._body = direct_path(self.url), b""
        if self._direct_path is None:
            self._begin_cycle()
        else:
            self._reading = _Reading.BODY

    def on_body(self, body: bytes) -> None:
        if self._direct_path is None:
            super().on_body(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        if self._direct_path is not None:
            self._cancel_alarm()
            if self._begin_parsed(self._direct_path):
                return
            self._begin_cycle()
        self._reading = _Reading.NOTHING
        self._head_bytes = 0
        super().on_message_complete()
        if self.cycle.response_complete and not self.pipeline:
            # The rest of a body whose response was sent early has been discarded; the next request may come.
            self._begin_idle()

    def _begin_cycle(self) -> None:
        """Start the request by uvicorn, whose `on_message_begin` and `on_headers_complete` become one."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        self._direct_path = None
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, expects
        self.scope["headers"] = headers
        self.scope["state"]["connection"] = self
        super().on_headers_complete()
        self._reading = _Reading.BODY
        holds = self.scope["method"] != "HEAD"
        way_out = ResponseTransport(self.transport, self._close_after_response, self.loop, holds=holds)
        self.cycle.transport = cast(asyncio.Transport, way_out)
        if self._retiring.is_set():
            self.cycle.keep_alive = False
        if self._body:
            body, self._body = self._body, b""
            super().on_body(body)

    # Requests without a task (`skerry.transport.http.direct`).

    def _may_be_direct(self) -> bool:
        """True if the head of the present request asks for nothing unusual, and no other is under way."""
        parser, cycle = self.parser, self.cycle
        return (
            parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and not self.expect_100_continue
            and (not cycle or cycle.response_complete)
            and not self.flow.write_paused
            and not self._retiring.is_set()
        )

    def _give_up_direct(self) -> None:
        """A request that may be direct, and has not arrived, is now one like all others."""
        if self._direct_path is not None:
            self._begin_cycle()

    def _is_between_requests(self) -> bool:
        """True if all requests are answered, and the next one may be direct."""
        is_open = not (self._head_bytes or self.flow.write_paused or self._retiring.is_set())
        return is_open and self._reading is _Reading.NOTHING and self.cycle.response_complete

    def _repeats(self, heads: HeadCache, data: bytes) -> bool:
        """Begin the request that `data` is, if its head is known; the parser stays between two requests."""
        if not self._is_between_requests() or (known := heads.split(data)) is None:
            return False
        self._silent_since = math.inf
        return self._begin_direct(*known)

    def _begin_parsed(self, path: str) -> bool:
        """Begin the request that was just parsed."""
        head = DirectHead(path, dict(self.headers), len(self._body))
        if len(head.headers) != len(self.headers) or not self._begin_direct(head, self._body):
            return False  # headers are repeated, or it is declined
        if self._heads is None:
            self._heads = HeadCache()
        self._heads.add(self._chunk, head, self._body)
        self._direct_path, self._body = None, b""
        self._head_bytes = 0
        return True

    def _begin_direct(self, head: DirectHead, body: bytes) -> bool:
        assert self._direct is not None
        request = DirectRequest(self, head, body)
        request.keep_alive = not self._retiring.is_set()
        before = self._running, self.cycle
        self._running, self.cycle = request, cast(RequestResponseCycle, request)
        self._reading = _Reading.NOTHING
        self._leaves_at_eof = False
        if self._slot is not None:
            self._slot.occupy()
        if self._direct.begin(request):
            return True
        self._running, self.cycle = before
        return False

    def send_direct(self, request: DirectRequest, status: int, lines: bytes, body: bytes) -> None:
        """The response to a request without a task; nothing if its client has left."""
        if request.disconnected or self.transport.is_closing():
            request.response_complete = True
            return
        request.response_started = request.response_complete = True
        if self._dated is not self.server_state.default_headers:
            self._dated = self.server_state.default_headers
            self._date_line = header_lines(tuple(self._dated))
        closes = not request.keep_alive
        self.transport.write(
            encode_response(status, self._date_line, lines, request.request_id, body, closes=closes)
        )
        if not request.keep_alive:
            self._close_after_response()
        self.on_response_complete()

    def cancel_direct(self) -> None:
        """The server stops, and waits no longer: end a request without a task."""
        if isinstance(self._running, DirectRequest):
            self._running.cancel(errors.Unavailable("the server is stopping; try again"))

    # From the running request.

    def answer(
        self, status: int, headers: tuple[tuple[bytes, bytes], ...], request_id: bytes, body: bytes
    ) -> bool:
        """Send a whole response to the present request, by one write; False if it takes more than that. Names
        and values are written as they are, so none of them may come from outside unchecked. `headers` are
        those that many responses share; those of its own are added."""
        cycle = self._running
        if (
            cycle is None
            or isinstance(cycle, DirectRequest)
            or cycle.response_started
            or cycle.disconnected
            or not cycle.keep_alive
            or self.flow.write_paused
            or cycle.scope["method"] == "HEAD"
        ):
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        own = b"content-length: %d\r\nx-request-id: %b\r\n\r\n" % (len(body), request_id)
        shared = header_lines(tuple(cycle.default_headers)), header_lines(headers)
        self.transport.write(b"".join((STATUS_LINE[status], *shared, own, body)))
        cycle.message_event.set()
        cycle.on_response()
        return True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if self._slot is not None:
            self._slot.occupy()
        self._leaves_at_eof = False
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if self._is_leaving:
            self.pipeline.clear()
            return
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        if self._slot is not None:
            self._slot.rest()
        if self._reading is _Reading.BODY:
            self._alarm(LINGER_S, self._close_after_response)
        elif self._reading is _Reading.NOTHING:
            self._begin_idle()

    @property
    def is_unanswered(self) -> bool:
        """Whether its client waits for the first byte of an answer."""
        running = self._running
        return (
            running is not None
            and not running.response_started
            and not running.disconnected
            and self._receiver is None
        )

    def retire(self) -> None:
        """Close the connection behind the answer to the request that runs, or to the next."""
        self._give_up_direct()
        if self._receiver is None and self._running is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def close_unused(self) -> None:
        """Close the connection if no request has come on it."""
        if self._running is None and self._reading is _Reading.NOTHING:
            self._close_after_response()

    def shutdown(self) -> None:
        """The server stops: close what is silent, let what runs finish."""
        if self._receiver is not None:
            return  # its request knows, and closes in its own protocol
        self._give_up_direct()
        running = self._running
        if self._retiring.is_set() and (running is None or self._reading is not _Reading.NOTHING):
            # It is new, and its request is on its way: the client could not know that it was not received.
            self._alarm(FIRST_REQUEST_S, self._close_after_response)
            return
        if running is None or running.response_complete:
            self._discards_input = True
            self.transport.close()
        else:
            running.keep_alive = False

    def _keep_ahead(self, data: bytes) -> None:
        """Keep data that comes before its reader is known."""
        self._ahead += data
        if len(self._ahead) > self._settings.max_header_bytes:
            self.drop()

    # Ending.

    def _close_after_response(self) -> None:
        """Close so that what was written arrives: first our half, then, at most a moment later, the rest."""
        if self._is_leaving or self.transport.is_closing():
            return
        self._discards_input = self._is_leaving = True
        if self._reading is _Reading.NOTHING:
            self.transport.close()
        else:
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self.flow.resume_reading()
        self._alarm(LINGER_S, self.transport.abort)

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Send an error for invalid input, and close; a response in progress is finished first."""
        newest = self.cycle
        if self._reading is _Reading.BODY and newest.response_complete:
            self._close_after_response()  # it had its answer before its body broke
            return
        if self._running is not None and not newest.response_complete:
            if self._reading is not _Reading.BODY:
                # Earlier requests are good and on their way; the connection closes behind the last of them.
                newest.keep_alive = False
                self._discards_input = True
                return
            if newest.response_started or newest is not self._running:
                self.drop()
                return
            self._notify_cycles()
        request_id = os.urandom(8).hex()
        log.info("request.refused", status=status, code=code, request_id=request_id, client=self.client)
        self.transport.write(responses.refusal(status, message, code, request_id))
        self._close_after_response()

    def _head_too_large(self) -> tuple[int, str, str]:
        limit = self._settings.max_header_bytes
        return 431, "too-large", f"the request line and headers may have at most {limit} bytes; send less"

    def _head_took_too_long(self) -> None:
        limit = self._settings.header_timeout_s
        self._refuse(408, "slow-client", f"the headers took longer than {limit:g} s; send them at once")

    def _notify_cycles(self) -> None:
        """Wake tasks that wait for a body, for a disconnect, or for space to write."""
        for cycle in (self._running, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.flow.resume_writing()

    def _alarm(self, seconds: float, then: Callable[[], None]) -> None:
        self._cancel_alarm()
        self._alarm_handle = self.loop.call_later(seconds, then)

    def _cancel_alarm(self) -> None:
        if self._alarm_handle is not None:
            self._alarm_handle.cancel()
            self._alarm_handle = None

    def _begin_idle(self) -> None:
        """The connection is idle from now on; too long, and it is closed."""
        self._silent_since = self.loop.time()
        if self._silence_timer is None:
            self._silence_timer = self.loop.call_later(self._settings.keep_alive_s, self._end_idle)

    def _end_idle(self) -> None:
        self._silence_timer = None
        left_s = self._silent_since + self._settings.keep_alive_s - self.loop.time()
        if left_s <= 0.0:
            self._close_after_response()
        elif left_s < math.inf:
            self._silence_timer = self.loop.call_later(left_s, self._end_idle)

"""An HTTP connection that a front may read and write for a while (`front_pool`).

It begins as any other. Once requests are direct and their heads known, it is assigned to a front, and is
there while nothing else comes. It keeps its slot and its peer, and what the front passes on is served by the
same methods as what is read here. What the front does not know comes back with the connection, and is parsed
here as if it had just been received.

    here ──some direct requests in a row──▶ at a front ──anything else──▶ here

A client that alternates would be assigned again and again, so each return doubles what it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Any

import structlog

from skerry.transport.http.connection import HttpConnection
from skerry.transport.http.direct import DirectHead, DirectRequest
from skerry.transport.http.front_frames import ResponseFrame, head_key
from skerry.transport.http.front_pool import FrontLease, FrontPool

log = structlog.get_logger(__name__)

ASSIGN_AFTER = 2  # direct requests in a row; the second shows that the head repeats
_MAX_ASSIGN_AFTER = 4096


class AssignableConnection(HttpConnection):
    """`pool` assigns it; else as its base."""

    def __init__(self, *args: Any, pool: FrontPool, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pool = pool
        self._assign_after = ASSIGN_AFTER
        self._direct_in_a_row = 0
        self._is_assigning = False  # as soon as the loop gets to it
        self._lease: FrontLease | None = None  # it is at a front
        self._sock: socket.socket | None = None  # meanwhile, and until it is back
        self._returned = b""  # what came back with it
        self._moves = 0  # transports that it has left, and that have not ended
        self._assigned_heads: list[DirectHead] = []
        self._return: asyncio.Task[None] | None = None

    # Assigning

    def _assign_soon(self) -> None:
        self._direct_in_a_row += 1
        if self._direct_in_a_row >= self._assign_after and not self._is_assigning and self._pool.has_fronts():
            self._is_assigning = True
            self.loop.call_soon(self._assign)

    def _can_leave(self) -> bool:
        """True if nothing of it is left here: no input, no output, and no request."""
        return (
            self.scheme == "http"
            and not self.closed.done()
            and not self.transport.is_closing()
            and not self._is_leaving
            and not self._discards_input
            and not self.pipeline
            and self._is_between_requests()
            and not self._input.is_behind
            and not self.transport.get_write_buffer_size()
        )

    def _assign(self) -> None:
        self._is_assigning = False
        if self._sock is not None or self._heads is None or not self._can_leave():
            return
        known = [(head_key(data, len(data)), head) for data, head in self._heads.known()]
        heads = {key.key: head for key, head in known if key is not None}
        own = self.transport.get_extra_info("socket")
        if not heads or own is None:
            return
        sock = socket.socket(fileno=os.dup(own.fileno()))
        lease = self._pool.assign(self, sock, list(heads))
        if lease is None:
            sock.close()
            self._direct_in_a_row = 0  # not for each request anew
            return
        self._lease, self._sock, self._assigned_heads = lease, sock, list(heads.values())
        self._cancel_alarm()
        if self._silence_timer is not None:
            self._silence_timer.cancel()
            self._silence_timer = None
        self._input.stop()
        self._moves += 1
        self.transport.abort()  # closes its descriptor; nothing was to be written

    # From the front

    def front_request(self, head: int, body: bytes) -> None:
        if not self._begin_direct(self._assigned_heads[head], body):
            assert self._lease is not None, "it has brought the request"
            self._lease.decline()

    def front_returned(self, data: bytes) -> None:
        self._lease = None
        self._returned = data
        self._direct_in_a_row = 0
        self._assign_after = min(self._assign_after * 2, _MAX_ASSIGN_AFTER)
        self._return = self.loop.create_task(self._take_back())

    async def _take_back(self) -> None:
        sock = self._sock
        assert sock is not None, "it was assigned"
        try:
            await self.loop.connect_accepted_socket(lambda: self, sock)
        except OSError:  # its client has left
            sock.close()
            self._sock = None
            self._end()

    def front_closed(self) -> None:
        self._end()

    def _end(self) -> None:
        """It has ended away from here."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.end()
        if self._sock is not None:
            with contextlib.suppress(OSError):  # its client has left
                self._sock.shutdown(socket.SHUT_RDWR)
            if self._return is None or self._return.done():  # else a transport is about to have it
                self._sock.close()
                self._sock = None
        if not self.closed.done():
            super().connection_lost(None)

    # As the base, wherever it is

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base
        self._sock = None  # the transport has it
        if self.closed.done():  # ended on its way back
            transport.abort()
            return
        super().connection_made(transport)
        if self._returned:
            returned, self._returned = self._returned, b""
            self._input.feed(returned)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._moves:
            self._moves -= 1
        elif not self.closed.done():
            super().connection_lost(exc)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._direct_in_a_row = 0
        super()._start_asgi_task(cycle, app)

    def send_direct(self, request: DirectRequest, status: int, lines: bytes, body: bytes) -> None:
        if self._lease is None:
            super().send_direct(request, status, lines, body)
            self._assign_soon()
            return
        if request.disconnected:
            request.response_complete = True
            return
        request.response_started = request.response_complete = True
        self.server_state.total_requests += 1
        if not request.keep_alive:
            self._is_leaving = True
        self._lease.respond(ResponseFrame(status, not request.keep_alive, lines, request.request_id, body))
        if self._slot is not None:
            self._slot.rest()

    def drop(self) -> None:
        if self._sock is None:
            super().drop()
        else:
            self._notify_cycles()
            self._end()

    def retire(self) -> None:
        if self._lease is None:
            super().retire()
        elif self._running is not None and not self._running.response_started:
            self._running.keep_alive = False

    def shutdown(self) -> None:
        if self._sock is None:
            super().shutdown()
        elif self._running is None or self._running.response_complete:
            self._end()
        else:
            self._running.keep_alive = False

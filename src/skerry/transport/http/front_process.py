"""A front process: reads requests of assigned connections and writes their responses, so that the server need
not.

Started by `skerry.transport.http.front_pool`, as `python -m skerry.transport.http.front_process LINK
DESCRIPTORS KEEP_ALIVE_S` with the descriptors of two sockets. It parses no HTTP: it knows the heads of
requests that the server has parsed and checked on this very connection, byte by byte but for the length of
the body, and says which of them has come. Whatever else comes, it returns the connection to the server with
it. It decides nothing, and ends with its link.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from email.utils import formatdate
from typing import Final, cast

import uvloop

from skerry.transport.http import front_frames as frames
from skerry.transport.http.direct_response import encode_response

# As in `skerry.transport.http.connection`.
LINGER_S: Final = 2.0
BODY_PATIENCE_S: Final = 0.05
_MAX_AHEAD: Final = 64 * 1024  # bytes that may come before the answer


class Front:
    """The connections of this process, and its link to the server; one event loop uses it."""

    def __init__(self, link: asyncio.WriteTransport, keep_alive_s: float) -> None:
        self.keep_alive_s = keep_alive_s
        self._link = link
        self._connections: dict[int, FrontConnection] = {}
        self._reader = frames.FrameReader(self._handle)
        self.feed = self._reader.feed
        self._date_line = b""
        self._dated = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def date_line(self) -> bytes:
        """A header of every response."""
        now = int(time.time())
        if now != self._dated:
            self._dated = now
            self._date_line = b"date: %b\r\n" % formatdate(now, usegmt=True).encode()
        return self._date_line

    def adopt(self, message: bytes, sock: socket.socket) -> None:
        """Serve a connection that the server assigns."""
        number, heads = frames.decode_assignment(message)
        connection = FrontConnection(self, number, {key: index for index, key in enumerate(heads)})
        self._connections[number] = connection
        task = asyncio.get_running_loop().create_task(self._connect(number, connection, sock))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, number: int, connection: FrontConnection, sock: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        except OSError:  # its client has left
            self.close(number)

    def request(self, number: int, head: int, body: bytes) -> None:
        self._link.write(frames.encode_request(number, head, body))

    def give_back(self, number: int, data: bytes) -> None:
        if self._connections.pop(number, None) is not None:
            self._link.write(frames.encode_frame(frames.RETURN, number, data))

    def close(self, number: int) -> None:
        if self._connections.pop(number, None) is not None:
            self._link.write(frames.encode_frame(frames.CLOSED, number))

    def _handle(self, kind: int, number: int, payload: bytes) -> None:
        connection = self._connections.get(number)
        if connection is None:
            return  # its client left meanwhile
        if kind == frames.RESPONSE:
            connection.respond(frames.decode_response(payload))
        elif kind == frames.DECLINE:
            connection.decline()


class FrontConnection(asyncio.Protocol):
    """One assigned connection.

    idle ──a known head──▶ body ──complete──▶ waits for the response ──▶ idle
    """

    def __init__(self, front: Front, number: int, heads: dict[bytes, int]) -> None:
        self._front = front
        self._number = number
        self._heads = heads
        self._loop = asyncio.get_running_loop()
        self._request = b""  # that waits for its response
        self._part = b""  # of a request whose body is on its way
        self._ahead = b""  # what came before the response
        self._is_blocked = False  # the client does not read
        self._closes = False  # the client sends no more
        self._is_over = False  # closing, or the server's again
        self._patience: asyncio.TimerHandle | None = None
        self._idle_since: float | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Nothing is left to be written when the connection is returned.
        self._transport.set_write_buffer_limits(high=0)
        self._begin_idle()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._request or self._is_blocked:
            self._ahead += data
            if len(self._ahead) > _MAX_AHEAD:
                self._transport.pause_reading()
            return
        if self._part:
            data = self._part + data
            self._end_part()
        self._take(data)

    def eof_received(self) -> bool:
        if self._is_over:
            return False
        if self._request:
            self._closes = True  # it waits for the answer
            return True
        if self._part:
            self._give_back(self._part)
        return False

    def pause_writing(self) -> None:
        self._is_blocked = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_blocked = False
        if self._is_over or self._transport.is_closing():
            return
        if self._ahead and not self._request:
            self._give_back(self._ahead)
        elif len(self._ahead) <= _MAX_AHEAD:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._cancel_timers()
        self._front.close(self._number)

    # From the server

    def respond(self, response: frames.ResponseFrame) -> None:
        if self._is_over:
            return
        status, closes, lines, request_id, body = response
        closes = closes or self._closes
        self._request = b""
        self._transport.write(
            encode_response(status, self._front.date_line, lines, request_id, body, closes=closes)
        )
        if closes:
            self._close()
        elif self._ahead and not self._is_blocked:
            self._give_back(self._ahead)
        else:
            self._begin_idle()

    def decline(self) -> None:
        if not self._is_over and self._request:
            self._give_back(self._request + self._ahead)

    def _take(self, data: bytes) -> None:
        """Pass on the request that `data` is; return the connection if it is anything else."""
        end = data.find(frames.END_OF_HEAD) + len(frames.END_OF_HEAD)
        head = frames.head_key(data, end) if end >= len(frames.END_OF_HEAD) else None
        number = None if head is None else self._heads.get(head.key)
        if head is None or number is None or head.length > frames.MAX_BODY:
            self._give_back(data)
            return
        missing = end + head.length - len(data)
        if missing < 0:
            self._give_back(data)
        elif missing:
            self._part = data
            self._idle_since = None
            self._patience = self._loop.call_later(BODY_PATIENCE_S, self._give_back_part)
        else:
            self._request = data
            self._idle_since = None
            self._front.request(self._number, number, data[end:])

    def _give_back_part(self) -> None:
        if not self._is_over:
            self._give_back(self._part)

    def _give_back(self, data: bytes) -> None:
        self._is_over = True
        self._cancel_timers()
        self._transport.pause_reading()
        self._front.give_back(self._number, data)
        self._transport.abort()  # closes this descriptor; the server has its own

    def _close(self) -> None:
        """Close behind what was written; a client that does not read it has a moment."""
        self._is_over = True
        self._cancel_timers()
        self._transport.close()
        self._loop.call_later(LINGER_S, self._transport.abort)

    def _end_part(self) -> None:
        self._part = b""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _cancel_timers(self) -> None:
        for timer in (self._patience, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._patience = self._idle_timer = None

    def _begin_idle(self) -> None:
        self._idle_since = self._loop.time()
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_later(self._front.keep_alive_s, self._end_idle)

    def _end_idle(self) -> None:
        self._idle_timer = None
        if self._idle_since is None:
            return  # a request is under way, after which it is idle again
        left_s = self._idle_since + self._front.keep_alive_s - self._loop.time()
        if left_s <= 0.0:
            self._close()
        else:
            self._idle_timer = self._loop.call_later(left_s, self._end_idle)


class _Link(asyncio.Protocol):
    """The link to the server; with its end this process ends."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended
        self.front: Front | None = None

    def data_received(self, data: bytes) -> None:
        assert self.front is not None, "the server assigns a connection first"
        self.front.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()


async def serve(link: socket.socket, descriptors: socket.socket, keep_alive_s: float) -> None:
    """Serve what comes over `descriptors` until the server closes `link`."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    transport, protocol = await loop.create_connection(lambda: _Link(ended), sock=link)
    front = protocol.front = Front(transport, keep_alive_s)

    def receive() -> None:
        try:
            message, received, _, _ = socket.recv_fds(descriptors, frames.MAX_MESSAGE, 1)
        except (BlockingIOError, InterruptedError):
            return
        if not received:
            loop.remove_reader(descriptors)
            return
        sock = socket.socket(fileno=received[0])
        sock.setblocking(False)
        front.adopt(message, sock)

    descriptors.setblocking(False)
    loop.add_reader(descriptors, receive)
    await ended.wait()


def main(link: int, descriptors: int, keep_alive_s: float) -> None:
    # A service manager or a terminal may signal all processes of the server, which answers what runs first.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=link) as first, socket.socket(fileno=descriptors) as second:
        uvloop.run(serve(first, second, keep_alive_s))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))

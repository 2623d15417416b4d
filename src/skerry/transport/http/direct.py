"""Requests that are answered without a task: for routes where the work of the server is most of the time.

A route may have a `DirectHandler` beside its ASGI app. A request for it that needs nothing unusual of HTTP is
begun as soon as it has arrived, right where it was parsed, and answered by one write when its handler has the
response. Everything else, and whatever a handler declines, takes the way of all requests, through uvicorn's
cycle and the app. `connection` finds such requests, `dispatcher` checks them as it does all others; nothing
here knows a route.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from skerry.model.callers import ANONYMOUS, Caller
from skerry.transport.access.peers import ConnectionPeer

_END_OF_HEAD: Final = b"\r\n\r\n"
_MAX_HEADS: Final = 16  # of one connection
# A URL that is a path as it is: without a query, escapes, or a slash at its end.
_PLAIN_PATH: Final = re.compile(rb"/[A-Za-z0-9._~:@!$&'()*+,;=/-]*[^/]")


class DirectHandler(Protocol):
    """Serves requests of one route without a task."""

    def begin(self, request: DirectRequest) -> bool:
        """Begin to serve `request`, whose access is checked; False, with nothing done, if it takes the app.

        The response is given later, from the event loop, by `request.respond` or `request.fail`; or an error
        is raised, as by an app. If the work can be ended, `request.when_cancelled` is set.
        """
        ...


class DirectDispatcher(Protocol):
    """What connections and requests know of the dispatcher."""

    @property
    def direct_prefixes(self) -> tuple[bytes, ...]:
        """Of URLs whose POST requests may be direct."""
        ...

    def begin(self, request: DirectRequest) -> bool:
        """Take `request`, which will be answered; False, with nothing done, if it takes the app."""
        ...


class RequestConnection(Protocol):
    """The connection of a request, as the dispatcher and the request know it."""

    def peer(self) -> ConnectionPeer:
        """Who is at the other end."""
        ...

    def recognize(self) -> None:
        """The client has authenticated."""
        ...

    def distrust(self) -> None:
        """What comes in here is passed on for others."""
        ...

    def send_direct(self, request: DirectRequest, status: int, lines: bytes, body: bytes) -> None:
        """The response to a request without a task; nothing if its client has left."""
        ...


class DirectContext(Protocol):
    """The route of a request, and what it needs when it is answered."""

    @property
    def handler(self) -> DirectHandler: ...

    @property
    def max_body_bytes(self) -> int: ...

    def admit(self, caller: Caller, connection: RequestConnection) -> None:
        """Raises if `caller` may not use the route."""
        ...

    def answered(self, request: DirectRequest, status: int) -> None:
        """It was answered, or its client has left."""
        ...

    def error_response(self, request: DirectRequest, error: Exception) -> tuple[int, bytes, bytes]:
        """The status, header lines and body for `error`."""
        ...


class _NoEvent:
    """In place of the event of uvicorn's cycle: nobody waits for it."""

    def set(self) -> None:
        pass


class DirectHead:
    """The head of a request that may be direct. One with the very same bytes needs no parsing, and has passed
    the checks that depend on nothing else (`checked`, which is the dispatcher's)."""

    __slots__ = ("checked", "headers", "length", "path")

    def __init__(self, path: str, headers: dict[bytes, bytes], length: int) -> None:
        self.path = path
        self.headers = headers  # not to be changed
        self.length = length  # of the body
        self.checked: CheckedHead | None = None


class CheckedHead(NamedTuple):
    """What a dispatcher knows of a head on its connection."""

    context: DirectContext
    request_id: bytes | None  # that the client has given
    authenticate: Callable[[], Caller]  # for every request anew


class HeadCache:
    """The heads of direct requests on one connection, by their bytes; most clients send the same few, which
    differ by the length of the body."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, DirectHead] = {}

    def known(self) -> list[tuple[bytes, DirectHead]]:
        """All of them with their bytes."""
        return list(self._heads.items())

    def split(self, data: bytes) -> tuple[DirectHead, bytes] | None:
        """The head and the body of the one request that `data` is, if its head is known."""
        end = data.find(_END_OF_HEAD) + len(_END_OF_HEAD)
        head = self._heads.get(data[:end])
        return None if head is None or len(data) - end != head.length else (head, data[end:])

    def add(self, data: bytes, head: DirectHead, body: bytes) -> None:
        """Remember `head`, if `data` was all of its request and nothing else."""
        end = data.find(_END_OF_HEAD) + len(_END_OF_HEAD)
        if (
            len(self._heads) < _MAX_HEADS
            and data[end:] == body
            and b"content-length" in head.headers
            and b"transfer-encoding" not in head.headers
        ):
            self._heads[data[:end]] = head


class DirectRequest:
    """One request. To its connection it is a cycle of uvicorn, of which it has the state."""

    __slots__ = (
        "body",
        "caller",
        "connection",
        "context",
        "disconnected",
        "head",
        "headers",
        "keep_alive",
        "path",
        "request_id",
        "response_complete",
        "response_started",
        "started",
        "when_cancelled",
    )

    context: DirectContext  # once the dispatcher has it
    more_body: Final = False
    message_event: Final = _NoEvent()

    def __init__(self, connection: RequestConnection, head: DirectHead, body: bytes) -> None:
        self.connection = connection
        self.head = head
        self.path = head.path
        self.headers = head.headers
        self.body = body
        self.caller: Caller = ANONYMOUS
        self.request_id = b""
        self.started = 0.0
        self.when_cancelled: Callable[[], None] | None = None
        self.keep_alive = True
        self.disconnected = False
        self.response_started = False
        self.response_complete = False

    def respond(self, status: int, lines: bytes, body: bytes) -> None:
        """The whole response; `lines` are its headers, but for the length and those of every response. They
        are written as they are, so nothing in them may come from outside unchecked."""
        if self.response_complete:
            return
        self.when_cancelled = None
        self.connection.send_direct(self, status, lines, body)
        self.context.answered(self, status)

    def fail(self, error: Exception) -> None:
        """The same with an error, which becomes a response as everywhere."""
        self.respond(*self.context.error_response(self, error))

    def cancel(self, error: Exception) -> None:
        """End the work for it."""
        if self.when_cancelled is not None:
            self.when_cancelled()
            self.fail(error)


def direct_path(url: bytes) -> str | None:
    """The path of a URL that is nothing else; None if it has to be parsed."""
    return url.decode("ascii") if _PLAIN_PATH.fullmatch(url) else None

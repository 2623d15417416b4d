"""One GET for checks and metrics: the status, and the body up to a limit.

Redirects are not followed: that the server answers is what counts. What it answers is a stranger's, so
everything has an end: the status and headers by their size, the body by `limit`, and all of it by the
caller's timeout.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

import httptools

from skerry.node.health.connections import ProbeConnection
from skerry.node.health.decisions import CheckResult

_MAX_HEAD: Final = 64 * 1024
_MOST_REQUESTS: Final = 1024  # that are remembered
_CHECK_BODY: Final = 16 * 1024  # read so that the server can close in peace


class ProbeFailed(Exception):
    """The other side does not speak as it should; the text says how."""


class HttpAnswer(NamedTuple):
    status: int
    body: bytes
    is_whole: bool


class HttpResponseReader:
    """The request for `path`, and what comes of the answer to it: at most about `limit` bytes of its body."""

    def __init__(self, path: str, limit: int = _CHECK_BODY) -> None:
        self._path = path
        self._limit = limit
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._body: list[bytes] = []
        self._size = 0
        self._received = 0
        self._has_ended = False

    def request(self, host: str, port: int) -> bytes:
        return _request(self._path, host, port)

    def feed(self, data: bytes) -> bool:
        """True if there is nothing more to read. Raises ProbeFailed."""
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if not self._has_ended:
                raise ProbeFailed("its answer is not HTTP") from None
        if self._status < 200 and self._received > _MAX_HEAD:
            raise ProbeFailed(f"its answer has more than {_MAX_HEAD // 1024} KiB of headers")
        return self._has_ended or self._size >= self._limit

    def answer(self) -> HttpAnswer:
        """What was read. Raises ProbeFailed if the other side closed before it answered."""
        if self._status < 200:
            raise ProbeFailed("it closed the connection without an answer")
        return HttpAnswer(self._status, b"".join(self._body), self._size < self._limit)

    # httptools calls these.

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._body.append(data)
        self._size += len(data)

    def on_message_complete(self) -> None:
        # 1xx comes before the answer itself.
        self._has_ended = self._status >= 200


@functools.lru_cache(maxsize=_MOST_REQUESTS)
def _request(path: str, host: str, port: int) -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n"
        "User-Agent: skerry-check\r\nAccept: */*\r\nConnection: close\r\n\r\n".encode()
    )


async def get(connection: ProbeConnection, path: str, limit: int) -> HttpAnswer:
    """The answer to a GET. Raises OSError, ProbeFailed."""
    reader = HttpResponseReader(path, limit)
    await connection.send(reader.request(connection.host, connection.port))
    while data := await connection.receive():
        if reader.feed(data):
            break
    return reader.answer()


def result_of(answer: HttpAnswer) -> CheckResult:
    """Of a check."""
    has_passed = 200 <= answer.status < 400
    return CheckResult(has_passed, "" if has_passed else f"HTTP {answer.status}")

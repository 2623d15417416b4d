"""One GET over a connection for checks and metrics: the status, and the body up to a limit.

Redirects are not followed: that the server answers is what counts. What it answers is a stranger's, so
everything has an end: the status and headers by their size, the body by `limit`, and all of it by the
caller's timeout.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import httptools

from skerry.node.health.connections import ProbeConnection
from skerry.node.health.decisions import CheckResult

_MAX_HEAD: Final = 64 * 1024
_CHECK_BODY: Final = 16 * 1024  # read so that the server can close in peace


class ProbeFailed(Exception):
    """The other side does not speak as it should; the text says how."""


class HttpAnswer(NamedTuple):
    status: int
    body: bytes
    is_whole: bool


class _Reader:
    """Takes what the parser finds."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.body: list[bytes] = []
        self.size = 0
        self.has_ended = False

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.body.append(data)
        self.size += len(data)

    def on_message_complete(self) -> None:
        # 1xx comes before the answer itself.
        self.has_ended = self.status >= 200


async def get(connection: ProbeConnection, path: str, limit: int) -> HttpAnswer:
    """The answer to a GET, with at most about `limit` bytes of its body. Raises OSError, ProbeFailed."""
    await connection.send(
        f"GET {path} HTTP/1.1\r\nHost: {connection.host}:{connection.port}\r\n"
        "User-Agent: skerry-check\r\nAccept: */*\r\nConnection: close\r\n\r\n".encode()
    )
    reader, received = _Reader(), 0
    while not reader.has_ended and reader.size < limit:
        data = await connection.receive()
        if not data:
            break
        received += len(data)
        try:
            reader.parser.feed_data(data)
        except httptools.HttpParserError:
            if not reader.has_ended:
                raise ProbeFailed("its answer is not HTTP") from None
        if reader.status < 200 and received > _MAX_HEAD:
            raise ProbeFailed(f"its answer has more than {_MAX_HEAD // 1024} KiB of headers")
    if reader.status < 200:
        raise ProbeFailed("it closed the connection without an answer")
    return HttpAnswer(reader.status, b"".join(reader.body), reader.size < limit)


async def check(connection: ProbeConnection, path: str) -> CheckResult:
    """Raises OSError, ProbeFailed."""
    answer = await get(connection, path, _CHECK_BODY)
    has_passed = 200 <= answer.status < 400
    return CheckResult(has_passed, "" if has_passed else f"HTTP {answer.status}")

"""The bytes of a response to a direct request: the same, whether the server writes them or a front.

Imports nothing of the server, so that a front process stays small.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

_STATUS_LINES: Final[dict[int, bytes]] = {
    status: b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode()) for status in HTTPStatus
}


def encode_response(
    status: int, date_line: bytes, lines: bytes, request_id: bytes, body: bytes, *, closes: bool
) -> bytes:
    """A whole response; with `closes` it says that the connection ends behind it. `lines` and `request_id`
    are written as they are, so nothing in them may come from outside unchecked."""
    own = b"content-length: %d\r\nx-request-id: %b\r\n%b\r\n" % (
        len(body),
        request_id,
        b"connection: close\r\n" if closes else b"",
    )
    return b"".join((status_line(status), date_line, lines, own, body))


def status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status

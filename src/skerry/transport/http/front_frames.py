"""Frames between the server and a front process, and the message with which a connection is assigned.

A frame is a kind, the number of a connection, and a payload. From the server:

    RESPONSE  status, whether the connection closes, header lines, request id, body
    DECLINE   the request takes the server itself: return the connection with it

From the front:

    REQUEST   the number of a known head, and the body
    RETURN    the connection is the server's again, with what was read of it and not served
    CLOSED    the connection has ended

Descriptors go over a socket of their own, message by message (`encode_assignment`). A connection has at
most one request under way, so nothing else needs a number.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

RESPONSE: Final = 1
DECLINE: Final = 2
REQUEST: Final = 3
RETURN: Final = 4
CLOSED: Final = 5

END_OF_HEAD: Final = b"\r\n\r\n"
MAX_MESSAGE: Final = 64 * 1024  # of a assigned connection with its heads
# Bodies of requests that a front reads; the server reads longer ones itself, in turns with others.
MAX_BODY: Final = 64 * 1024

_FRAME: Final = struct.Struct("<BII")  # kind, connection, bytes of the payload
_RESPONSE: Final = struct.Struct("<H?IB")  # status, closes, bytes of lines, bytes of the request id
_NUMBER: Final = struct.Struct("<I")
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,8})[ \t]*\r\n", re.IGNORECASE)


class HeadKey(NamedTuple):
    """A request head without the digits of its length, which differ from call to call."""

    key: bytes
    length: int


class ResponseFrame(NamedTuple):
    """The payload of `RESPONSE`."""

    status: int
    closes: bool
    lines: bytes
    request_id: bytes
    body: bytes


def head_key(data: bytes, end: int) -> HeadKey | None:
    """Of the head that is `data` up to `end`; None without one plain length. Heads with equal keys differ in
    nothing but that length: a head in which it is repeated is never assigned."""
    found = _LENGTH.search(data, 0, end)
    if found is None:
        return None
    return HeadKey(data[: found.start(1)] + data[found.end(1) : end], int(found[1]))


def encode_frame(kind: int, connection: int, payload: bytes = b"") -> bytes:
    return _FRAME.pack(kind, connection, len(payload)) + payload


def encode_request(connection: int, head: int, body: bytes) -> bytes:
    return b"%b%c%b" % (_FRAME.pack(REQUEST, connection, 1 + len(body)), head, body)


def encode_response(connection: int, response: ResponseFrame) -> bytes:
    status, closes, lines, request_id, body = response
    size = _RESPONSE.size + len(lines) + len(request_id) + len(body)
    return b"".join(
        (
            _FRAME.pack(RESPONSE, connection, size),
            _RESPONSE.pack(status, closes, len(lines), len(request_id)),
            lines,
            request_id,
            body,
        )
    )


def decode_response(payload: bytes) -> ResponseFrame:
    status, closes, lines, request_id = _RESPONSE.unpack_from(payload)
    middle = _RESPONSE.size + lines
    end = middle + request_id
    return ResponseFrame(status, closes, payload[_RESPONSE.size : middle], payload[middle:end], payload[end:])


def encode_assignment(connection: int, heads: list[bytes]) -> bytes:
    """The message that comes with the descriptor of a connection: its number and the keys of its heads."""
    return _NUMBER.pack(connection) + b"".join(_NUMBER.pack(len(key)) + key for key in heads)


def decode_assignment(message: bytes) -> tuple[int, list[bytes]]:
    (connection,) = _NUMBER.unpack_from(message)
    heads, at = [], _NUMBER.size
    while at < len(message):
        (size,) = _NUMBER.unpack_from(message, at)
        heads.append(message[at + _NUMBER.size : at + _NUMBER.size + size])
        at += _NUMBER.size + size
    return connection, heads


class FrameReader:
    """Puts frames together from what is read, and hands each to `handle`: kind, connection, payload."""

    __slots__ = ("_handle", "_missing", "_parts")

    def __init__(self, handle: Callable[[int, int, bytes], None]) -> None:
        self._handle = handle
        self._parts: list[bytes] = []  # of a frame that is not complete
        self._missing = 0  # bytes, at least, until it is

    def feed(self, data: bytes) -> None:
        if self._parts:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        at, end = 0, len(data)
        while end - at >= _FRAME.size:
            kind, connection, size = _FRAME.unpack_from(data, at)
            stop = at + _FRAME.size + size
            if stop > end:
                self._missing = stop - end
                break
            self._handle(kind, connection, data[at + _FRAME.size : stop])
            at = stop
        else:
            self._missing = _FRAME.size - (end - at)
        if at < end:
            self._parts.append(data[at:])

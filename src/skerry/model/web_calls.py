"""Calls of web functions: an HTTP request in, an HTTP response out. Pure.

A request travels to its worker as bytes, like the parameters of other calls: the length of its head, the head
as JSON, and the body as it came. A response is a head, and a body that comes in parts
(`skerry.kit.response_stream`). What a worker says of the head is checked here before anybody sees it: names
and values that would end a header, headers of one connection only, and statuses that are none.
`skerry.node.workers` has the other end.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Final

import msgspec

from skerry.kit.response_stream import ResponseStream
from skerry.model.calls import CallRequest

Headers = tuple[tuple[str, str], ...]

MAX_HEAD_BYTES: Final = 64 * 1024  # of a response, names and values
MAX_HEADERS: Final = 256
_LENGTH: Final = struct.Struct("<I")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
# Visible characters, spaces, tabs, and what Latin-1 has beyond ASCII.
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
_LEAST_STATUS: Final = 200  # 1xx come before a response, and 101 ends HTTP
_MOST_STATUS: Final = 599
_CONNECTION: Final = "connection"
# Of one connection, not of the message.
HOP_BY_HOP: Final = frozenset(
    {
        _CONNECTION,
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Each response has one, which the server writes.
_OF_SERVER: Final = frozenset({"date", "x-request-id"})
NO_BODY: Final = frozenset({204, 304})


class WebRequestHead(msgspec.Struct, frozen=True):
    """All of a request but its body. Headers are lower case and may be repeated."""

    method: str
    path: str  # below the function, as it was sent: percent-encoded, with a slash at its beginning
    query: str = ""  # as it was sent, without the question mark
    headers: Headers = ()
    client: str = ""  # address
    scheme: str = "http"
    root_path: str = ""  # what was before `path`
    caller: str = ""  # the name of who has called; empty: anybody


class WebResponseHead(msgspec.Struct, frozen=True):
    """Status and headers of a response."""

    status: int
    headers: Headers = ()

    @property
    def content_length(self) -> int | None:
        return next((int(value) for name, value in self.headers if name == "content-length"), None)


class WebCallRequest(CallRequest, frozen=True, kw_only=True):
    """A call whose response is streamed to `response`; its parameters are `encode_request`'s."""

    response: ResponseStream[WebResponseHead]
    is_web: bool = True

    def for_member(self) -> CallRequest:
        """The same without `response`, which stays here."""
        return CallRequest(
            self.function,
            self.params,
            self.qos_class,
            self.max_response_s,
            self.can_offload,
            self.wants_output,
            is_web=True,
            traceparent=self.traceparent,
        )


class InvalidResponse(ValueError):
    """A worker's response is not one that can be sent; the text says why, for the function's author."""


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(WebRequestHead).decode
_decode_response: Final = msgspec.json.Decoder(WebResponseHead).decode


def encode_request(head: WebRequestHead, body: bytes) -> bytes:
    """The request as its worker gets it."""
    encoded = _encode(head)
    return b"".join((_LENGTH.pack(len(encoded)), encoded, body))


def decode_request(data: bytes) -> tuple[WebRequestHead, bytes]:
    """What `encode_request` has encoded."""
    (length,) = _LENGTH.unpack_from(data)
    begin = _LENGTH.size
    return _decode(data[begin : begin + length]), data[begin + length :]


def decode_response(data: bytes) -> WebResponseHead:
    """The head of a response, as a worker sent it. Raises `InvalidResponse`."""
    try:
        head = _decode_response(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidResponse(f"the head of the response is not one: {error}") from None
    return check_response(head.status, head.headers)


def check_response(status: int, headers: Iterable[tuple[str, str]]) -> WebResponseHead:
    """The head of a response as it may be sent: lower case, without what is of one connection. Raises
    `InvalidResponse`."""
    if not _LEAST_STATUS <= status <= _MOST_STATUS:
        raise InvalidResponse(f"{status} is no status of a response; use {_LEAST_STATUS} to {_MOST_STATUS}")
    given = [(name.lower(), value.strip(" \t")) for name, value in headers]
    if len(given) > MAX_HEADERS or sum(len(name) + len(value) for name, value in given) > MAX_HEAD_BYTES:
        raise InvalidResponse(
            f"a response has at most {MAX_HEADERS} headers of {MAX_HEAD_BYTES} bytes together; send less"
        )
    for name, value in given:
        if not _NAME.fullmatch(name):
            raise InvalidResponse(f"{name[:60]!r} is no name of a header")
        if not _VALUE.fullmatch(value):
            raise InvalidResponse(
                f"the value of the header {name!r} has characters that no header may have: {value[:60]!r}"
            )
    kept = end_to_end(given, without=_OF_SERVER)
    lengths = {value for name, value in kept if name == "content-length"}
    if len(lengths) > 1 or not all(map(_DIGITS.fullmatch, lengths)):
        raise InvalidResponse(f"{sorted(lengths)[:2]} is no content-length; leave it out")
    if lengths:
        kept = tuple((name, value) for name, value in kept if name != "content-length")
        if status not in NO_BODY:
            kept = (*kept, ("content-length", lengths.pop()))
    return WebResponseHead(status, kept)


def end_to_end(headers: Iterable[tuple[str, str]], *, without: frozenset[str] = frozenset()) -> Headers:
    """The headers, in lower case, that are of the message and not of one connection, and not in `without`."""
    listed = tuple(headers)
    dropped = HOP_BY_HOP | without
    for name, value in listed:
        if name == _CONNECTION:
            dropped |= {each.strip().lower() for each in value.split(",")}
    return tuple(each for each in listed if each[0] not in dropped)

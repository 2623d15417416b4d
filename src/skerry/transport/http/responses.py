"""Responses: whole ones, and errors in the one shape that all our own routes share.

`dispatcher` sends them; `connection` uses the same shape for what never becomes a request.
`skerry.transport.error_codes` has the status of each error of the model; errors of HTTP alone (a wrong verb,
a slow body) are here.
"""

from __future__ import annotations

import http
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from skerry.kit import json_codec
from skerry.model import errors
from skerry.transport import error_codes
from skerry.transport.http.asgi import Scope, Send

JSON = "application/json"

_NOT_STORED = ((b"cache-control", b"no-store"),)

HttpHeaders = list[tuple[bytes, bytes]]


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as every route of Skerry's own writes it."""

    error: str
    code: str
    request_id: str
    field: str = ""


class HttpError(Exception):
    """An error of HTTP, which the model does not have."""

    def __init__(self, status: int, code: str, message: str, headers: Iterable[tuple[bytes, bytes]] = ()):
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = list(headers)


class RouteNotFound(errors.NotFound):
    """Nothing is served at the path at all, whatever its names are."""


class WrongVerb(HttpError):
    """The path is served, and does not take this verb."""

    def __init__(self, method: str, allowed: Iterable[str]) -> None:
        listed = ", ".join(sorted(allowed))
        super().__init__(
            405,
            "wrong-verb",
            f"this path does not take {method}; it takes {listed}",
            [(b"allow", listed.encode())],
        )


class ClientDisconnected(Exception):
    """The client disconnected before its request or its response was complete."""


def status_of(error: errors.SkerryError) -> int:
    """The row of the table for this error, or for the nearest class above it."""
    for kind in type(error).__mro__:
        if (status := error_codes.HTTP_STATUS.get(kind)) is not None:
            return status
    return 500


def error_head(error: errors.SkerryError | HttpError) -> tuple[int, str, HttpHeaders]:
    """Status, code and headers of the answer for `error`, in whatever shape its body is."""
    if isinstance(error, HttpError):
        return error.status, error.code, list(error.headers)
    headers: HttpHeaders = []
    if isinstance(error, errors.Overloaded):
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode()))
    elif isinstance(error, errors.Unauthenticated):
        headers.append((b"www-authenticate", b'Bearer realm="skerry"'))
    return status_of(error), error.slug, headers


def error_response(error: errors.SkerryError | HttpError, request_id: str) -> tuple[int, HttpHeaders, bytes]:
    """Status, headers and body for `error`."""
    return in_shape(error, request_id, JSON, lambda problem: problem)


def refusal(status: int, message: str, code: str, request_id: str) -> bytes:
    """The whole response to what never became a request, in the same shape; the connection closes."""
    body = json_codec.encode(Problem(message, code, request_id))
    retry = "retry-after: 1\r\n" if status == http.HTTPStatus.SERVICE_UNAVAILABLE else ""
    head = (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
        f"content-type: {JSON}\r\ncontent-length: {len(body)}\r\n"
        f"x-request-id: {request_id}\r\n{retry}connection: close\r\n\r\n"
    )
    return head.encode() + body


def in_shape(
    error: errors.SkerryError | HttpError, request_id: str, media: str, shape: Callable[[Problem], Any]
) -> tuple[int, HttpHeaders, bytes]:
    """The same in another media type, which has a shape of its own for problems."""
    status, code, headers = error_head(error)
    field = error.field if isinstance(error, errors.Invalid) else ""
    body = json_codec.encode(
        shape(Problem(error=error.message, code=code, request_id=request_id, field=field))
    )
    headers += [(b"content-type", media.encode()), (b"content-length", str(len(body)).encode())]
    return status, headers, body


def accepts(headers: Mapping[bytes, bytes], media: str) -> bool:
    """True if the caller names exactly this media type among those it accepts."""
    accepted = headers.get(b"accept", b"").decode("latin-1").lower()
    return any(named.partition(";")[0].strip() == media for named in accepted.split(","))


async def send_whole(
    send: Send, status: int, body: bytes, media: str = JSON, more: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """An answer in one piece, with `more` headers."""
    headers = [(b"content-length", b"%d" % len(body)), *_headers_of(media, more)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_at_once(
    scope: Scope,
    send: Send,
    status: int,
    body: bytes,
    media: str = JSON,
    more: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """The same by one write where possible, which is twice as fast: for the two messages of ASGI the server
    checks every header again."""
    state = scope["state"]
    if not state["exchange"].answer(state["connection"], status, _headers_of(media, more), body):
        await send_whole(send, status, body, media, more)


def _headers_of(media: str, more: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    given = tuple(more)
    caching = () if any(name == b"cache-control" for name, _ in given) else _NOT_STORED
    return (b"content-type", media.encode()), *caching, *given


async def send_nothing(send: Send, status: int, more: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """An answer without a body."""
    await send({"type": "http.response.start", "status": status, "headers": [*more]})
    await send({"type": "http.response.body", "body": b""})

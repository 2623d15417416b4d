"""What goes back to the caller: whole answers, and errors in the one shape that all our own routes share.

`front` sends them; `protocol` uses the same shape for what never becomes a request. Which status an error of
the model has is in `skerry.wire.errors`; only what concerns HTTP alone (a wrong verb, a slow body) is here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
from starlette.types import Send

from skerry.kit import jsonio
from skerry.model import errors
from skerry.wire import errors as tables

JSON = "application/json"

Headers = list[tuple[bytes, bytes]]


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as every route of Skerry's own writes it."""

    error: str
    code: str
    request_id: str
    field: str = ""


class HttpError(Exception):
    """Something wrong that only HTTP knows: there is no such class in the model."""

    def __init__(self, status: int, code: str, message: str, headers: Iterable[tuple[bytes, bytes]] = ()):
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = list(headers)


class ClientGone(Exception):
    """The client went away before its request or its answer was complete; there is nobody to tell."""


def status_of(error: errors.SkerryError) -> int:
    """The row of the table for this error, or for the nearest class above it."""
    for kind in type(error).__mro__:
        if (status := tables.HTTP.get(kind)) is not None:
            return status
    return 500


def outline(error: errors.SkerryError | HttpError) -> tuple[int, str, Headers]:
    """Status, code and headers of an answer that tells of `error`, in whatever shape its body is."""
    if isinstance(error, HttpError):
        return error.status, error.code, list(error.headers)
    headers: Headers = []
    if isinstance(error, errors.Overloaded):
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode()))
    elif isinstance(error, errors.Unauthenticated):
        headers.append((b"www-authenticate", b'Bearer realm="skerry"'))
    return status_of(error), error.slug, headers


def of_error(error: errors.SkerryError | HttpError, request_id: str) -> tuple[int, Headers, bytes]:
    """Status, headers and body that tell the caller of `error`."""
    status, code, headers = outline(error)
    field = error.field if isinstance(error, errors.Invalid) else ""
    body = jsonio.encode(Problem(error=error.message, code=code, request_id=request_id, field=field))
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return status, headers, body


def headers_of(body: bytes, media: str, more: Iterable[tuple[bytes, bytes]] = ()) -> Headers:
    """What an answer in one piece says of its body, and `more`."""
    return [
        (b"content-type", media.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        *more,
    ]


async def send_whole(
    send: Send, status: int, body: bytes, media: str = JSON, more: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """An answer in one piece, with `more` headers."""
    headers = headers_of(body, media, more)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_nothing(send: Send, status: int) -> None:
    """An answer without a body."""
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})

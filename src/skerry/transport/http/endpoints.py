"""Endpoints as typed functions: requests are decoded before they run, results are encoded.

    @endpoint("DELETE", "/token/{id}", summary="Revoke a token", raises=(errors.NotFound,), status=204)
    async def revoke(own: OwnContext, call: RequestContext, path: TokenPath) -> None: ...

The parameters `path`, `query` and `body` are structs, and their annotations are the declaration: the same
structs decode the request (`runner`) and describe it (`openapi`). The first parameter is the context of the
endpoint's dialect, which is given when the application is built. A body that may be left out is declared as
`body: JoinRequest | None`, and a query whose errors the endpoint handles as `query: Q | errors.Invalid`.
Nothing here knows what an endpoint does.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypedDict, Unpack

import msgspec

from skerry.model import errors
from skerry.model.callers import Caller
from skerry.transport.http import responses
from skerry.transport.http.streaming import StreamFormat
from skerry.transport.http.websocket import WebSocket

_NAMES = re.compile(r"{(\w+)}")
# Bodies of our own routes are small records; routes that take more declare it.
MAX_BODY_BYTES = 64 * 1024


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """The request of an endpoint, beside its parameters."""

    caller: Caller
    request_id: str
    address: str  # of the client, for limits
    headers: Mapping[bytes, bytes]
    subprotocol: str = ""  # that was agreed on, on a WebSocket; empty if the client named none
    uid: int | None = (
        None  # the local user of the client, by the kernel's report; None: it is of another machine
    )
    started_s: float = 0.0  # monotonic time before anything was read for it
    traceparent: str = ""  # of its span; empty: it is not traced

    @property
    def idempotency_key(self) -> str | None:
        """Chosen by the client: a request that is sent again with it is done once."""
        given = self.headers.get(b"idempotency-key")
        return None if given is None else given.decode("latin-1")


class RawBody(msgspec.Struct, frozen=True):
    """An answer that is no JSON: the bytes as they are, in the endpoint's media type."""

    content: bytes


class EncodedJson(msgspec.Struct, frozen=True):
    """JSON that is written already."""

    data: bytes


class Response(msgspec.Struct, frozen=True):
    """A value with more to it than the endpoint's usual answer: statuses and media that it lists, headers."""

    value: Any
    status: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media: str = ""  # empty: the usual one of its dialect


class StreamResponse(msgspec.Struct, frozen=True):
    """An answer that comes bit by bit; `cleanup` is closed when it has ended, or could not begin."""

    parts: AsyncGenerator[bytes, None]
    format: StreamFormat
    cleanup: AsyncExitStack
    heartbeat_s: float | None = None


class WebSocketResponse(msgspec.Struct, frozen=True):
    """A WebSocket, and the conversation on it; `cleanup` is closed when it has ended, or could not begin."""

    converse: Callable[[WebSocket], Awaitable[None]]
    cleanup: AsyncExitStack
    accepts_text: bool = False


class Endpoint(msgspec.Struct, frozen=True):
    """A declared endpoint. `inputs` holds the structs of `path`, `query` and `body`, where it has them."""

    method: str
    path: str
    summary: str
    description: str
    operation: str  # its name in the API's description, once per module
    handle: Callable[..., Awaitable[Any]]
    inputs: dict[str, type[msgspec.Struct]]
    reply: Any
    status: int = 200
    media: str = responses.JSON
    raises: tuple[type[errors.SkerryError], ...] = ()
    extra_statuses: dict[int, str] = msgspec.field(
        default_factory=dict
    )  # other statuses with the same reply, and when
    text_statuses: dict[int, str] = msgspec.field(
        default_factory=dict
    )  # statuses answered in plain text, and when
    alternatives: tuple[Any, ...] = ()  # other replies with the same status
    problem: type[msgspec.Struct] = responses.Problem  # the shape of what it raises
    other_media: dict[str, Any] = msgspec.field(
        default_factory=dict
    )  # by Accept, with the shape of their replies
    other_problems: dict[str, type[msgspec.Struct]] = msgspec.field(
        default_factory=dict
    )  # likewise, around a problem
    headers: dict[str, str] = msgspec.field(default_factory=dict)  # that it reads, and what for
    streams: bool = False
    is_quiet: bool = False
    is_read: bool = False  # it changes nothing, as every GET
    max_body_bytes: int = MAX_BODY_BYTES
    max_message_bytes: int = MAX_BODY_BYTES  # of a WebSocket
    subprotocols: tuple[str, ...] = ()  # of a WebSocket, those that it can choose from
    may_lack_body: bool = False
    handles_query_error: bool = False  # it is given the error if the query does not fit

    @property
    def name(self) -> str:
        """`GET /token/{id}`, as the access table has it."""
        return f"{self.method} {self.path}"


class EndpointOptions(TypedDict, total=False):
    """Fields of `Endpoint` that a declaration may set."""

    status: int
    media: str
    raises: tuple[type[errors.SkerryError], ...]
    extra_statuses: dict[int, str]
    text_statuses: dict[int, str]
    alternatives: tuple[Any, ...]
    problem: type[msgspec.Struct]
    other_media: dict[str, Any]
    headers: dict[str, str]
    streams: bool
    is_quiet: bool
    is_read: bool
    max_body_bytes: int
    max_message_bytes: int
    subprotocols: tuple[str, ...]


def endpoint(
    method: str, path: str, *, summary: str, **options: Unpack[EndpointOptions]
) -> Callable[[Callable[..., Awaitable[Any]]], Endpoint]:
    """Declare an endpoint; its description is the function's docstring, its types the annotations."""
    options.setdefault("is_read", method == "GET")

    def declare(handle: Callable[..., Awaitable[Any]]) -> Endpoint:
        hints = typing.get_type_hints(handle)
        inputs: dict[str, type[msgspec.Struct]] = {
            name: _without(_without(hints[name], type(None)), errors.Invalid)
            for name in ("path", "query", "body")
            if name in hints
        }
        named = set(_NAMES.findall(path))
        taken = set(inputs["path"].__struct_fields__) if "path" in inputs else set()
        assert named == taken, f"{path} names {named}, its struct has {taken}"
        return Endpoint(
            method=method,
            path=path,
            summary=summary,
            description=inspect.getdoc(handle) or "",
            operation=handle.__name__,
            handle=handle,
            inputs=inputs,
            reply=_without(hints["return"], Response),
            may_lack_body="body" in hints and type(None) in typing.get_args(hints["body"]),
            handles_query_error="query" in hints and errors.Invalid in typing.get_args(hints["query"]),
            **options,
        )

    return declare


def _without(annotated: Any, other: type) -> Any:
    """The one struct of an annotation, with or without `other` beside it."""
    kinds = typing.get_args(annotated)
    return next(kind for kind in kinds if kind is not other) if other in kinds else annotated

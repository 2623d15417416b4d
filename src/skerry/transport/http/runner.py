"""Runs declared endpoints (`endpoints`) as ASGI applications, in the `Dialect` of a contract.

In this order: the handshake of a WebSocket, the caller (where the contract has callers of its own), path,
query and body, the namespaces of a caller that is bound to some, the endpoint, and its response. The
dispatcher does limits, access, errors and logging. Nothing here knows what an endpoint does.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.settings import HttpSettings
from skerry.transport.access import environment_redaction, namespaces, rules
from skerry.transport.http import decoding, request_bodies, responses, streaming, websocket
from skerry.transport.http.asgi import Receive, Scope, Send
from skerry.transport.http.dispatcher import ErrorShape, HttpRoute
from skerry.transport.http.endpoints import (
    EncodedJson,
    Endpoint,
    RawBody,
    RequestContext,
    Response,
    StreamResponse,
    WebSocketResponse,
)

BodyReader = Callable[[bytes, Scope], Any]  # from the whole body to the struct that an endpoint declares
# From the context, the endpoint, the request as any route knows it, and its body, to a call of the dialect.
Identify = Callable[[Any, Endpoint, RequestContext, Scope, Receive, bytes], Awaitable[RequestContext]]


def _read_strictly(declared: Endpoint) -> BodyReader:
    kind, may_lack = declared.inputs["body"], declared.may_lack_body

    def read(data: bytes, scope: Scope) -> Any:
        if may_lack and not data:
            return None
        headers = scope["state"]["headers"]
        return decoding.body(data, headers.get(b"content-type"), headers.get(b"content-encoding"), kind)

    return read


def _encode(value: Any, query_string: bytes) -> bytes:
    return json_codec.encode(value)


class Dialect(msgspec.Struct, frozen=True):
    """How a contract decodes bodies, encodes values and formats errors. The defaults are Skerry's own."""

    error_response: ErrorShape = responses.error_response
    body_reader: Callable[[Endpoint], BodyReader] = _read_strictly
    encode: Callable[[Any, bytes], bytes] = _encode  # of a value, and by the query of the request
    media: str = responses.JSON
    identify: Identify | None = None
    redacts: bool = True  # values of environment variables, which only some may see
    at_once: bool = False  # answers by one write: none of their headers may come from outside unchecked
    unavailable: str = ""  # the error of every endpoint while it has no context; empty: it does without


OWN = Dialect()


class EndpointRunner:
    """An endpoint with what it works with. With `prefix` what follows that is its path, whatever it holds."""

    def __init__(
        self,
        declared: Endpoint,
        dialect: Dialect,
        context: Any,
        prefix: str = "",
        *,
        is_namespaced: bool = False,
    ) -> None:
        if is_namespaced and not namespaces.is_enforceable(declared.inputs):
            raise ValueError(f"{declared.name} is of a namespace, and has none in its path or query")
        self._is_namespaced = is_namespaced
        self._declared = declared
        self._handle = declared.handle
        self._dialect = dialect
        self._encode = dialect.encode
        self._identify = dialect.identify
        self._context = context
        self._skipped = len(prefix)
        self._is_socket = declared.reply is WebSocketResponse
        self._path = declared.inputs.get("path")
        self._query = declared.inputs.get("query")
        self._read = dialect.body_reader(declared) if "body" in declared.inputs else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared, dialect, state = self._declared, self._dialect, scope["state"]
        handshake = websocket.accept(scope, declared.subprotocols) if self._is_socket else []
        call = RequestContext(
            caller=state["caller"],
            request_id=state["request_id"],
            address=scope["client"][0] if scope["client"] else "",
            headers=state["headers"],
            uid=state["connection"].peer().uid,
            subprotocol=dict(handshake).get(websocket.CHOSEN, b"").decode() if handshake else "",
            started_s=state["started_s"],
            traceparent=state.get("traceparent", ""),
        )
        data: bytes | None = None
        if self._identify is not None:
            data = b"" if self._is_socket else await request_bodies.read_whole(receive)
            call = await self._identify(self._context, declared, call, scope, receive, data)
        inputs: dict[str, Any] = {}
        if self._path is not None:
            inputs["path"] = (
                self._path(scope["path"][self._skipped :])
                if self._skipped
                else decoding.path(scope["path_params"], self._path)
            )
        if self._query is not None:
            try:
                inputs["query"] = (
                    decoding.query(scope["query_string"], self._query)
                    if scope["query_string"]
                    else _without_query(self._query)
                )
            except errors.Invalid as error:
                if not declared.handles_query_error:
                    raise
                inputs["query"] = error
        if self._read is not None:
            if data is None:
                data = await request_bodies.read_whole(receive)
            inputs["body"] = self._read(data, scope)
        if self._is_namespaced and call.caller.namespaces is not None:
            namespaces.confine(call.caller.scope, inputs)
        reply = await self._handle(self._context, call, **inputs)
        if isinstance(reply, StreamResponse):
            async with reply.cleanup:
                await streaming.write(
                    reply.parts, scope, receive, send, format=reply.format, heartbeat_s=reply.heartbeat_s
                )
            return
        if isinstance(reply, WebSocketResponse):
            async with reply.cleanup:
                await websocket.serve(
                    reply.converse,
                    handshake,
                    scope,
                    send,
                    max_message=declared.max_message_bytes,
                    accepts_text=reply.accepts_text,
                )
            return
        if not isinstance(reply, Response):
            reply = Response(reply)
        value, status, media = reply.value, reply.status or declared.status, reply.media or dialect.media
        if value is None:
            await responses.send_nothing(send, status, reply.headers)
            return
        if isinstance(value, RawBody):
            await responses.send_whole(
                send, status, value.content, reply.media or declared.media, reply.headers
            )
            return
        if isinstance(value, EncodedJson):
            body = value.data
        else:
            if dialect.redacts:
                value = environment_redaction.redact_value(call.caller, value)
            body = self._encode(value, scope["query_string"])
        if dialect.at_once:
            await responses.send_at_once(scope, send, status, body, media, reply.headers)
        else:
            await responses.send_whole(send, status, body, media, reply.headers)


@functools.cache  # and not when it is declared: few of hundreds of endpoints are ever called
def _without_query(kind: type[Any]) -> Any:
    """The struct of a request without a query."""
    return decoding.query(b"", kind)


def build_route(
    declared: Endpoint,
    dialect: Dialect,
    context: Any,
    settings: HttpSettings,
    *,
    row: rules.AccessRule | None = None,
    max_body_bytes: int | None = None,
    prefix: str = "",
) -> HttpRoute:
    """An endpoint as it is served: with the access rule of its name unless `row` is given, and a body that is
    bounded by its declaration and the settings unless `max_body_bytes` is given."""
    if max_body_bytes is None:
        max_body_bytes = min(declared.max_body_bytes, settings.max_body_bytes)

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        raise errors.Unavailable(dialect.unavailable)

    is_lacking = context is None and dialect.unavailable
    row = row or rules.HTTP_RULES[declared.name]
    is_namespaced = row.scope is rules.AccessScope.NAMESPACED
    runner = EndpointRunner(declared, dialect, context, prefix, is_namespaced=is_namespaced)
    return HttpRoute(
        method=declared.method,
        template=declared.path,
        app=refuse if is_lacking else runner,
        row=row,
        max_body_bytes=max_body_bytes,
        timeout_s=None if declared.streams else settings.request_timeout_s,
        is_quiet=declared.is_quiet,
        error_response=dialect.error_response,
        problems=declared.other_problems,
    )

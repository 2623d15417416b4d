"""Endpoints of this room as ASGI apps: the contract's manners around a typed function.

Like `skerry.transport.http.endpoints.EndpointRunner`, but what is read and written follows `go_json`, and
nobody asks for the Content-Type. Where there are no functions every endpoint says so.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from skerry.model import errors
from skerry.transport.access import environment_redaction
from skerry.transport.http import decoding, request_bodies, responses, streaming
from skerry.transport.http.asgi import Receive, Scope, Send
from skerry.transport.http.endpoints import Endpoint, RequestContext, Response, StreamResponse
from skerry.wire.serverledge import error_texts, go_json
from skerry.wire.serverledge.context import ServerledgeContext

_PRETTY = "pretty"


class ServerledgeEndpointRunner:
    """An endpoint with what it works with; of a bare one `prefix` is what stands before the name."""

    def __init__(self, declared: Endpoint, room: ServerledgeContext | None, *, prefix: str = "") -> None:
        self._declared = declared
        self._handle = declared.handle
        self._room = room
        self._skipped = len(prefix)
        self._path = declared.inputs.get("path")
        self._query = declared.inputs.get("query")
        body = declared.inputs.get("body")
        self._reader = None if body is None else go_json.GoJsonReader(body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._room is None:
            raise errors.Unavailable(
                "this node runs no functions, because it cannot run containers; its log says at its start "
                "what is lacking. Call another node, or a server"
            )
        inputs: dict[str, Any] = {}
        if self._path is not None:
            inputs["path"] = (
                self._path(scope["path"][self._skipped :])
                if self._skipped
                else decoding.path(scope["path_params"], self._path)
            )
        query = scope["query_string"]
        if self._query is not None:
            inputs["query"] = decoding.query(query, self._query)
        if self._reader is not None:
            inputs["body"] = self._reader.read(await request_bodies.read_whole(receive))
        call = _call(scope)
        reply = await self._handle(self._room, call, **inputs)
        if isinstance(reply, StreamResponse):
            async with reply.held:
                await streaming.write(reply.parts, scope, receive, send, manner=reply.manner)
            return
        is_pretty = bool(query) and wants_pretty(query)
        if not isinstance(reply, Response):
            reply = Response(reply)
        status = reply.status or 200
        body = go_json.encode_go_json(
            environment_redaction.redact_value(call.caller, reply.value), is_pretty=is_pretty
        )
        await responses.send_at_once(scope, send, status, body, error_texts.JSON, reply.headers)


def wants_pretty(query_string: bytes) -> bool:
    """True if the query has `pretty`, whatever its value."""
    pairs = parse_qsl(query_string.decode("latin-1"), keep_blank_values=True)
    return any(name == _PRETTY for name, _ in pairs)


def _call(scope: Scope) -> RequestContext:
    state = scope["state"]
    return RequestContext(
        caller=state["caller"],
        request_id=state["request_id"],
        address=scope["client"][0] if scope["client"] else "",
        headers=state["headers"],
    )

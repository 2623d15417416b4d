"""Endpoints of this room as ASGI apps: the contract's manners around a typed function.

Like `skerry.wire.http.endpoints.Served`, but what is read and written follows `spelling`, and nobody asks for
the Content-Type. Where there are no functions every endpoint says so.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from skerry.model import errors
from skerry.wire.http import answers, bodies, decoding, streaming
from skerry.wire.http.endpoints import Call, Endpoint, Reply, Stream
from skerry.wire.serverledge import refusals, spelling
from skerry.wire.serverledge.context import Serverledge

_PRETTY = "pretty"


class Spoken:
    """An endpoint with what it works with; of a bare one `prefix` is what stands before the name."""

    def __init__(self, declared: Endpoint, room: Serverledge | None, *, prefix: str = "") -> None:
        self._declared = declared
        self._handle = declared.handle
        self._room = room
        self._skipped = len(prefix)
        self._path = declared.inputs.get("path")
        self._query = declared.inputs.get("query")
        body = declared.inputs.get("body")
        self._reader = None if body is None else spelling.Reader(body)

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
            inputs["body"] = self._reader.read(await bodies.read_whole(receive))
        reply = await self._handle(self._room, _call(scope), **inputs)
        if isinstance(reply, Stream):
            async with reply.held:
                await streaming.write(reply.parts, scope, receive, send, manner=reply.manner)
            return
        is_pretty = bool(query) and wants_pretty(query)
        if not isinstance(reply, Reply):
            reply = Reply(reply)
        status = reply.status or 200
        body = spelling.written(reply.value, is_pretty=is_pretty)
        headers = answers.headers_of(body, refusals.JSON, reply.headers)
        state = scope["state"]
        # Twice as quick as the two messages of ASGI, of which the server looks at every header again.
        if not state["exchange"].answer(state["connection"], status, headers, body):
            await answers.send_whole(send, status, body, refusals.JSON, reply.headers)


def wants_pretty(query_string: bytes) -> bool:
    """True if the query has `pretty`, whatever its value."""
    pairs = parse_qsl(query_string.decode("latin-1"), keep_blank_values=True)
    return any(name == _PRETTY for name, _ in pairs)


def _call(scope: Scope) -> Call:
    state = scope["state"]
    return Call(
        caller=state["caller"],
        request_id=state["request_id"],
        address=scope["client"][0] if scope["client"] else "",
        headers=dict(scope["headers"]),
    )

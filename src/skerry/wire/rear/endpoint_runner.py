"""Endpoints of this room as ASGI apps: who is buying, tolerant reading, and the answer as it is.

Like `skerry.transport.http.endpoints.EndpointRunner`, but a caller may also be a buyer that signs each
request with its key, bodies are read as `lenient_json` does, and names that are not known are told of in a
header. Without a market on this server every endpoint says so.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from skerry.kit import json_codec
from skerry.market.terms import request_proofs
from skerry.model import errors
from skerry.model.callers import AuthMethod, Caller
from skerry.model.ids import CloudId
from skerry.transport.http import decoding, request_bodies, responses, streaming, websocket
from skerry.transport.http.asgi import Receive, Scope, Send
from skerry.transport.http.connection import HttpConnection
from skerry.transport.http.endpoints import Endpoint, RawBody, RequestContext, Response, WebSocketResponse
from skerry.wire.rear import buyer_identity, lenient_json
from skerry.wire.rear.buyer_identity import BuyerIdentity
from skerry.wire.rear.context import RearContext

T = TypeVar("T")

_AUTHORIZATION: Final = b"authorization"


@dataclass(frozen=True, slots=True)
class EncodedJson:
    """JSON that is written already."""

    data: bytes


@dataclass(frozen=True, slots=True)
class BuyerCall(RequestContext):
    """A call whose sender is known as a buyer."""

    buyer: BuyerIdentity
    connection: HttpConnection
    receive: Receive
    subprotocol: str = ""  # that was agreed on, on a WebSocket


def buyer_of(call: RequestContext) -> BuyerIdentity:
    """Who is buying."""
    return _dealing(call).buyer


def subprotocol_of(call: RequestContext) -> str:
    """What is spoken on a WebSocket; empty if the client named nothing."""
    return _dealing(call).subprotocol


async def run_until_disconnect(call: RequestContext, work: Coroutine[Any, Any, T]) -> T:
    """What comes of `work`, which may take long; it is given up if whoever called leaves."""
    dealing = _dealing(call)
    return await streaming.run_until_disconnect(work, dealing.connection, dealing.receive)


def _dealing(call: RequestContext) -> BuyerCall:
    assert isinstance(call, BuyerCall), "every call of this room is one"
    return call


class RearEndpointRunner:
    """An endpoint with what it works with; if it is for `owners`, it is about deals of the sender's own."""

    def __init__(self, declared: Endpoint, rear: RearContext | None, *, owners: bool) -> None:
        self._declared = declared
        self._rear = rear
        self._owners = owners
        self._path = declared.inputs.get("path")
        self._query = declared.inputs.get("query")
        body = declared.inputs.get("body")
        self._reader = None if body is None else lenient_json.LenientReader(body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared, rear = self._declared, self._rear
        if rear is None:
            raise errors.Unavailable(
                "this server has no market; ask another one, or read what its `/about` says is lacking"
            )
        is_socket = declared.reply is WebSocketResponse
        handshake = websocket.accept(scope, declared.subprotocols) if is_socket else []
        data = b"" if is_socket else await request_bodies.read_whole(receive)
        subprotocol = dict(handshake).get(websocket.CHOSEN, b"").decode()
        call = await self._dealing(rear, scope, receive, data, subprotocol)
        inputs: dict[str, Any] = {}
        if self._path is not None:
            inputs["path"] = decoding.path(scope["path_params"], self._path)
        if self._query is not None:
            inputs["query"] = self._read_query(scope["query_string"], self._query)
        if self._reader is not None:
            inputs["body"], unknown = self._reader.read(data)
            scope["state"]["exchange"].more = lenient_json.unknown_fields_header(unknown)
        reply = await declared.handle(rear, call, **inputs)
        if isinstance(reply, WebSocketResponse):
            async with reply.held:
                await websocket.serve(
                    reply.converse,
                    handshake,
                    scope,
                    send,
                    max_message=declared.max_message_bytes,
                    speaks_text=True,
                )
            return
        said = reply if isinstance(reply, Response) else Response(reply)
        status, value, more = said.status or declared.status, said.value, said.headers
        if value is None:
            await responses.send_nothing(send, status)
        elif isinstance(value, RawBody):
            await responses.send_whole(send, status, value.content, declared.media, more)
        else:
            body = value.data if isinstance(value, EncodedJson) else json_codec.encode(value)
            await responses.send_at_once(scope, send, status, body, more=more)

    def _read_query(self, query_string: bytes, as_type: type[T]) -> T | errors.Invalid:
        try:
            return decoding.query(query_string, as_type)
        except errors.Invalid as error:
            if not self._declared.judges_query:
                raise
            return error

    async def _dealing(
        self, rear: RearContext, scope: Scope, receive: Receive, data: bytes, subprotocol: str
    ) -> BuyerCall:
        state = scope["state"]
        headers = state["headers"]
        caller: Caller = state["caller"]
        shown = headers.get(_AUTHORIZATION, b"").decode("latin-1")
        if request_proofs.is_proof(shown):
            target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
            cloud = await rear.proofs.check(
                shown,
                method=scope["method"],
                target=target.decode("latin-1"),
                body=data,
                is_read=self._declared.is_read,
                admit=partial(self._admit, rear),
            )
            buyer, caller = buyer_identity.identity_of_key(cloud), Caller(origin=AuthMethod.KEY, name=cloud)
            state["exchange"].caller = caller  # whose request it was is in the log, too
        else:
            buyer = buyer_identity.identity_of_caller(caller)
        return BuyerCall(
            caller=caller,
            request_id=state["request_id"],
            address=scope["client"][0] if scope["client"] else "",
            headers=headers,
            buyer=buyer,
            connection=state["connection"],
            receive=receive,
            subprotocol=subprotocol,
        )

    def _admit(self, rear: RearContext, key: CloudId) -> None:
        rear.ledger.check_access(key, is_read=self._declared.is_read, is_own=self._owners)

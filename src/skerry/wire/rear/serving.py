"""Endpoints of this room as ASGI apps: who is buying, tolerant reading, and the answer as it is.

Like `skerry.wire.http.endpoints.Served`, but a caller may also be a buyer that signs each request with its
key, bodies are read as `reading` does, and names that are not known are told of in a header. Without a market
on this server every endpoint says so.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from starlette.types import Receive, Scope, Send

from skerry.kit import jsonio
from skerry.market import proofs
from skerry.model import errors
from skerry.model.identity import Caller, Origin
from skerry.wire.http import answers, bodies, decoding, streaming, websocket
from skerry.wire.http.endpoints import Call, Duplex, Endpoint, Raw, Reply
from skerry.wire.http.protocol import Connection
from skerry.wire.rear import buyers, reading
from skerry.wire.rear.buyers import Buyer
from skerry.wire.rear.context import Rear

T = TypeVar("T")

_AUTHORIZATION: Final = b"authorization"


@dataclass(frozen=True, slots=True)
class Listed:
    """JSON that is written already."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Dealing(Call):
    """A call whose sender is known as a buyer."""

    buyer: Buyer
    connection: Connection
    receive: Receive
    subprotocol: str = ""  # that was agreed on, on a WebSocket


def buyer_of(call: Call) -> Buyer:
    """Who is buying."""
    return _dealing(call).buyer


def subprotocol_of(call: Call) -> str:
    """What is spoken on a WebSocket; empty if the client named nothing."""
    return _dealing(call).subprotocol


async def unless_gone(call: Call, work: Coroutine[Any, Any, T]) -> T:
    """What comes of `work`, which may take long; it is given up if whoever called leaves."""
    dealing = _dealing(call)
    return await streaming.unless_gone(work, dealing.connection, dealing.receive)


def _dealing(call: Call) -> Dealing:
    assert isinstance(call, Dealing), "every call of this room is one"
    return call


class Spoken:
    """An endpoint with what it works with."""

    def __init__(self, declared: Endpoint, rear: Rear | None) -> None:
        self._declared = declared
        self._rear = rear
        self._path = declared.inputs.get("path")
        self._query = declared.inputs.get("query")
        body = declared.inputs.get("body")
        self._reader = None if body is None else reading.Reader(body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared, rear = self._declared, self._rear
        if rear is None:
            raise errors.Unavailable(
                "this server has no market; ask another one, or read what its `/about` says is lacking"
            )
        is_socket = declared.reply is Duplex
        handshake = websocket.accept(scope, declared.subprotocols) if is_socket else []
        data = b"" if is_socket else await bodies.read_whole(receive)
        subprotocol = dict(handshake).get(websocket.CHOSEN, b"").decode()
        call = await self._dealing(rear, scope, receive, data, subprotocol)
        inputs: dict[str, Any] = {}
        if self._path is not None:
            inputs["path"] = decoding.path(scope["path_params"], self._path)
        if self._query is not None:
            inputs["query"] = decoding.query(scope["query_string"], self._query)
        if self._reader is not None:
            inputs["body"], unknown = self._reader.read(data)
            scope["state"]["exchange"].more = reading.reported(unknown)
        reply = await declared.handle(rear, call, **inputs)
        if isinstance(reply, Duplex):
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
        said = reply if isinstance(reply, Reply) else Reply(reply)
        status, value, more = said.status or declared.status, said.value, said.headers
        if value is None:
            await answers.send_nothing(send, status)
        elif isinstance(value, Raw):
            await answers.send_whole(send, status, value.content, declared.media, more)
        else:
            body = value.data if isinstance(value, Listed) else jsonio.encode(value)
            headers = answers.headers_of(body, answers.JSON, more)
            state = scope["state"]
            # As in `skerry.wire.serverledge`: one write instead of two messages, each looked at again.
            if not state["exchange"].answer(state["connection"], status, headers, body):
                await answers.send_whole(send, status, body, answers.JSON, more)

    async def _dealing(
        self, rear: Rear, scope: Scope, receive: Receive, data: bytes, subprotocol: str
    ) -> Dealing:
        state = scope["state"]
        headers = dict(scope["headers"])
        caller: Caller = state["caller"]
        shown = headers.get(_AUTHORIZATION, b"").decode("latin-1")
        if proofs.is_proof(shown):
            target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
            cloud = await rear.proofs.check(
                shown,
                method=scope["method"],
                target=target.decode("latin-1"),
                body=data,
                is_read=self._declared.is_read,
            )
            buyer, caller = buyers.of_key(cloud), Caller(origin=Origin.KEY, name=cloud)
            state["exchange"].caller = caller  # whose request it was is in the log, too
        else:
            buyer = buyers.of_caller(caller)
        return Dealing(
            caller=caller,
            request_id=state["request_id"],
            address=scope["client"][0] if scope["client"] else "",
            headers=headers,
            buyer=buyer,
            connection=state["connection"],
            receive=receive,
            subprotocol=subprotocol,
        )

"""How REAR requests are decoded and responses encoded: the buyer, lenient bodies, plain responses.

A caller may also be a buyer that signs each request with its key. `lenient_json` decodes bodies, and a header
of the response names unknown fields.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from skerry.market.terms import request_proofs
from skerry.model.callers import AuthMethod, Caller
from skerry.model.ids import CloudId
from skerry.transport.http import streaming
from skerry.transport.http.asgi import Receive, Scope
from skerry.transport.http.connection import HttpConnection
from skerry.transport.http.endpoints import Endpoint, RequestContext
from skerry.transport.http.runner import BodyReader, Dialect
from skerry.wire.rear import buyer_identity, errors, lenient_json
from skerry.wire.rear.buyer_identity import BuyerIdentity
from skerry.wire.rear.context import RearContext

T = TypeVar("T")

_AUTHORIZATION: Final = b"authorization"


class BuyerCall(RequestContext, frozen=True, kw_only=True):
    """A request with the identity of its buyer."""

    buyer: BuyerIdentity
    connection: HttpConnection
    receive: Receive


def buyer_of(call: RequestContext) -> BuyerIdentity:
    """The identity of the buyer."""
    return _buyer_call(call).buyer


async def run_until_disconnect(call: RequestContext, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which may take long; it is cancelled if the client disconnects."""
    known = _buyer_call(call)
    return await streaming.run_until_disconnect(work, known.connection, known.receive)


def _buyer_call(call: RequestContext) -> BuyerCall:
    assert isinstance(call, BuyerCall), "every request of this dialect is one"
    return call


def _body_reader(declared: Endpoint) -> BodyReader:
    reader = lenient_json.LenientReader(declared.inputs["body"])

    def read(data: bytes, scope: Scope) -> Any:
        body, unknown = reader.read(data)
        scope["state"]["exchange"].more = lenient_json.unknown_fields_header(unknown)
        return body

    return read


async def _identify(
    rear: RearContext, declared: Endpoint, call: RequestContext, scope: Scope, receive: Receive, data: bytes
) -> BuyerCall:
    state, caller = scope["state"], call.caller
    shown = call.headers.get(_AUTHORIZATION, b"").decode("latin-1")
    if request_proofs.is_proof(shown):
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        is_own = state["exchange"].target.row.owners
        cloud = await rear.proofs.check(
            shown,
            method=scope["method"],
            target=target.decode("latin-1"),
            body=data,
            is_read=declared.is_read,
            admit=partial(_admit, rear, declared.is_read, is_own),
        )
        buyer, caller = buyer_identity.identity_of_key(cloud), Caller(origin=AuthMethod.KEY, name=cloud)
        state["exchange"].caller = caller  # the log has the buyer, too
    else:
        buyer = buyer_identity.identity_of_caller(caller)
    return BuyerCall(
        caller=caller,
        request_id=call.request_id,
        address=call.address,
        headers=call.headers,
        subprotocol=call.subprotocol,
        buyer=buyer,
        connection=state["connection"],
        receive=receive,
    )


def _admit(rear: RearContext, is_read: bool, is_own: bool, key: CloudId) -> None:
    rear.ledger.check_access(key, is_read=is_read, is_own=is_own)


DIALECT: Final = Dialect(
    error_response=errors.error_response,
    body_reader=_body_reader,
    identify=_identify,
    redacts=False,  # these responses hold no environment of instances or functions
    at_once=True,
    unavailable="this server has no market; ask another one, or read what its `/about` says is lacking",
)
# Contract tunnels have a credential of their own, so they do not identify a buyer.
TUNNEL_DIALECT: Final = Dialect(error_response=errors.error_response)

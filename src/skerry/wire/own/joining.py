"""`/join`: a machine shows a join token and a signing request and becomes a node.

Anybody may ask, since the token is the proof; so failures are counted, and who fails often has to wait.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.model import errors
from skerry.wire.http.endpoints import Call, endpoint
from skerry.wire.own.context import Own


class JoinWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a machine sends to become a node."""

    token: Annotated[str, Meta(max_length=256, description="A token of role `node`, good for one machine")]
    csr: Annotated[
        str, Meta(max_length=16384, description="PEM: a signing request for a key that stays where it is")
    ]
    name: Annotated[str, Meta(max_length=63, description="The machine's name, for people")]

    def __repr__(self) -> str:
        return f"JoinWish(name={self.name!r})"


class JoinDone(msgspec.Struct, frozen=True):
    """What it gets: its id, its certificate and the CA's (PEM), and where to go on."""

    node: str
    certificate: str
    ca: str
    grpc: Annotated[str, Meta(description="HOST:PORT of the server's gRPC listener")]


@endpoint(
    "POST",
    "/join",
    summary="Become a node",
    raises=(
        errors.Invalid,
        errors.Unauthenticated,
        errors.Forbidden,
        errors.Overloaded,
        errors.Unavailable,
    ),
)
async def join(own: Own, call: Call, body: JoinWish) -> JoinDone:
    """A machine that lost the answer asks again with the same key and gets the same node."""
    own.failed_joins.check(call.address)
    try:
        joined = await own.plane.identity.join(body.token, body.csr.encode(), body.name)
    except (errors.Unauthenticated, errors.Forbidden):
        own.failed_joins.note(call.address)
        raise
    return JoinDone(
        node=joined.node,
        certificate=joined.certificate_pem.decode(),
        ca=joined.ca_pem.decode(),
        grpc=own.grpc_address(),
    )

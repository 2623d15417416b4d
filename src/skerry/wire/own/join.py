"""`/join`: a machine sends a join token and a signing request, and becomes a node.

No other credential is needed, so failures are counted, and an address that fails often has to wait.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.model import errors
from skerry.transport.access.peers import is_loopback
from skerry.transport.http.endpoints import RequestContext, endpoint
from skerry.wire.own.context import OwnContext


class JoinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of a machine to become a node."""

    token: Annotated[str, Meta(max_length=256, description="A token of role `node`, valid for one machine")]
    csr: Annotated[
        str,
        Meta(max_length=16384, description="PEM: a signing request; the private key stays on the machine"),
    ]
    name: Annotated[str, Meta(max_length=63, description="The machine's name, for people")]
    certificate: Annotated[
        str,
        Meta(
            max_length=16384,
            description="PEM: an earlier certificate of this cloud for the same key, expired or not; with "
            "it the machine becomes the same node again, unless it was revoked",
        ),
    ] = ""

    def __repr__(self) -> str:
        return f"JoinWish(name={self.name!r})"


class JoinResponse(msgspec.Struct, frozen=True):
    """Its id, its certificate and the CA's (PEM), and the address to connect to."""

    node: str
    certificate: str
    ca: str
    grpc: Annotated[str, Meta(description="HOST:PORT of the server's gRPC listener")]


class JoinAddress(msgspec.Struct, frozen=True):
    """The address that nodes connect to."""

    grpc: Annotated[str, Meta(description="HOST:PORT of the server's gRPC listener")]


@endpoint("GET", "/join", summary="Address for nodes")
async def find_address(own: OwnContext, call: RequestContext) -> JoinAddress:
    """For a node whose server has moved. An invalid certificate is refused; the node then has to join
    again."""
    return JoinAddress(own.grpc_address())


@endpoint(
    "POST",
    "/join",
    summary="Join as a node",
    raises=(
        errors.Invalid,
        errors.Unauthenticated,
        errors.Forbidden,
        errors.FailedPrecondition,
        errors.Unprocessable,
        errors.Overloaded,
        errors.Unavailable,
    ),
)
async def join(own: OwnContext, call: RequestContext, body: JoinRequest) -> JoinResponse:
    """A machine that lost the response repeats the request with the same key, and becomes the same node."""
    own.failed_joins.check(call.address)
    check_dialable(own.grpc_address(), call.address)
    try:
        joined = await own.plane.identity.join(
            body.token, body.csr.encode(), body.name, previous_pem=body.certificate.encode()
        )
    except (errors.Unauthenticated, errors.Forbidden):
        own.failed_joins.note(call.address)
        raise
    return JoinResponse(
        node=joined.node,
        certificate=joined.certificate_pem.decode(),
        ca=joined.ca_pem.decode(),
        grpc=own.grpc_address(),
    )


def check_dialable(grpc: str, caller: str) -> None:
    """Refuse a machine that could join but never connect, before its token is used."""
    host = grpc.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if is_loopback(host) and caller and not is_loopback(caller):
        raise errors.FailedPrecondition(
            f"nodes connect to this server by gRPC, which listens on {grpc} and so for its own machine "
            f"alone; "
            "start the server without --grpc (grpc.listen), or with an address that other machines reach"
        )

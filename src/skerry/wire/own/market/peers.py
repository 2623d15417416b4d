"""`/market/peers`: the clouds that this one may buy from, and the result of the last check of each."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.kit.field_copy import copy_fields
from skerry.market.buyer.peers import MAX_CA, MAX_URL
from skerry.market.buyer.quotes import MarketPeer, PeerStatus
from skerry.model import errors, ids
from skerry.transport.http.endpoints import RequestContext, endpoint
from skerry.wire.own.market.context import MarketContext


class PeerPath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=ids.MAX_ID)]


class SetPeerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cloud to buy from."""

    url: Annotated[str, Meta(min_length=1, max_length=MAX_URL, description="The address of its server")]
    cloud: Annotated[
        str, Meta(min_length=1, max_length=ids.MAX_ID, description="Its id, which it must sign as: `key....`")
    ]
    ca: Annotated[str, Meta(max_length=MAX_CA, description="PEM; else the system's CAs are trusted")] = ""
    mesh: Annotated[
        bool,
        Meta(description="Nodes that are borrowed from it take part in this cloud's mesh, if it allows that"),
    ] = False


class PeerInfo(msgspec.Struct, frozen=True):
    """A cloud to buy from, and the result of its last check."""

    name: str
    url: str
    cloud: str
    ca: str
    mesh: bool
    is_reached: Annotated[bool | None, Meta(description="Null before the first check")]
    message: str
    latency_s: float | None
    at: float | None

    @classmethod
    def of(cls, state: PeerStatus) -> PeerInfo:
        return copy_fields(cls, state, **msgspec.structs.asdict(state.peer))


class PeerList(msgspec.Struct, frozen=True):
    peers: list[PeerInfo]


@endpoint("GET", "/market/peers", summary="List peers", raises=(errors.Unavailable,))
async def list_peers(market: MarketContext, call: RequestContext) -> PeerList:
    """All, with the result of the last check of each."""
    return PeerList([PeerInfo.of(state) for state in market.buyer.peers()])


@endpoint(
    "GET",
    "/market/peers/{name}",
    summary="Show a peer",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def show(market: MarketContext, call: RequestContext, path: PeerPath) -> PeerInfo:
    """By the name that it was given here."""
    return PeerInfo.of(require_peer(market, path.name))


@endpoint(
    "PUT",
    "/market/peers/{name}",
    summary="Add or change a peer",
    raises=(errors.Invalid, errors.FailedPrecondition, errors.Conflict, errors.TooLarge, errors.Unavailable),
)
async def set_peer(
    market: MarketContext, call: RequestContext, path: PeerPath, body: SetPeerRequest
) -> PeerInfo:
    """Refused with the reason if another cloud answers at the address, or if it is not trusted; a cloud that
    does not answer is added all the same.
    """
    peer = MarketPeer(name=path.name, url=body.url, cloud=body.cloud, ca=body.ca, mesh=body.mesh)
    await market.buyer.set_peer(peer, actor=call.caller.name)
    return PeerInfo.of(require_peer(market, path.name))


@endpoint(
    "DELETE",
    "/market/peers/{name}",
    summary="Remove a peer",
    status=204,
    raises=(errors.Invalid, errors.NotFound, errors.Conflict, errors.Unavailable),
)
async def remove(market: MarketContext, call: RequestContext, path: PeerPath) -> None:
    """Refused while there are contracts with it; release them first."""
    await market.buyer.remove_peer(path.name, actor=call.caller.name)


def require_peer(market: MarketContext, name: str) -> PeerStatus:
    """Raises `NotFound`."""
    for state in market.buyer.peers():
        if state.peer.name == name:
            return state
    raise errors.NotFound("there is no such peer; list peers to see those there are")

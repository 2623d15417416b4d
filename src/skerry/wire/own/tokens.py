"""`/token/`: create, list and revoke access tokens; `/token-key/`: the key of offline ones. The secret is in
the response to its creation only."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.kit.field_copy import copy_fields
from skerry.kit.tasks import map_in_turns
from skerry.model import errors
from skerry.model.callers import Role
from skerry.model.invitations import MAX_URLS, Invitation
from skerry.transport.http.endpoints import RequestContext, endpoint
from skerry.wire.namespaces import BoundNamespaces, RequestedNamespaces
from skerry.wire.own.context import OwnContext


class CreateTokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token to create."""

    role: Role
    ttl_s: Annotated[float | None, Meta(description="Seconds; without it unlimited, for a node one hour")] = (
        None
    )
    note: Annotated[str, Meta(max_length=200, description="Note")] = ""
    namespaces: RequestedNamespaces = ()
    offline: Annotated[
        bool,
        Meta(
            description="A signed token, which nodes verify without a server: for an invoker or a viewer, "
            "and with an expiry"
        ),
    ] = False


class TokenPath(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=64)]


class TokenInfo(msgspec.Struct, frozen=True):
    """A token without its secret. Times are seconds since the epoch."""

    id: str
    role: Role
    created_at: float
    expires_at: float | None
    note: str
    used_at: Annotated[float | None, Meta(description="When a node joined with it")]
    namespaces: BoundNamespaces
    kind: Annotated[str, Meta(description="`secret`, `join` or `offline`")]
    revoked_at: Annotated[
        float | None,
        Meta(description="Of an offline token, which is listed until it has expired; others are removed"),
    ]


class CreatedToken(msgspec.Struct, frozen=True):
    """A new token. `token` is what the bearer sends; neither it nor the invitation can be read again."""

    id: str
    role: Role
    token: str
    created_at: float
    expires_at: float | None
    note: str
    namespaces: BoundNamespaces
    invitation: Annotated[
        str,
        Meta(description="For role `node`: all that `skerry node --join` needs, in one text; else empty"),
    ] = ""


class RotateTokenKeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to rotate."""

    revoke: Annotated[bool, Meta(description="Refuse all offline tokens of before")] = False


class TokenKeyInfo(msgspec.Struct, frozen=True):
    """The key that signs from now on."""

    id: str


class TokenList(msgspec.Struct, frozen=True):
    tokens: tuple[TokenInfo, ...]


@endpoint("GET", "/token/", summary="List tokens")
async def list_tokens(own: OwnContext, call: RequestContext) -> TokenList:
    """All tokens, without their secrets."""
    return TokenList(await map_in_turns(partial(copy_fields, TokenInfo), own.plane.identity.tokens()))


@endpoint(
    "POST",
    "/token/",
    summary="Create a token",
    status=201,
    raises=(errors.Invalid, errors.TooLarge, errors.Unavailable),
)
async def create(own: OwnContext, call: RequestContext, body: CreateTokenRequest) -> CreatedToken:
    """The response has the token's text, which the server does not store."""
    token, text = await own.plane.identity.create_token(
        body.role,
        ttl_s=body.ttl_s,
        note=body.note,
        actor=call.caller.name,
        namespaces=body.namespaces,
        offline=body.offline,
    )
    invitation = invitation_of(own, text) if token.role is Role.NODE else ""
    return copy_fields(CreatedToken, token, token=text, invitation=invitation)


@endpoint(
    "DELETE",
    "/token/{id}",
    summary="Revoke a token",
    status=204,
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def revoke(own: OwnContext, call: RequestContext, path: TokenPath) -> None:
    """It is refused from the next request on, and an offline one by nodes as soon as they hear of it."""
    await own.plane.identity.revoke_token(path.id, actor=call.caller.name)


@endpoint(
    "POST",
    "/token-key/rotate",
    summary="Replace the key of offline tokens",
    raises=(errors.Invalid, errors.TooLarge, errors.Unavailable),
)
async def rotate_key(own: OwnContext, call: RequestContext, body: RotateTokenKeyRequest) -> TokenKeyInfo:
    """New offline tokens are signed with the new key. Others stay valid until they expire, unless `revoke`
    is given: then all offline tokens of before are refused."""
    return TokenKeyInfo(await own.plane.identity.rotate_token_key(actor=call.caller.name, revoke=body.revoke))


def invitation_of(own: OwnContext, text: str) -> str:
    """What `skerry node --join` needs, for the text of a node's token; empty without an address."""
    urls = tuple(dict.fromkeys(own.urls()))[:MAX_URLS]
    return Invitation(urls, own.plane.authority.newest.fingerprint, text).format() if urls else ""

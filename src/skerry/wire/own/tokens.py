"""`/token/`: making, listing and revoking access tokens. The secret is in one answer, once."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.model import errors
from skerry.model.identity import Role, Token
from skerry.wire.http.endpoints import Call, endpoint
from skerry.wire.own.context import Own


class TokenWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token to be made."""

    role: Role
    ttl_s: Annotated[float | None, Meta(description="Seconds; without it for ever, for a node an hour")] = (
        None
    )
    note: Annotated[str, Meta(max_length=200, description="A word on what it is for")] = ""


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


class TokenMade(msgspec.Struct, frozen=True):
    """A new token. `token` is what the bearer sends; it cannot be had again."""

    id: str
    role: Role
    token: str
    created_at: float
    expires_at: float | None
    note: str


class TokenList(msgspec.Struct, frozen=True):
    tokens: list[TokenInfo]


@endpoint("GET", "/token/", summary="List tokens")
async def list_tokens(own: Own, call: Call) -> TokenList:
    """All tokens, without their secrets."""
    return TokenList([_info(token) for token in own.plane.identity.tokens()])


@endpoint(
    "POST",
    "/token/",
    summary="Make a token",
    status=201,
    raises=(errors.Invalid, errors.TooLarge, errors.Unavailable),
)
async def create(own: Own, call: Call, body: TokenWish) -> TokenMade:
    """The answer holds the token's text, which the server does not keep and cannot show again."""
    token, text = await own.plane.identity.create_token(
        body.role, ttl_s=body.ttl_s, note=body.note, actor=call.caller.name
    )
    return TokenMade(
        id=token.id,
        role=token.role,
        token=text,
        created_at=token.created_at,
        expires_at=token.expires_at,
        note=token.note,
    )


@endpoint(
    "DELETE",
    "/token/{id}",
    summary="Revoke a token",
    status=204,
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def revoke(own: Own, call: Call, path: TokenPath) -> None:
    """From the next request on nobody can use it."""
    await own.plane.identity.revoke_token(path.id, actor=call.caller.name)


def _info(token: Token) -> TokenInfo:
    return TokenInfo(
        id=token.id,
        role=token.role,
        created_at=token.created_at,
        expires_at=token.expires_at,
        note=token.note,
        used_at=token.used_at,
    )

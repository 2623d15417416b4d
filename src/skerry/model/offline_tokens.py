"""Offline tokens: signed texts that a node verifies without a server.

    skerry-offline-v1.KEY.CLAIMS.SIGNATURE

KEY is the id of the key that signed it, CLAIMS is JSON in base64url, and SIGNATURE is Ed25519 over everything
before it. The version fixes the algorithm; nothing in the text chooses one. Whether a token is revoked is not
in it: a server has a record of each (`skerry.control.identity.tokens`), a node a list
(`skerry.node.agent.offline_tokens`). Keys and revocations reach nodes as network objects.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Collection
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from skerry.kit import json_codec, signing
from skerry.kit.clock import iso
from skerry.model import errors
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.ids import Namespace
from skerry.model.namespace_scope import MAX_NAMESPACES
from skerry.model.network_objects import NetworkObject

PREFIX = "skerry-offline-v1"
MAX_TEXT = 4096  # characters: enough for the most namespaces with the longest names
# What a node does for these needs no server, and neither of them changes anything.
ROLES = frozenset({Role.INVOKER, Role.VIEWER})
LEEWAY_S = 60.0  # by which two clocks may differ
BACKDATE_S = 300.0  # a new token is valid already on a machine whose clock is behind

_SHAPE = re.compile(rf"({PREFIX}\.([0-9a-f]{{16}})\.([A-Za-z0-9_-]{{2,{MAX_TEXT}}}))\.([A-Za-z0-9_-]{{86}})")
_RENEW = "an admin makes a new one with `skerry token create --offline`"


class OfflineClaims(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a token says of its bearer. A claim that is not known may be a restriction, so it is an error."""

    id: Annotated[str, Meta(pattern="^[0-9a-z]{26}$")]
    iss: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]  # the cloud: the first half of its CA's fingerprint
    role: Role
    nbf: Annotated[int, Meta(ge=0)]  # not before, seconds since the epoch
    exp: Annotated[int, Meta(ge=0)]  # expiry, likewise
    ns: Annotated[tuple[Namespace, ...], Meta(min_length=1, max_length=MAX_NAMESPACES)] | None = (
        None  # namespaces that it is bound to
    )


class TokenKey(NetworkObject, frozen=True, omit_defaults=True):
    """A public key that offline tokens are verified with."""

    kind: ClassVar[str] = "token-key"
    id: str
    public: str  # in hex

    @property
    def key(self) -> str:
        return self.id


class RevokedToken(NetworkObject, frozen=True, omit_defaults=True):
    """An offline token, or a key of such tokens, that is refused until it would have expired."""

    kind: ClassVar[str] = "revoked-token"
    id: str
    expires_at: float

    @property
    def key(self) -> str:
        return self.id

    @property
    def is_key(self) -> bool:
        return len(self.id) == signing.KEY_ID_DIGITS


def is_offline_token(text: str) -> bool:
    """Whether a text is meant to be one; it may still be invalid."""
    return text.startswith(f"{PREFIX}.")


def sign(claims: OfflineClaims, key: signing.SigningKey) -> str:
    """The text of a token."""
    signed = f"{PREFIX}.{key.id}.{_encode(json_codec.encode(claims))}"
    text = f"{signed}.{_encode(key.sign(signed.encode()))}"
    if len(text) > MAX_TEXT:
        raise errors.TooLarge("this token is bound to too many namespaces; make several tokens")
    return text


def read_signed(text: str, public_of: Callable[[str], bytes | None]) -> tuple[OfflineClaims, str]:
    """The claims of a token and the id of its key, if the signature is right: by the public key that
    `public_of` gives for the id, None if it is unknown. Raises `Unauthenticated`. Looks at no dates."""
    match = _SHAPE.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        raise errors.Unauthenticated(
            "this is not a whole offline token; copy all of it and nothing around it"
        )
    signed, key, body, shown = match.groups()
    public = public_of(key)
    if public is None:
        raise errors.Unauthenticated(
            f"the key of this token is not known here: it was revoked or replaced, is of another cloud, or "
            f"is newer than what this machine knows; {_RENEW}"
        )
    signature = _decode(shown)
    if signature is None or not signing.is_signed(public, signature, signed.encode()):
        raise errors.Unauthenticated(f"the signature of this token is wrong: it was changed or cut; {_RENEW}")
    try:
        return json_codec.decode(_decode(body) or b"", OfflineClaims), key
    except json_codec.InvalidJson:
        raise errors.Unauthenticated(
            f"this token has claims that this version does not know; {_RENEW}"
        ) from None


def check_claims(claims: OfflineClaims, issuers: Collection[str], now: float) -> None:
    """Raises `Unauthenticated` unless the claims are of the cloud, which has had these names, and valid
    now."""
    if claims.iss not in issuers:
        raise errors.Unauthenticated(f"this token is of another cloud; {_RENEW}")
    if claims.role not in ROLES:
        raise errors.Unauthenticated(f"the role {claims.role} is not accepted in an offline token; {_RENEW}")
    if now >= claims.exp + LEEWAY_S:
        raise errors.Unauthenticated(f"this token expired at {iso(claims.exp)}; {_RENEW}")
    if now < claims.nbf - LEEWAY_S:
        raise errors.Unauthenticated(
            f"this token is not valid before {iso(claims.nbf)}, and here it is {iso(now)}: compare the clocks"
        )


def caller_of(claims: OfflineClaims) -> Caller:
    """The caller that valid claims make."""
    return Caller(
        origin=AuthMethod.TOKEN,
        name=f"token:{claims.id}",
        role=claims.role,
        token=claims.id,
        namespaces=claims.ns,
    )


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes | None:
    """None unless `text` is the one spelling of its bytes: the last character may have bits to spare."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    return data if _encode(data) == text else None

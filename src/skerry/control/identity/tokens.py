"""Access tokens: create, list, verify, revoke, and remove long after they expired.

Part of `skerry.control.identity.authenticator`, which uses up a node's token when it joins. Records hold only
the digest of a secret; the secret itself is returned once, by `create`, and is never logged. An offline token
has no secret but a signature (`skerry.model.offline_tokens`), and is valid here only while it has a record.
That of a revoked one stays until the token has expired: nodes refuse what is on the list
(`skerry.control.identity.offline_feed`).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import lru_cache

import msgspec
import structlog

from skerry.control.events.log import EventLog
from skerry.control.identity.token_keys import TokenKeys
from skerry.kit import ulid
from skerry.kit.clock import Clock, iso
from skerry.model import errors, offline_tokens
from skerry.model.callers import AuthMethod, Caller, Role, Token, check_may_bind
from skerry.model.identity_settings import IdentitySettings
from skerry.model.namespace_scope import check_bound_namespaces
from skerry.model.offline_tokens import OfflineClaims, RevokedToken
from skerry.model.token_text import MalformedToken, TokenText, new_secret
from skerry.store.protocol import Store
from skerry.store.tables.table import Record, Table, Write, json_of

log = structlog.get_logger(__name__)

PREFIX = "identity/tokens/"
MAX_TOKENS = 10_000
MAX_NOTE = 200
_MIN_TTL_S = 1.0
_MAX_TTL_S = 10 * 365 * 86400.0
_MAX_JOIN_TTL_S = 30 * 86400.0
# An expired token stays for a while, so that the error for it is "expired" and not "unknown".
_REMEMBERED_S = 86400.0
_OFFLINE_S = 30 * 86400.0  # the life of an offline token that is given none


class TokenRegistry:
    """All tokens of this cloud, mirrored in memory."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        settings: IdentitySettings,
        keys: TokenKeys,
        *,
        join_pin: Callable[[], str],
        issuer: Callable[[], str],
        issuers: Callable[[], Collection[str]],
    ) -> None:
        """`join_pin` is that of the CA by which newcomers know this cloud, `issuer` its name in new offline
        tokens, and `issuers` are all that it has had in them."""
        self._events = events
        self._clock = clock
        self._settings = settings
        self._join_pin = join_pin
        self._issuer = issuer
        self._issuers = issuers
        self._keys = keys
        # Verifying a signature costs more than all the rest; whether its key still counts is asked each time.
        self._read_signed = lru_cache(maxsize=1024)(
            lambda text: offline_tokens.read_signed(text, keys.public_of)
        )
        self.table = Table(store, PREFIX, json_of(Token))

    def caller(self, text: str) -> Caller:
        if offline_tokens.is_offline_token(text):
            return self._offline_caller(text)
        shown = parse(text)
        token = verify_token(self.table.value(shown.id), shown, self._clock.now())
        if token.role is Role.NODE:
            if token.used_at is not None:
                raise used_up(token)
            raise errors.Unauthenticated(
                "this token is for joining only: give its invitation to `skerry node --join INVITATION`; "
                "for other calls make one with another role"
            )
        return Caller(
            origin=AuthMethod.TOKEN,
            name=f"token:{token.id}",
            role=token.role,
            token=token.id,
            namespaces=token.namespaces,
        )

    def check(self, id: str) -> None:
        """Raise `Unauthenticated` if the token of this id was revoked, or has expired."""
        token = self.table.value(id)
        if token is None or token.revoked_at is not None or _is_past(token, self._clock.now()):
            raise errors.Unauthenticated("the token behind it was revoked, or has expired")
        if token.is_offline and self._keys.public_of(token.key) is None:
            raise errors.Unauthenticated("the key of the token behind it was revoked")

    def _offline_caller(self, text: str) -> Caller:
        claims, key = self._read_signed(text)
        offline_tokens.check_claims(claims, self._issuers(), self._clock.now())
        token = self.table.value(claims.id)
        if token is None or token.key != key or token.revoked_at is not None:
            raise errors.Unauthenticated(
                "this token was revoked; an admin makes a new one with `skerry token create --offline`"
            )
        if self._keys.public_of(key) is None:
            raise errors.Unauthenticated(
                "the key of this token was revoked; an admin makes a new one with "
                "`skerry token create --offline`"
            )
        return offline_tokens.caller_of(claims)

    async def create(
        self,
        role: Role,
        *,
        ttl_s: float | None,
        note: str,
        actor: str,
        namespaces: Sequence[str] = (),
        offline: bool = False,
    ) -> tuple[Token, str]:
        """A new token and its text, which cannot be had again. Join tokens and offline ones always expire."""
        bound = check_bound_namespaces(namespaces)
        if bound is not None:
            check_may_bind(role)
        if offline:
            ttl_s = self._check_offline(role, ttl_s)
        if role is Role.NODE and ttl_s is None:
            ttl_s = self._settings.join_token_s
        _check_terms(role, ttl_s, note)
        if len(self.table) >= MAX_TOKENS:
            raise errors.TooLarge(f"there are {MAX_TOKENS} tokens already; revoke those that nobody uses")
        now = self._clock.now()
        token = Token(
            id=ulid.new_id(now),
            role=role,
            digest="",
            created_at=now,
            expires_at=None if ttl_s is None else now + ttl_s,
            note=note,
            namespaces=bound,
        )
        token, text = await self._sign(token) if offline else self._with_secret(token)
        event = self._events.put(
            "token.created",
            f"token/{token.id}",
            actor=actor,
            role=role,
            note=note,
            **({"offline": "true"} if offline else {}),
            **({} if bound is None else {"bound_to": " ".join(bound)}),
        )
        await self.table.commit([self.table.put(token.id, token), event], [self.table.expect(token.id, None)])
        log.info("token.created", token=token.id, role=role, offline=offline, actor=actor)
        return token, text

    def _with_secret(self, token: Token) -> tuple[Token, str]:
        text = TokenText(token.id, new_secret(), self._join_pin() if token.role is Role.NODE else "")
        return msgspec.structs.replace(token, digest=text.digest), text.format()

    async def _sign(self, token: Token) -> tuple[Token, str]:
        assert token.expires_at is not None, "an offline token always expires"
        expires_at = int(token.expires_at)
        key = await self._keys.current()
        claims = OfflineClaims(
            id=token.id,
            iss=self._issuer(),
            role=token.role,
            nbf=max(0, int(token.created_at - offline_tokens.BACKDATE_S)),
            exp=expires_at,
            ns=token.namespaces,
        )
        signed = msgspec.structs.replace(token, key=key.id, expires_at=float(expires_at))
        return signed, offline_tokens.sign(claims, key)

    def _check_offline(self, role: Role, ttl_s: float | None) -> float:
        """The life of an offline token."""
        if role not in offline_tokens.ROLES:
            roles = " or ".join(sorted(offline_tokens.ROLES))
            raise errors.Invalid(
                f"an offline token is for the role {roles}: nodes take nothing else without a server, and a "
                "stolen one works until they hear of its revocation",
                field="role",
            )
        longest = float(self._settings.offline_token_max_s)
        if ttl_s is None:
            return min(_OFFLINE_S, longest)
        if ttl_s > longest:
            raise errors.Invalid(
                f"an offline token lives at most {longest / 86400:g} days (identity.offline_token_max_s)",
                field="ttl_s",
            )
        return ttl_s

    def all(self) -> list[Token]:
        return self.table.values()

    async def revoke(self, token_id: str, *, actor: str) -> None:
        """Refuse it from now on. An offline one stays listed until it has expired."""
        event = self._events.put("token.revoked", f"token/{token_id}", actor=actor)
        unknown = errors.NotFound(
            f"there is no token {token_id[:40]!r}; `skerry token list` shows those there are"
        )
        now = self._clock.now()

        def decide(record: Record[Token]) -> Write[Token] | None:
            token = record.value
            if not token.is_offline or _is_past(token, now):
                return Write(token, [event], is_delete=True)
            if token.revoked_at is not None:
                return None
            return Write(msgspec.structs.replace(token, revoked_at=now), [event])

        await self.table.update(token_id, decide, missing=unknown)
        log.info("token.revoked", token=token_id, actor=actor)

    async def import_revoked(self, revoked: Sequence[RevokedToken]) -> None:
        """Refuse these offline tokens too: the store may have been restored from before they were
        revoked."""
        now = self._clock.now()
        for one in revoked:
            stored = await self.table.read(one.id)
            if stored is not None and stored.value.revoked_at is not None:
                continue
            token = stored.value if stored is not None else _unknown(one, now)
            with suppress(errors.Conflict):  # another server has just done so
                await self.table.commit(
                    [self.table.put(one.id, msgspec.structs.replace(token, revoked_at=now))],
                    [self.table.expect(one.id, stored)],
                )
                log.info("token.revoked", token=one.id, actor="skerry", reason="restored store")

    def signed_by(self) -> set[str]:
        """Ids of keys that tokens on record were signed with."""
        return {token.key for token in self.table.values() if token.is_offline}

    def overdue(self) -> list[str]:
        """Keys of tokens that expired long ago."""
        return [
            self.table.key(token.id)
            for token in self.table.values()
            if _is_past(token, self._clock.now() - _REMEMBERED_S)
        ]


def _is_past(token: Token, now: float) -> bool:
    return token.expires_at is not None and token.expires_at <= now


def _unknown(revoked: RevokedToken, now: float) -> Token:
    """The record of a token that only a list of revocations knows."""
    return Token(
        id=revoked.id,
        role=Role.VIEWER,
        digest="",
        created_at=now,
        expires_at=revoked.expires_at,
        note="revoked before the store was restored",
        key="unknown",
    )


def parse(text: str) -> TokenText:
    try:
        return TokenText.parse(text)
    except MalformedToken as error:
        raise errors.Unauthenticated(str(error)) from None


def verify_token(token: Token | None, shown: TokenText, now: float) -> Token:
    """The token of the text `shown`, if it is valid; whether it is used up is not checked."""
    # A wrong secret gets the same error as an unknown id, so that ids cannot be probed.
    if token is None or token.is_offline or not hmac.compare_digest(token.digest, shown.digest):
        raise errors.Unauthenticated(
            "this token is not known here: it was revoked, or never made by this server; "
            "an admin makes a new one with `skerry token create`"
        )
    if token.expires_at is not None and now >= token.expires_at:
        raise errors.Unauthenticated(
            f"this token expired at {iso(token.expires_at)}; "
            "an admin makes a new one with `skerry token create`"
        )
    return token


def used_up(token: Token) -> errors.Unauthenticated:
    return errors.Unauthenticated(
        f"this join token was used at {iso(token.used_at or 0)} and is good for one machine only; "
        "an admin makes a new one with `skerry token create --role node`"
    )


def _check_terms(role: Role, ttl_s: float | None, note: str) -> None:
    longest = _MAX_JOIN_TTL_S if role is Role.NODE else _MAX_TTL_S
    if ttl_s is not None and not _MIN_TTL_S <= ttl_s <= longest:
        raise errors.Invalid(
            f"the life of a token of role {role} is {_MIN_TTL_S:.0f} s to {longest / 86400:.0f} days",
            field="ttl_s",
        )
    if len(note) > MAX_NOTE or not note.isprintable():
        raise errors.Invalid(f"a note is one line of at most {MAX_NOTE} characters", field="note")

"""Access tokens: create, list, verify, revoke, and remove long after they expired.

Part of `skerry.control.identity.authenticator`, which uses up a node's token when it joins. Records hold only
the digest of a secret; the secret itself is returned once, by `create`, and is never logged.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import structlog

from skerry.control.events.log import EventLog
from skerry.kit import ulid
from skerry.kit.clock import Clock, iso
from skerry.model import errors
from skerry.model.callers import AuthMethod, Caller, Role, Token, check_may_bind
from skerry.model.namespace_scope import check_bound_namespaces
from skerry.model.settings import IdentitySettings
from skerry.model.token_text import MalformedToken, TokenText, new_secret, pin_of
from skerry.store.protocol import Store
from skerry.store.tables.table import Table, Write, json_of

log = structlog.get_logger(__name__)

PREFIX = "identity/tokens/"
MAX_TOKENS = 10_000
MAX_NOTE = 200
_MIN_TTL_S = 1.0
_MAX_TTL_S = 10 * 365 * 86400.0
_MAX_JOIN_TTL_S = 30 * 86400.0
# An expired token stays for a while, so that the error for it is "expired" and not "unknown".
_REMEMBERED_S = 86400.0


class TokenRegistry:
    """All tokens of this cloud, mirrored in memory."""

    def __init__(
        self, store: Store, events: EventLog, clock: Clock, settings: IdentitySettings, fingerprint: str
    ) -> None:
        self._events = events
        self._clock = clock
        self._settings = settings
        self._pin = pin_of(fingerprint)
        self.table = Table(store, PREFIX, json_of(Token))

    def caller(self, text: str) -> Caller:
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

    async def create(
        self, role: Role, *, ttl_s: float | None, note: str, actor: str, namespaces: Sequence[str] = ()
    ) -> tuple[Token, str]:
        """A new token and its text, which cannot be had again. Join tokens always expire."""
        bound = check_bound_namespaces(namespaces)
        if bound is not None:
            check_may_bind(role)
        if role is Role.NODE and ttl_s is None:
            ttl_s = self._settings.join_token_s
        _check_terms(role, ttl_s, note)
        if len(self.table) >= MAX_TOKENS:
            raise errors.TooLarge(f"there are {MAX_TOKENS} tokens already; revoke those that nobody uses")
        now = self._clock.now()
        text = TokenText(ulid.new_id(now), new_secret(), self._pin if role is Role.NODE else "")
        token = Token(
            id=text.id,
            role=role,
            digest=text.digest,
            created_at=now,
            expires_at=None if ttl_s is None else now + ttl_s,
            note=note,
            namespaces=bound,
        )
        event = self._events.put(
            "token.created",
            f"token/{token.id}",
            actor=actor,
            role=role,
            note=note,
            **({} if bound is None else {"bound_to": " ".join(bound)}),
        )
        await self.table.commit([self.table.put(token.id, token), event], [self.table.expect(token.id, None)])
        log.info("token.created", token=token.id, role=role, actor=actor)
        return token, text.format()

    def all(self) -> list[Token]:
        return self.table.values()

    async def revoke(self, token_id: str, *, actor: str) -> None:
        event = self._events.put("token.revoked", f"token/{token_id}", actor=actor)
        unknown = errors.NotFound(
            f"there is no token {token_id[:40]!r}; `skerry token list` shows those there are"
        )
        await self.table.update(
            token_id, lambda token: Write(token.value, [event], is_delete=True), missing=unknown
        )
        log.info("token.revoked", token=token_id, actor=actor)

    def overdue(self) -> list[str]:
        """Keys of tokens that expired long ago."""
        return [
            self.table.key(token.id)
            for token in self.table.values()
            if token.expires_at is not None and token.expires_at + _REMEMBERED_S <= self._clock.now()
        ]


def parse(text: str) -> TokenText:
    try:
        return TokenText.parse(text)
    except MalformedToken as error:
        raise errors.Unauthenticated(str(error)) from None


def verify_token(token: Token | None, shown: TokenText, now: float) -> Token:
    """The token of the text `shown`, if it is valid; whether it is used up is not checked."""
    # A wrong secret gets the same error as an unknown id, so that ids cannot be probed.
    if token is None or not hmac.compare_digest(token.digest, shown.digest):
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

"""Sessions of the web console: one-time links, the sessions that they become, and their end.

Part of `skerry.control.identity.authenticator`. Records are in the store, so a session works on every server
of a cloud, a code is redeemed once whichever servers are asked, and signing out ends it everywhere; they hold
digests only. A session is never more than the credential behind it: when that token or certificate is revoked
or expires, the session is refused.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import structlog

from skerry.control.events.log import EventLog
from skerry.kit import ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.callers import Caller, Role
from skerry.model.console_sessions import ConsoleSession
from skerry.model.token_text import new_secret
from skerry.store.protocol import Put, Store
from skerry.store.tables.table import Record, Table, Write, json_of

log = structlog.get_logger(__name__)

PREFIX = "identity/console-sessions/"
CODE_S = 120.0  # a link that nobody opens
SESSION_S = 12 * 3600.0
MAX_SESSIONS = 10_000
_SEPARATOR = "."

_EXPIRED = "this console session has ended; run `skerry console` again and open the link that it prints"


class ConsoleLink(NamedTuple):
    """A new link: its one-time code, and when that expires."""

    code: str
    expires_at: float


class OpenedSession(NamedTuple):
    """A session that was just opened, and its secret, which only the browser keeps."""

    session: ConsoleSession
    text: str


class ConsoleSessions:
    """All links and sessions of this cloud, cached in memory."""

    def __init__(
        self, store: Store, events: EventLog, clock: Clock, check_credential: Callable[[Caller], None]
    ) -> None:
        """`check_credential` raises `Unauthenticated` if what a caller once showed is not valid any more."""
        self._events = events
        self._clock = clock
        self._check_credential = check_credential
        self.table = Table(store, PREFIX, json_of(ConsoleSession))

    async def create_link(self, caller: Caller) -> ConsoleLink:
        """A link that signs a browser in as `caller`, once."""
        if caller.role is None or caller.role is Role.NODE:
            raise errors.Forbidden("the console is for people: nodes and anonymous callers have no session")
        if len(self.table) >= MAX_SESSIONS:
            raise errors.TooLarge(
                f"there are {MAX_SESSIONS} console sessions already; wait until some have expired"
            )
        now = self._clock.now()
        secret = new_secret()
        session = ConsoleSession(
            id=ulid.new_id(now),
            digest=_digest(secret),
            origin=caller.origin,
            name=caller.name,
            role=caller.role,
            created_at=now,
            expires_at=now + CODE_S,
            token=caller.token,
            serial=caller.serial,
            namespaces=caller.namespaces,
        )
        table = self.table
        await table.commit([table.put(session.id, session)], [table.expect(session.id, None)])
        return ConsoleLink(f"{session.id}{_SEPARATOR}{secret}", session.expires_at)

    async def redeem(self, code: str, uid: int | None) -> OpenedSession:
        """Open the session of a link; `uid` is the local user that the request is of, if it is of this
        machine. `Unauthenticated` if the code is unknown, expired, or was used."""
        id, _, secret = code.partition(_SEPARATOR)
        now = self._clock.now()
        refusal = errors.Unauthenticated(
            "this link was used already, or has expired: it is good once, for two minutes. Run `skerry "
            "console` again"
        )
        text = new_secret()

        def decide(record: Record[ConsoleSession]) -> Write[ConsoleSession]:
            link = record.value
            if link.redeemed_at is not None or link.expires_at <= now or not _matches(link, secret):
                raise refusal
            self._check(link.caller)
            opened = msgspec.structs.replace(
                link, digest=_digest(text), redeemed_at=now, expires_at=now + SESSION_S, uid=uid
            )
            return Write(opened, [self._event("console.opened", opened)])

        session = await self.table.update(id, decide, missing=refusal)
        log.info("console.opened", session=session.id, caller=session.name)
        return OpenedSession(session, f"{session.id}{_SEPARATOR}{text}")

    def caller(self, text: str, uid: int | None) -> Caller:
        """The caller of a request with this secret, from this local user; `Unauthenticated` if it is not
        valid or is another user's."""
        id, _, secret = text.partition(_SEPARATOR)
        session = self.table.value(id)
        if (
            session is None
            or session.redeemed_at is None
            or session.expires_at <= self._clock.now()
            or session.uid != uid
            or not _matches(session, secret)
        ):
            raise errors.Unauthenticated(_EXPIRED)
        caller = session.caller
        self._check(caller)
        return caller

    async def close(self, text: str) -> None:
        """End the session of this secret everywhere."""
        id, _, secret = text.partition(_SEPARATOR)
        session = self.table.value(id)
        if session is None or not _matches(session, secret):
            return
        try:
            await self.table.update(
                id,
                lambda record: Write(record.value, [self._event("console.closed", session)], is_delete=True),
                missing=errors.NotFound(_EXPIRED),
            )
        except errors.NotFound:
            return  # another request was quicker
        log.info("console.closed", session=id, caller=session.name)

    def overdue(self) -> list[str]:
        """Keys of links and sessions that have expired."""
        now = self._clock.now()
        return [self.table.key(one.id) for one in self.table.values() if one.expires_at <= now]

    def _check(self, caller: Caller) -> None:
        try:
            self._check_credential(caller)
        except errors.Unauthenticated as error:
            raise errors.Unauthenticated(f"{_EXPIRED} ({error.message})") from None

    def _event(self, kind: str, session: ConsoleSession) -> Put:
        return self._events.put(kind, f"console/{session.id}", actor=session.name, role=session.role)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _matches(session: ConsoleSession, secret: str) -> bool:
    return hmac.compare_digest(session.digest, _digest(secret))

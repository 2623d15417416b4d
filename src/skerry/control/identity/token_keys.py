"""Keys that offline tokens are signed with: one signs, older ones verify until their last token has expired.

Part of `skerry.control.identity.authenticator`. A private key is stored nowhere: it is derived from that of
the CA and the salt in its record, so that every server of the cloud has it, and a copy of the store does not.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from contextlib import suppress

import msgspec
import structlog

from skerry.control.events.log import EventLog
from skerry.kit import pki, signing
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.offline_tokens import RevokedToken, TokenKey
from skerry.store.protocol import Store
from skerry.store.tables.table import Table, json_of

log = structlog.get_logger(__name__)

PREFIX = "identity/token-keys/"
_USE = b"skerry offline tokens "
_SALT_BYTES = 16
MAX_KEYS = 64  # a rotation each day, for tokens of the longest life


class TokenKeyRecord(msgspec.Struct, frozen=True):
    """A key without its private half."""

    id: str
    salt: str  # in hex; the private key is derived from it
    public: str  # in hex; empty for one that only revocations know
    created_at: float
    retired_at: float | None = None  # it signs no more
    revoked_at: float | None = None  # and its tokens are refused
    refused_until: float = 0.0  # of one that was revoked: its last token has expired then

    def object(self) -> TokenKey | RevokedToken:
        """It as nodes get it."""
        if self.revoked_at is None:
            return TokenKey(self.id, self.public)
        return RevokedToken(self.id, self.refused_until)


class TokenKeys:
    """All keys, mirrored in memory."""

    def __init__(
        self, store: Store, events: EventLog, clock: Clock, authority: pki.CertificateAuthority
    ) -> None:
        self._events = events
        self._clock = clock
        self._authority = authority
        self.table = Table(store, PREFIX, json_of(TokenKeyRecord))

    def public_of(self, key: str) -> bytes | None:
        """The public key of this id; None if it is unknown or revoked."""
        record = self.table.value(key)
        if record is None or record.revoked_at is not None:
            return None
        return bytes.fromhex(record.public)

    def all(self) -> list[TokenKeyRecord]:
        return self.table.values()

    async def current(self) -> signing.SigningKey:
        """The key that signs, made now if there is none."""
        await self.table.sync()
        usable = [record for record in self.table.values() if record.retired_at is None]
        if not usable:
            return await self.rotate(actor="skerry", revoke=False, refused_until=0.0)
        newest = max(usable, key=lambda record: (record.created_at, record.id))
        return self._derive(newest.salt)

    async def rotate(self, *, actor: str, revoke: bool, refused_until: float) -> signing.SigningKey:
        """A new key signs from now on. The others verify what they have signed; with `revoke` they do not,
        and are refused until `refused_until`."""
        while True:
            await self.table.sync()
            others = dict(self.table.items())
            if len(others) >= MAX_KEYS:
                raise errors.TooLarge(
                    f"there are {MAX_KEYS} keys of offline tokens already, which last as long as their "
                    "tokens; rotate later, or revoke them (--revoke)"
                )
            salt = secrets.token_hex(_SALT_BYTES)
            key, now = self._derive(salt), self._clock.now()
            retired = {
                id: _retire(record.value, now, refused_until if revoke else None)
                for id, record in others.items()
            }
            event = self._events.put(
                "token-key.rotated", f"token-key/{key.id}", actor=actor, revoked=str(revoke).lower()
            )
            made = TokenKeyRecord(key.id, salt, key.public.hex(), now)
            try:
                revision = await self.table.commit(
                    [
                        self.table.put(key.id, made),
                        *(self.table.put(id, record) for id, record in retired.items()),
                        event,
                    ],
                    [
                        self.table.expect(key.id, None),
                        *(self.table.expect(id, record) for id, record in others.items()),
                    ],
                )
            except errors.Conflict:
                continue
            await self.table.wait_for_change(revision)
            log.info("token_key.rotated", key=key.id, revoked=revoke, actor=actor)
            return key

    async def import_revoked(self, revoked: Sequence[RevokedToken]) -> None:
        """Refuse these keys too: the store may have been restored from before they were revoked."""
        now = self._clock.now()
        for one in revoked:
            stored = await self.table.read(one.id)
            if stored is not None and stored.value.revoked_at is not None:
                continue
            record = stored.value if stored is not None else TokenKeyRecord(one.id, "", "", now)
            with suppress(errors.Conflict):  # another server has just done so
                await self.table.commit(
                    [self.table.put(one.id, _retire(record, now, one.expires_at))],
                    [self.table.expect(one.id, stored)],
                )

    def overdue(self, in_use: Collection[str]) -> list[str]:
        """Keys of records to remove: those that sign no more and are not `in_use` by tokens."""
        now = self._clock.now()
        return [
            self.table.key(record.id)
            for record in self.table.values()
            if record.retired_at is not None and record.id not in in_use and record.refused_until <= now
        ]

    def _derive(self, salt: str) -> signing.SigningKey:
        return signing.SigningKey(self._authority.derive(_USE + bytes.fromhex(salt)))


def _retire(record: TokenKeyRecord, now: float, refused_until: float | None) -> TokenKeyRecord:
    """`record`, which signs no more; with `refused_until`, revoked."""
    retired = msgspec.structs.replace(
        record, retired_at=now if record.retired_at is None else record.retired_at
    )
    if refused_until is None or record.revoked_at is not None:
        return retired
    return msgspec.structs.replace(retired, revoked_at=now, refused_until=refused_until)

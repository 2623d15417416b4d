"""The records of all certificates that the CA gave out: who holds one, and whether it still counts.

Part of `skerry.control.identity`. A certificate counts only while its record exists and is not revoked, so
that one signed behind the back of this module opens nothing. Keys and signatures are `skerry.kit.pki`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec
import structlog

from skerry.control.events import EventLog
from skerry.kit import jsonio, pki
from skerry.kit.clock import Clock, iso
from skerry.model import errors
from skerry.model.identity import SERVER, Caller, Certificate, Origin, Role
from skerry.store.protocol import Entry, Expect, Put, Store
from skerry.store.view import View

log = structlog.get_logger(__name__)

PREFIX = "identity/certificates/"
# Holders renew long before the end; more live certificates than this on one node is a loop gone wrong. It
# also keeps a revocation, which takes all of a node's certificates, within one transaction of the store.
MAX_LIVE_PER_NODE = 32
# Servers that share a store may disagree a little about the time.
_REMEMBERED_S = 3600.0


class Certificates:
    """All certificates of this cloud that have not expired, mirrored in memory."""

    def __init__(self, store: Store, events: EventLog, clock: Clock, authority: pki.Authority) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self.view = View(store, PREFIX, decode)
        # Checking a signature costs ten times all the rest, and a client shows the same one on every request.
        self._read = lru_cache(maxsize=1024)(authority.read)

    def caller(self, der: bytes) -> Caller:
        try:
            shown = self._read(der)
        except pki.BadCertificate as error:
            raise errors.Unauthenticated(f"{error}; use one of this cloud's CA") from None
        now = self._clock.now()
        if now >= shown.not_after:
            raise _expired(shown.not_after)  # its record may be gone already; this is the better reason
        record = judge(self.view.get(PREFIX + shown.serial), now)
        if shown.role == SERVER:
            raise errors.Unauthenticated(
                "this is a server's certificate; it does not make its holder a client"
            )
        try:
            role = Role(shown.role)
        except ValueError:
            raise errors.Unauthenticated(
                f"this certificate is for the role {shown.role[:40]!r}, which is unknown here"
            ) from None
        if role is Role.NODE:
            return Caller(
                origin=Origin.CERTIFICATE,
                name=f"node:{shown.name}",
                role=role,
                node=shown.name,
                serial=record.serial,
            )
        return Caller(
            origin=Origin.CERTIFICATE, name=f"certificate:{shown.name}", role=role, serial=record.serial
        )

    def all(self) -> list[Certificate]:
        return [record for _, record in self.view.items()]

    def counts(self, serial: str) -> bool:
        """Whether there is a record of it and it is not revoked."""
        record = self.view.get(PREFIX + serial)
        return record is not None and record.revoked_at is None

    def live_of(self, node: str) -> list[Certificate]:
        return live_of(self.all(), node, self._clock.now())

    async def revoke(self, serial: str, *, actor: str) -> None:
        """Refuse it from now on. If it is a node's, all of that node's are: a thief may hold an earlier one.

        A renewal writes the record that it renews from. So one that comes between reading and writing here
        makes the transaction fail and is found when reading again; none can slip through.
        """
        while True:
            entries = {entry.key: entry for entry in (await self._store.range(PREFIX)).entries}
            chosen = entries.get(PREFIX + serial)
            if chosen is None:
                raise errors.NotFound(
                    f"there is no certificate {serial[:40]!r}; see `skerry certificate list`"
                )
            record = decode(chosen)
            if record.revoked_at is not None:
                return
            now = self._clock.now()
            targets = {record.serial: record}
            if record.node:
                targets |= {
                    one.serial: one for one in live_of(map(decode, entries.values()), record.node, now)
                }
            told = self._events.put(
                "certificate.revoked",
                f"certificate/{serial}",
                actor=actor,
                name=record.name,
                node=record.node,
            )
            try:
                revision = await self._store.commit(
                    [told, *(put(msgspec.structs.replace(one, revoked_at=now)) for one in targets.values())],
                    [Expect(PREFIX + one, entries[PREFIX + one].revision) for one in targets],
                )
            except errors.Conflict:
                continue
            await self.view.reached(revision)
            log.info("certificate.revoked", serials=sorted(targets), node=record.node, actor=actor)
            return

    def overdue(self) -> list[str]:
        """Keys of records whose certificate has expired."""
        return overdue(self.view.items(), self._clock.now())


def decode(entry: Entry) -> Certificate:
    return jsonio.decode(entry.value, Certificate)


def put(record: Certificate) -> Put:
    return Put(PREFIX + record.serial, jsonio.encode(record))


def record_of(issued: pki.Issued, *, name: str, node: str) -> Certificate:
    return Certificate(
        serial=issued.serial,
        role=issued.role,
        name=name,
        node=node,
        not_before=issued.not_before,
        not_after=issued.not_after,
        key=issued.key,
    )


def judge(record: Certificate | None, now: float) -> Certificate:
    """The record, if its certificate may still be used."""
    if record is None:
        raise errors.Unauthenticated(
            "this certificate is not on record here: the store is another than when it was issued; "
            "join again with a new token"
        )
    if record.revoked_at is not None:
        raise errors.Unauthenticated(
            f"this certificate was revoked at {iso(record.revoked_at)}; "
            "if that was a mistake, join again with a new token"
        )
    if now >= record.not_after:
        raise _expired(record.not_after)
    return record


def _expired(not_after: float) -> errors.Unauthenticated:
    return errors.Unauthenticated(
        f"this certificate expired at {iso(not_after)}; a node joins again with a new token"
    )


def live_of(records: Iterable[Certificate], node: str, now: float) -> list[Certificate]:
    return [one for one in records if one.node == node and one.not_after > now and one.revoked_at is None]


def overdue(items: Iterable[tuple[str, Certificate]], now: float) -> list[str]:
    return [key for key, record in items if record.not_after + _REMEMBERED_S <= now]

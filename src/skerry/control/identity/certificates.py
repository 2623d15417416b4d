"""The records of all certificates that the CA gave out: who holds one, and whether it still counts.

Part of `skerry.control.identity.authenticator`. A certificate counts while it is on record and not revoked.
That of a node counts without a record, too: the store may have been restored from a backup of before it was
issued. Such a one is put on record when it is shown. A node of which one was revoked is revoked for good,
with all that it holds, on record or not; so those records stay. Keys and signatures are `skerry.kit.pki`'s.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import msgspec
import structlog

from skerry.control.events.log import EventLog
from skerry.kit import json_codec, pki
from skerry.kit.clock import Clock, iso
from skerry.model import errors
from skerry.model.callers import SERVER, AuthMethod, Caller, Certificate, RevokedCertificate, Role, is_past
from skerry.store.protocol import ABSENT, Entry, Expect, Put, Store
from skerry.store.tables.cache import PrefixCache, RecordChange

log = structlog.get_logger(__name__)

PREFIX = "identity/certificates/"
# Holders renew long before the end; more live certificates than this on one node is a loop gone wrong. It
# also keeps a revocation, which takes all of a node's certificates, within one transaction of the store.
MAX_LIVE_PER_NODE = 32
_RETRY_S = 1.0


class CertificateRegistry:
    """All certificates of this cloud that have not expired, mirrored in memory."""

    def __init__(
        self, store: Store, events: EventLog, clock: Clock, authority: pki.CertificateAuthority
    ) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self.view = PrefixCache(store, PREFIX, decode, changed=self._moved)
        self._listeners: list[Callable[[Sequence[RevokedCertificate]], None]] = []
        # Checking a signature costs ten times all the rest, and a client shows the same one on every request.
        self._proof_key = authority.derive(b"skerry revocations")
        self._read = lru_cache(maxsize=1024)(authority.read)
        self._unrecorded: dict[str, pki.IssuedCertificate] = {}  # of nodes, shown and not on record yet
        self._revoked_nodes: dict[str, float] = {}  # and when
        self._is_shown = asyncio.Event()

    def caller(self, der: bytes) -> Caller:
        try:
            shown = self._read(der)
        except pki.InvalidCertificate as error:
            raise errors.Unauthenticated(f"{error}; use one of this cloud's CA") from None
        now = self._clock.now()
        if now >= shown.not_after:
            raise _expired(shown.not_after)  # its record may be gone already; this is the better reason
        record = self.view.get(PREFIX + shown.serial)
        if record is None and shown.role == Role.NODE:
            record = record_of(shown, name=shown.name, node=shown.name)
            self._unrecorded.setdefault(shown.serial, shown)
            self._is_shown.set()
        record = verify_certificate(record and self._with_node(record), now)
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
                origin=AuthMethod.CERTIFICATE,
                name=f"node:{shown.name}",
                role=role,
                node=shown.name,
                serial=record.serial,
            )
        return Caller(
            origin=AuthMethod.CERTIFICATE, name=f"certificate:{shown.name}", role=role, serial=record.serial
        )

    def all(self) -> list[Certificate]:
        now = self._clock.now()
        return [record for _, record in self.view.items() if not is_past(record.not_after, now)]

    def counts(self, serial: str) -> bool:
        """Whether there is a record of it and it is not revoked."""
        record = self.view.get(PREFIX + serial)
        return record is not None and record.revoked_at is None

    def is_revoked(self, serial: str) -> bool:
        record = self.view.get(PREFIX + serial)
        return record is not None and record.revoked_at is not None

    def is_revoked_node(self, node: str) -> bool:
        return node in self._revoked_nodes

    async def record(self, serial: str) -> bool:
        """Put a node's certificate on record that was shown without one; False if none of that serial was."""
        shown = self._unrecorded.get(serial)
        if shown is None:
            return False
        record = self._with_node(record_of(shown, name=shown.name, node=shown.name))
        told = self._events.put(
            "certificate.recorded", f"certificate/{serial}", actor=f"node/{record.node}", node=record.node
        )
        try:
            revision = await self._store.commit([put(record), told], [Expect(PREFIX + serial, ABSENT)])
        except errors.Conflict:
            pass  # another server was quicker, or it was revoked
        else:
            await self.view.reached(revision)
            log.info("certificate.recorded", serial=serial, node=record.node)
        self._unrecorded.pop(serial, None)
        return True

    async def record_shown(self) -> None:
        """Put certificates on record that are shown without, for ever."""
        while True:
            await self._is_shown.wait()
            self._is_shown.clear()
            try:
                for serial in list(self._unrecorded):
                    await self.record(serial)
            except errors.Unavailable as error:
                log.warning("certificate.not-recorded", error=error.message)
                await asyncio.sleep(_RETRY_S)
                self._is_shown.set()

    def revoked(self) -> list[RevokedCertificate]:
        """Those that were revoked and have not expired."""
        now = self._clock.now()
        return [
            self._told(one)
            for one in self.all()
            if one.revoked_at is not None and not is_past(one.not_after, now)
        ]

    def listen(self, revoked: Callable[[Sequence[RevokedCertificate]], None]) -> None:
        """Call `revoked` when certificates no longer count, in the step in which that is known here: with
        those that were revoked, and not with those whose records are gone."""
        self._listeners.append(revoked)

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

    def _with_node(self, record: Certificate) -> Certificate:
        """`record`, revoked if its node was."""
        revoked_at = self._revoked_nodes.get(record.node)
        if revoked_at is None or record.revoked_at is not None:
            return record
        return msgspec.structs.replace(record, revoked_at=revoked_at)

    def _moved(self, moved: Sequence[RecordChange[Certificate]]) -> None:
        for _, _, after in moved:
            if after is not None and after.node and after.revoked_at is not None:
                self._revoked_nodes[after.node] = after.revoked_at
        ended = [one.after for one in moved if one.after is None or one.after.revoked_at is not None]
        if ended:
            for listener in self._listeners:
                listener([self._told(record) for record in ended if record is not None])

    async def learn_revoked(self, revoked: Sequence[RevokedCertificate], *, actor: str) -> None:
        """Refuse those of `revoked` that one of our servers has revoked, and that the store forgot."""
        now = self._clock.now()
        for one in revoked:
            if self.is_revoked(one.serial) or is_past(one.not_after, now):
                continue
            if not hmac.compare_digest(one.proof, self._proof(one.serial, one.not_after)):
                log.warning("certificate.unproven", serial=one.serial, actor=actor)
                continue
            await self._learn(one, now, actor)

    async def _learn(self, one: RevokedCertificate, now: float, actor: str) -> None:
        while True:
            entry = await self._store.get(PREFIX + one.serial)
            unknown = Certificate(one.serial, "", "", "", not_before=0.0, not_after=one.not_after)
            record = unknown if entry is None else decode(entry)
            if record.revoked_at is not None:
                return
            reason = "revoked before the store was restored"
            told = self._events.put(
                "certificate.revoked",
                f"certificate/{one.serial}",
                actor=actor,
                reason=reason,
                name=record.name,
                node=record.node,
            )
            expect = Expect(PREFIX + one.serial, ABSENT if entry is None else entry.revision)
            try:
                revision = await self._store.commit(
                    [put(msgspec.structs.replace(record, revoked_at=now)), told], [expect]
                )
            except errors.Conflict:
                continue
            await self.view.reached(revision)
            log.info("certificate.revoked", serials=[one.serial], node=record.node, actor=actor)
            return

    def _told(self, record: Certificate) -> RevokedCertificate:
        proof = self._proof(record.serial, record.not_after)
        return RevokedCertificate(record.serial, record.not_after, proof)

    def _proof(self, serial: str, not_after: float) -> bytes:
        return hmac.digest(self._proof_key, f"{serial} {not_after!r}".encode(), "sha256")

    def overdue(self) -> list[str]:
        """Keys of records that are of no more use: the certificate has expired, and is none by which a node
        was revoked."""
        return overdue(self.view.items(), self._clock.now())


def decode(entry: Entry) -> Certificate:
    return json_codec.decode(entry.value, Certificate)


def put(record: Certificate) -> Put:
    return Put(PREFIX + record.serial, json_codec.encode(record))


def record_of(issued: pki.IssuedCertificate, *, name: str, node: str) -> Certificate:
    return Certificate(
        serial=issued.serial,
        role=issued.role,
        name=name,
        node=node,
        not_before=issued.not_before,
        not_after=issued.not_after,
        key=issued.key,
    )


def verify_certificate(record: Certificate | None, now: float) -> Certificate:
    """The record, if its certificate may still be used."""
    if record is None:
        raise errors.Unauthenticated(
            "this certificate is not on record here: the store is another than when it was issued; "
            "join again with a new token"
        )
    if record.revoked_at is not None:
        raise errors.Unauthenticated(
            f"this certificate was revoked at {iso(record.revoked_at)}; "
            f"if that was a mistake, {_remedy(record)}"
        )
    if now >= record.not_after:
        raise _expired(record.not_after)
    return record


def _remedy(record: Certificate) -> str:
    if record.role == Role.NODE:
        return "join again with a new token"
    return "start the server again, which makes a new one"


def _expired(not_after: float) -> errors.Unauthenticated:
    return errors.Unauthenticated(
        f"this certificate expired at {iso(not_after)}; a node joins again with a new token"
    )


def live_of(records: Iterable[Certificate], node: str, now: float) -> list[Certificate]:
    return [one for one in records if one.node == node and one.not_after > now and one.revoked_at is None]


def overdue(items: Iterable[tuple[str, Certificate]], now: float) -> list[str]:
    return [
        key
        for key, record in items
        if is_past(record.not_after, now) and not (record.node and record.revoked_at is not None)
    ]

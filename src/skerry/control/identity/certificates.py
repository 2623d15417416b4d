"""The records of all certificates that the CA issued: their holders, and whether they are valid.

Part of `skerry.control.identity.authenticator`. A certificate is valid while it has a record and is not
revoked. That of a node is valid without a record, too: the store may have been restored from a backup from
before it was issued. It is recorded when it is used. If one certificate of a node is revoked, the node is,
with all its certificates, recorded or not; so those records stay. `skerry.kit.pki` has keys and signatures.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec
import structlog

from skerry.control.events.log import EventLog
from skerry.kit import pki
from skerry.kit.callbacks import CallbackList
from skerry.kit.clock import Clock, iso
from skerry.model import errors
from skerry.model.callers import (
    EDGE,
    LOCAL_ADMIN,
    SERVER,
    AuthMethod,
    Caller,
    Certificate,
    RevokedCertificate,
    Role,
    is_past,
    read_certificate_role,
)
from skerry.model.ids import Namespace
from skerry.store.protocol import Store
from skerry.store.tables.table import Record, RecordChange, Table, json_of

log = structlog.get_logger(__name__)

PREFIX = "identity/certificates/"
# Holders renew long before the end; more live certificates than this on one node is a faulty loop. It
# also keeps a revocation, which takes all of a node's certificates, within one transaction of the store.
MAX_LIVE_PER_NODE = 32
MAX_EDGE_PER_NODE = 8  # of those, for the listener; addresses of a machine change now and then
_RETRY_S = 1.0


class CertificateRegistry:
    """All certificates of this cloud that have not expired, mirrored in memory."""

    def __init__(
        self, store: Store, events: EventLog, clock: Clock, authority: pki.CertificateAuthority
    ) -> None:
        self._events = events
        self._clock = clock
        self.table = Table(store, PREFIX, json_of(Certificate))
        self.table.subscribe(self._records_changed)
        self._listeners: CallbackList[[Sequence[RevokedCertificate]]] = CallbackList()
        # Verifying a signature costs ten times all the rest, and a client sends the same certificate with
        # every request.
        self._proof_key = authority.derive(b"skerry revocations")
        self._authority = authority
        self._read = lru_cache(maxsize=1024)(lambda der, authorities: authority.read(der))
        self._unrecorded: dict[str, pki.IssuedCertificate] = {}  # of nodes, used and not recorded yet
        self._revoked_nodes: dict[str, float] = {}  # and when
        self._revoked: dict[str, Certificate] = {}  # by serial; every session begins with them
        self._is_used = asyncio.Event()

    def caller(self, der: bytes) -> Caller:
        try:
            # By the CAs that count now: one of a former CA is not accepted from the cache either.
            shown = self._read(der, self._authority.bundle_pem)
        except pki.InvalidCertificate as error:
            raise errors.Unauthenticated(f"{error}; use one of this cloud's CA") from None
        now = self._clock.now()
        if now >= shown.not_after:
            raise _expired(
                shown.not_after
            )  # its record may have been removed already; this is the better reason
        record = self.table.value(shown.serial)
        if record is None and shown.role == Role.NODE:
            record = record_of(shown, name=shown.name, node=shown.name)
            self._unrecorded.setdefault(shown.serial, shown)
            self._is_used.set()
        record = verify_certificate(record and self._with_node(record), now)
        if shown.role in (SERVER, EDGE):
            what = (
                "a server's certificate" if shown.role == SERVER else "the certificate of a node's listener"
            )
            raise errors.Unauthenticated(f"this is {what}; it does not make its holder a client")
        try:
            role, namespaces = read_certificate_role(shown.role, shown.units)
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
            origin=AuthMethod.CERTIFICATE,
            name=f"certificate:{shown.name}",
            role=role,
            serial=record.serial,
            namespaces=namespaces,
        )

    def all(self) -> list[Certificate]:
        now = self._clock.now()
        return [record for record in self.table.values() if not is_past(record.not_after, now)]

    def check(self, serial: str) -> None:
        """Raise `Unauthenticated` if the certificate of this serial was revoked, or has expired."""
        verify_certificate(self.table.value(serial), self._clock.now())

    def counts(self, serial: str) -> bool:
        """Whether it has a record and is not revoked."""
        record = self.table.value(serial)
        return record is not None and record.revoked_at is None

    def is_revoked(self, serial: str) -> bool:
        record = self.table.value(serial)
        return record is not None and record.revoked_at is not None

    def is_revoked_node(self, node: str) -> bool:
        return node in self._revoked_nodes

    async def record(self, serial: str) -> bool:
        """Record a node's certificate that was used without a record; False if there is none of that
        serial."""
        shown = self._unrecorded.get(serial)
        if shown is None:
            return False
        record = self._with_node(record_of(shown, name=shown.name, node=shown.name))
        event = self._events.put(
            "certificate.recorded", f"certificate/{serial}", actor=f"node/{record.node}", node=record.node
        )
        try:
            await self.table.commit(
                [self.table.put(serial, record), event], [self.table.expect(serial, None)]
            )
        except errors.Conflict:
            pass  # another server was quicker, or it was revoked
        else:
            log.info("certificate.recorded", serial=serial, node=record.node)
        self._unrecorded.pop(serial, None)
        return True

    async def record_used(self) -> None:
        """Record certificates that are used without a record, for ever."""
        while True:
            await self._is_used.wait()
            self._is_used.clear()
            try:
                for serial in list(self._unrecorded):
                    await self.record(serial)
            except errors.Unavailable as error:
                log.warning("certificate.not_recorded", error=error.message)
                await asyncio.sleep(_RETRY_S)
                self._is_used.set()

    def revoked(self) -> list[RevokedCertificate]:
        """Those that were revoked and have not expired."""
        now = self._clock.now()
        return [self._revocation(one) for one in self._revoked.values() if not is_past(one.not_after, now)]

    def listen(self, revoked: Callable[[Sequence[RevokedCertificate]], None]) -> None:
        """Call `revoked` with certificates that were revoked, at once when that is known here; not with those
        whose records were removed."""
        self._listeners.add(revoked)

    def hosts(self, of: Callable[[Certificate], bool]) -> frozenset[str]:
        """Names and addresses in those that have neither expired nor been revoked, of those that `of`
        chooses."""
        now = self._clock.now()
        return frozenset(
            host
            for record in self.table.values()
            if record.not_after > now and record.revoked_at is None and of(record)
            for host in record.hosts
        )

    def live_of(self, node: str) -> dict[str, Record[Certificate]]:
        """Those of a node that have neither expired nor been revoked, by serial."""
        now = self._clock.now()
        return {
            serial: record
            for serial, record in self.table.items()
            if record.value.node == node and record.value.not_after > now and record.value.revoked_at is None
        }

    async def revoke(self, serial: str, *, actor: str) -> None:
        """Refuse it from now on. If it is a node's, all of that node's are: a thief may hold an earlier one.

        A renewal writes the record that it renews from. So one that comes between reading and writing here
        makes the transaction fail and is found when reading again; none can slip through.
        """
        while True:
            await self.table.sync()
            chosen = self.table.get(serial)
            if chosen is None:
                raise errors.NotFound(
                    f"there is no certificate {serial[:40]!r}; see `skerry certificate list`"
                )
            record = chosen.value
            if record.revoked_at is not None:
                return
            now = self._clock.now()
            targets = {serial: chosen} | (self.live_of(record.node) if record.node else {})
            event = self._events.put(
                "certificate.revoked",
                f"certificate/{serial}",
                actor=actor,
                name=record.name,
                node=record.node,
            )
            revoked = {id: msgspec.structs.replace(one.value, revoked_at=now) for id, one in targets.items()}
            try:
                await self.table.commit(
                    [event, *(self.table.put(id, one) for id, one in revoked.items())],
                    [self.table.expect(id, one) for id, one in targets.items()],
                )
            except errors.Conflict:
                continue
            log.info("certificate.revoked", serials=sorted(targets), node=record.node, actor=actor)
            return

    def _with_node(self, record: Certificate) -> Certificate:
        """`record`, revoked if its node was."""
        revoked_at = self._revoked_nodes.get(record.node)
        if revoked_at is None or record.revoked_at is not None:
            return record
        return msgspec.structs.replace(record, revoked_at=revoked_at)

    def _records_changed(self, changes: Sequence[RecordChange[Certificate]]) -> None:
        for id, _, after in changes:
            self._revoked.pop(id, None)
            if after is not None and after.value.revoked_at is not None:
                self._revoked[id] = after.value
        records = [change.after.value for change in changes if change.after is not None]
        revoked = [record for record in records if record.revoked_at is not None]
        for record in revoked:
            if record.node and record.revoked_at is not None:
                self._revoked_nodes[record.node] = record.revoked_at
        if revoked or len(records) < len(changes):
            self._listeners.notify([self._revocation(record) for record in revoked])

    async def import_revoked(self, revoked: Sequence[RevokedCertificate], *, actor: str) -> None:
        """Refuse those of `revoked` that one of our servers has revoked, and that the store does not know."""
        now = self._clock.now()
        for one in revoked:
            if self.is_revoked(one.serial) or is_past(one.not_after, now):
                continue
            if not hmac.compare_digest(one.proof, self._proof(one.serial, one.not_after)):
                log.warning("certificate.unproven", serial=one.serial, actor=actor)
                continue
            await self._import(one, now, actor)

    async def _import(self, one: RevokedCertificate, now: float, actor: str) -> None:
        while True:
            stored = await self.table.read(one.serial)
            unknown = Certificate(one.serial, "", "", "", not_before=0.0, not_after=one.not_after)
            record = unknown if stored is None else stored.value
            if record.revoked_at is not None:
                return
            reason = "revoked before the store was restored"
            event = self._events.put(
                "certificate.revoked",
                f"certificate/{one.serial}",
                actor=actor,
                reason=reason,
                name=record.name,
                node=record.node,
            )
            revoked = self.table.put(one.serial, msgspec.structs.replace(record, revoked_at=now))
            try:
                await self.table.commit([revoked, event], [self.table.expect(one.serial, stored)])
            except errors.Conflict:
                continue
            log.info("certificate.revoked", serials=[one.serial], node=record.node, actor=actor)
            return

    def _revocation(self, record: Certificate) -> RevokedCertificate:
        proof = self._proof(record.serial, record.not_after)
        return RevokedCertificate(record.serial, record.not_after, proof)

    def _proof(self, serial: str, not_after: float) -> bytes:
        return hmac.digest(self._proof_key, f"{serial} {not_after!r}".encode(), "sha256")

    def overdue(self) -> list[str]:
        """Keys of records to remove: the certificate has expired, and did not revoke a node."""
        now = self._clock.now()
        return [
            self.table.key(record.serial)
            for record in self.table.values()
            if is_past(record.not_after, now) and not (record.node and record.revoked_at is not None)
        ]


def record_of(
    issued: pki.IssuedCertificate, *, name: str, node: str, namespaces: tuple[Namespace, ...] | None = None
) -> Certificate:
    return Certificate(
        serial=issued.serial,
        role=issued.role,
        name=name,
        node=node,
        not_before=issued.not_before,
        not_after=issued.not_after,
        key=issued.key,
        namespaces=namespaces,
        issuer=issued.issuer,
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
    if record.name == LOCAL_ADMIN or record.role == SERVER:
        return "start the server again, which makes a new one"
    return "an admin creates another with `skerry certificate create`"


def _expired(not_after: float) -> errors.Unauthenticated:
    return errors.Unauthenticated(
        f"this certificate expired at {iso(not_after)}; a node joins again with a new token, a client gets "
        "another with `skerry certificate create`"
    )

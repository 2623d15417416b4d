"""Replacement of the CA, while everything runs.

The record in the store is the truth, and every server follows it. In the phase `trusting` a new CA exists,
and nodes learn to trust both; when all that are connected do, `issuing` begins, and certificates are renewed
by the new one. Servers show certificates of the old one until the end, so that whoever was away can come
back; with the old CA certified by the new one in their chain, newcomers know only the new. `finish` makes the
new one the CA and the old one unknown. The key of the new one is in the record, sealed with a secret of the
servers, until then.

`pending` is pure: who has no certificate of the new CA yet. Secrets that are derived from the CA's key stay
what they are (`skerry.kit.pki`).
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.leadership.election import LeaderElection
from skerry.kit import envelope, pki
from skerry.kit.callbacks import CallbackList
from skerry.kit.clock import Clock
from skerry.kit.envelope import SealedBytes
from skerry.model import errors
from skerry.model.authority_bundle import AuthorityBundle, TrustedAuthorities
from skerry.model.callers import LOCAL_ADMIN, SERVER, Certificate, Role, Token
from skerry.model.ids import NodeId
from skerry.model.network_objects import NetworkKey, NetworkObject, ObjectChange
from skerry.model.token_text import pin_of
from skerry.store import fencing
from skerry.store.protocol import ABSENT, Expect, Op, Put, Store
from skerry.store.tables.table import Table, json_of

log = structlog.get_logger(__name__)

AUTHORITY_KEY: Final = "identity/ca"
PREFIX: Final = "identity/ca-rotation/"
TRUST_PREFIX: Final = "identity/ca-trust/"
_ID: Final = "ca"
_USE: Final = b"skerry ca rotation"
_CHECK_S: Final = 1.0
_RETRY_S: Final = 1.0
_MAX_ISSUERS: Final = 16
_MAX_SHOWN: Final = 20


class RotationPhase(enum.StrEnum):
    """How far a replacement is."""

    TRUSTING = "trusting"
    ISSUING = "issuing"
    FINISHED = "finished"


class AuthorityRotationRecord(msgspec.Struct, frozen=True):
    """The last replacement. `old` and `new` are fingerprints."""

    phase: RotationPhase
    old: str
    new: str
    certificate: str  # of the new one, PEM
    started_at: float
    sealed: SealedBytes | None = None  # its key
    issuers: tuple[str, ...] = ()  # CAs of before, as offline tokens name them
    root: str = ""  # digest of the key that secrets are derived from

    @property
    def is_active(self) -> bool:
        return self.phase is not RotationPhase.FINISHED


class NodeTrust(msgspec.Struct, frozen=True):
    """The newest CA that a node has said to trust, and by which one its certificate is."""

    fingerprint: str
    issuer: str = ""  # the id of the key of that CA


class AuthorityStatus(msgspec.Struct, frozen=True):
    """The CA, its replacement, and who is still to renew."""

    fingerprint: str
    not_after: float
    phase: str = ""  # empty: it is not being replaced
    successor: str = ""
    pending: tuple[str, ...] = ()


def pending(
    certificates: Iterable[Certificate],
    tokens: Iterable[Token],
    issuer: str,
    started_at: float,
    now: float,
    *,
    has_stored: Callable[[str], bool],
) -> list[str]:
    """Who cannot go on without the old CA: nodes whose newest certificate, and clients whose certificate, is
    not of `issuer`, and invitations of before that may still be used. `has_stored` is True for a node that
    has its certificate of `issuer`: one that was issued may not have arrived."""
    newest: dict[tuple[str, str], Certificate] = {}
    found: list[str] = []
    for one in certificates:
        is_replaced_here = one.role == SERVER or one.name == LOCAL_ADMIN
        if one.revoked_at is not None or one.not_after <= now or is_replaced_here:
            continue
        if one.role == Role.NODE or one.node:
            key = (one.role, one.node or one.name)
            known = newest.get(key)
            # Times have no fractions: of two of one second, the new CA's is the later one.
            is_newer = known is None or (known.not_before, known.issuer == issuer) < (
                one.not_before,
                one.issuer == issuer,
            )
            if is_newer:
                newest[key] = one
        elif one.issuer != issuer:
            found.append(f"certificate {one.serial} of {one.name}: create another, and revoke this one")
    for (role, node), one in sorted(newest.items()):
        if one.issuer != issuer or (role == Role.NODE and not has_stored(node)):
            what = "node" if role == Role.NODE else "the listener of node"
            found.append(f"{what} {one.name or node} ({node}): it has not stored a new certificate")
    for token in tokens:
        is_open = token.role is Role.NODE and token.used_at is None and (token.expires_at or 0) > now
        if is_open and token.created_at < started_at:
            found.append(f"invitation {token.id}: it names the old CA; revoke it, and create another")
    return sorted(found)


async def check_root(store: Store, authority: pki.CertificateAuthority, folder: Path) -> None:
    """`FailedPrecondition` if the CA was replaced, and this server lacks the key that its secrets are derived
    from. Writes nothing. `folder` has the files of the CA."""
    stored = await Table(store, PREFIX, json_of(AuthorityRotationRecord)).read(_ID)
    if stored is not None and stored.value.root != authority.root_digest:
        raise errors.FailedPrecondition(
            f"the CA of this cloud was replaced, and this server lacks a file of that: copy {pki.ROOT_KEY} "
            f"from the folder pki of another server, or of a backup, to {folder}"
        )


class AuthorityRotation:
    """The replacement of this cloud's CA, at one server. A `NetworkSource`."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        authority: pki.CertificateAuthority,
        clock: Clock,
        folder: Path,
        *,
        node: NodeId,
    ) -> None:
        """`folder` has the files of the CA; `node` is this server's."""
        self._store = store
        self._events = events
        self._authority = authority
        self._clock = clock
        self._folder = folder
        self._node = node
        self._seal_key = authority.derive(_USE)
        self.table = Table(store, PREFIX, json_of(AuthorityRotationRecord))
        self.trust = Table(store, TRUST_PREFIX, json_of(NodeTrust))
        self._changed = asyncio.Event()
        self._is_applied = asyncio.Condition()
        self._applied: object = None  # what `_apply` was last done for
        self._listeners: CallbackList[[NodeId | None, NetworkKey, NetworkObject | None]] = CallbackList()
        # Of this server: has it replace certificates that are not of the CA that they are to be of.
        self.refresh: Callable[[], Awaitable[None]] | None = None
        self.holders: Callable[[], tuple[Iterable[Certificate], Iterable[Token]]] = lambda: ((), ())
        self.table.subscribe(lambda _: self._changed.set())
        self.trust.subscribe(lambda _: self._changed.set())

    # The state

    @property
    def record(self) -> AuthorityRotationRecord | None:
        return self.table.value(_ID)

    def uses_successor(self, node: str = "") -> bool:
        """Whether a certificate is to be of the new CA: for `node`, once it trusts that."""
        record, successor = self.record, self._authority.successor
        if record is None or successor is None or record.phase is not RotationPhase.ISSUING:
            return False
        return not node or self._trusts(node, successor.fingerprint)

    def issuers(self) -> frozenset[str]:
        """The names of this cloud that offline tokens may have."""
        record = self.record
        pins = [pin_of(pki.fingerprint(pem)) for pem in pki.split_bundle(self._authority.bundle_pem)]
        return frozenset([*pins, *(() if record is None else record.issuers)])

    def status(self) -> AuthorityStatus:
        record, successor = self.record, self._authority.successor
        status = AuthorityStatus(self._authority.fingerprint, self._authority.not_after)
        if record is None or not record.is_active or successor is None:
            return status
        waiting = pending(
            *self.holders(),
            successor.key_id,
            record.started_at,
            self._clock.now(),
            has_stored=lambda node: self._issuer_of(node) == successor.key_id,
        )
        return replace(status, phase=record.phase, successor=successor.fingerprint, pending=tuple(waiting))

    # What admins do

    async def begin(self, *, actor: str) -> None:
        """Make a new CA. `FailedPrecondition` if one is being replaced already."""
        made = await asyncio.to_thread(pki.CertificateAuthority.create, self._clock)
        stored = await self.table.read(_ID)
        if stored is not None and stored.value.is_active:
            raise errors.FailedPrecondition(
                "the CA is being replaced already: `skerry certificate rotate-ca --status` shows who is "
                "to renew, "
                "and --finish ends it"
            )
        record = AuthorityRotationRecord(
            RotationPhase.TRUSTING,
            self._authority.fingerprint,
            made.fingerprint,
            made.certificate_pem.decode(),
            self._clock.now(),
            envelope.seal(self._seal_key, made.key_pem, made.fingerprint.encode()),
            () if stored is None else stored.value.issuers,
            self._authority.root_digest,
        )
        event = self._events.put("ca.rotation_started", "ca", actor=actor, old=record.old, new=record.new)
        current = await self._store.get(AUTHORITY_KEY)
        expect = [
            self.table.expect(_ID, stored),
            Expect(AUTHORITY_KEY, ABSENT if current is None else current.revision),
        ]
        await self.table.commit([self.table.put(_ID, record), event], expect)
        log.warning("ca.rotation_started", old=record.old[:16], new=record.new[:16], actor=actor)
        await self._until(lambda: self._authority.newest.fingerprint == made.fingerprint)

    async def finish(self, *, force: bool, actor: str) -> None:
        """Make the new CA the only one. `FailedPrecondition`, with who has not renewed, unless `force`."""
        stored = await self.table.read(_ID)
        if stored is None or not stored.value.is_active or self._authority.successor is None:
            raise errors.FailedPrecondition(
                "the CA is not being replaced: `skerry certificate rotate-ca` begins"
            )
        record, status = stored.value, self.status()
        if record.phase is RotationPhase.TRUSTING and not force:
            raise errors.FailedPrecondition(
                "not all nodes that are connected trust the new CA yet; try again soon"
            )
        if status.pending and not force:
            shown = "; ".join(status.pending[:_MAX_SHOWN])
            raise errors.FailedPrecondition(
                f"{len(status.pending)} still need the old CA: {shown}. Wait until they have renewed, or "
                "lock them out with --force"
            )
        issuers = (*record.issuers, pin_of(record.old))[-_MAX_ISSUERS:]
        after = replace(record, phase=RotationPhase.FINISHED, sealed=None, issuers=issuers)
        current = await self._store.get(AUTHORITY_KEY)
        assert current is not None, "it was written at the first start"
        ops: list[Op] = [
            self.table.put(_ID, after),
            Put(AUTHORITY_KEY, record.new.encode()),
            self._events.put("ca.rotation_finished", "ca", actor=actor, old=record.old, new=record.new),
        ]
        await self.table.commit(
            ops, [self.table.expect(_ID, stored), Expect(AUTHORITY_KEY, current.revision)]
        )
        log.warning("ca.rotation_finished", new=record.new[:16], forced=force, actor=actor)
        await self._until(lambda: self._authority.fingerprint == record.new)

    # What every server does

    async def catch_up(self) -> None:
        """Before callers are authenticated: become the CA that the store has, if that was replaced while this
        server was away."""
        current = await self._store.get(AUTHORITY_KEY)
        successor = self._authority.successor
        if current is not None and successor is not None and current.value.decode() == successor.fingerprint:
            await asyncio.to_thread(self._authority.promote, self._folder)
            log.warning("ca.promoted", fingerprint=self._authority.fingerprint[:16])

    async def run(self) -> None:
        """Follow the record, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.table.run())
            group.create_task(self.trust.run())
            group.create_task(self._apply_for_ever())

    async def ready(self) -> None:
        await self.table.ready()
        await self.trust.ready()
        if self._applied != self._inputs(self.record):  # every session of a node waits for this
            await self._apply()

    async def lead(self, leader: LeaderElection, connected: Callable[[], Sequence[str]]) -> None:
        """For ever, while this server leads: let certificates be issued by the new CA once all nodes that are
        `connected` trust it."""

        async def advance(fence: Expect) -> None:
            while True:
                stored = self.table.get(_ID)
                if stored is not None and stored.value.phase is RotationPhase.TRUSTING:
                    new = stored.value.new
                    if all(self._trusts(node, new) for node in connected()):
                        after = replace(stored.value, phase=RotationPhase.ISSUING)
                        put = self.table.put(_ID, after)
                        try:
                            await fencing.commit(self._store, [put], [self.table.expect(_ID, stored)], fence)
                        except errors.Conflict:
                            continue
                await asyncio.sleep(_CHECK_S)

        await leader.run_while_leading("ca rotation", advance)

    async def trusted(self, node: NodeId, reports: Sequence[NetworkObject]) -> None:
        """A node says which CAs it trusts, and which one its certificate is of."""
        record = self.record
        for report in reports:
            if record is None or not isinstance(report, TrustedAuthorities):
                continue
            if record.is_active and record.new in report.fingerprints:
                await self._note_trust(node, record.new, report.issuer)

    # A `NetworkSource`

    def objects(self, node: NodeId) -> Iterable[NetworkObject]:
        """The same for every node."""
        return [self._bundle()]

    def listen(self, changed: ObjectChange) -> None:
        self._listeners.add(changed)

    def _bundle(self) -> AuthorityBundle:
        authority = self._authority
        issuing = authority.newest if self.uses_successor() else authority
        return AuthorityBundle(
            authority.bundle_pem.decode(), issuing.fingerprint, tuple(sorted(self.issuers()))
        )

    def _trusts(self, node: str, fingerprint: str) -> bool:
        known = self.trust.value(node)
        return known is not None and known.fingerprint == fingerprint

    def _issuer_of(self, node: str) -> str:
        known = self.trust.value(node)
        return "" if known is None else known.issuer

    async def _note_trust(self, node: str, fingerprint: str, issuer: str = "") -> None:
        """An empty `issuer` says nothing about its certificate."""
        if not self._trusts(node, fingerprint) or (issuer and self._issuer_of(node) != issuer):
            await self.trust.commit([self.trust.put(node, NodeTrust(fingerprint, issuer))], [])

    async def _apply_for_ever(self) -> None:
        await self.table.ready()
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._applied == self._inputs(self.record):
                continue  # it was about another node
            try:
                await self._apply()
            except (errors.SkerryError, OSError) as error:
                log.warning("ca.rotation_not_applied", error=str(error))
                await asyncio.sleep(_RETRY_S)
                self._changed.set()

    def _inputs(self, record: AuthorityRotationRecord | None) -> object:
        """What the CA and the certificates of this server depend on."""
        authority = self._authority
        return (
            record,
            self.trust.value(self._node),
            authority.fingerprint,
            authority.newest.fingerprint,
            self.refresh,
        )

    async def _apply(self) -> None:
        """Have the CA and the certificates of the record."""
        record, authority = self.record, self._authority
        if record is not None and record.is_active and authority.fingerprint == record.old:
            if authority.successor is None or authority.successor.fingerprint != record.new:
                await asyncio.to_thread(authority.adopt, self._folder, self._unseal(record))
            await self._note_trust(self._node, record.new)
        successor = authority.successor
        promoted = "" if record is None or record.is_active else record.new
        if successor is not None and successor.fingerprint == promoted:
            await asyncio.to_thread(authority.promote, self._folder)
            log.warning("ca.promoted", fingerprint=authority.fingerprint[:16])
        is_to_renew = self.uses_successor(self._node)
        if self.refresh is not None:
            await self.refresh()
        if is_to_renew and successor is not None and record is not None:
            await self._note_trust(self._node, record.new, successor.key_id)
        bundle = self._bundle()
        self._listeners.notify(None, bundle.network_key, bundle)
        self._applied = self._inputs(record)  # not of a newer one, which may be in the table by now
        async with self._is_applied:
            self._is_applied.notify_all()

    def _unseal(self, record: AuthorityRotationRecord) -> pki.CertificateAuthority:
        assert record.sealed is not None, "until it is finished"
        try:
            key = envelope.unseal(self._seal_key, record.sealed, record.new.encode())
            return pki.CertificateAuthority.parse(record.certificate.encode(), key, self._clock)
        except (envelope.NotOpened, pki.InvalidCertificate) as error:
            raise errors.FailedPrecondition(
                f"the new CA in the store cannot be used ({error}): copy {pki.ROOT_KEY} from the pki "
                f"folder of another "
                "server, if there is one"
            ) from None

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Wait until this server has applied what was written."""
        async with self._is_applied:
            await self._is_applied.wait_for(is_so)

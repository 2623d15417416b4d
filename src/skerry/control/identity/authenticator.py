"""Authentication: tokens, certificates, and how a machine becomes a node.

Finds the caller of a token or certificate from memory, and writes changes in transactions of the store, each
with its event. `skerry.transport.access.rules` decides what a caller may do. Private keys of others never
come here: a holder creates its own and sends a signing request.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec
import structlog

from skerry.control.events.log import EventLog
from skerry.control.identity import certificates, edge_names, tokens
from skerry.control.identity.authority_rotation import AUTHORITY_KEY, AuthorityRotation
from skerry.control.identity.certificates import CertificateRegistry
from skerry.control.identity.console_sessions import ConsoleSessions
from skerry.control.identity.offline_feed import OfflineTokenFeed
from skerry.control.identity.token_keys import TokenKeys
from skerry.control.identity.tokens import TokenRegistry
from skerry.kit import pki, ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.callers import (
    EDGE,
    NODE_TLS_NAME,
    SERVER,
    AuthMethod,
    Caller,
    Certificate,
    RevokedCertificate,
    Role,
    Token,
    certificate_role,
    check_may_bind,
)
from skerry.model.identity_settings import IdentitySettings
from skerry.model.namespace_scope import check_bound_namespaces
from skerry.model.offline_tokens import RevokedToken
from skerry.model.token_text import pin_of
from skerry.store.protocol import ABSENT, MAX_OPS, Delete, Expect, Op, Put, Store
from skerry.store.tables.table import Record

log = structlog.get_logger(__name__)

_SWEEP_EVERY_S = 600.0
_MIN_CLIENT_S = 60.0
_MAX_CLIENT_S = 366 * 86400.0
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class EnrollmentResult(msgspec.Struct, frozen=True):
    """The result of a join: the node id, and a certificate for it."""

    node: str
    certificate_pem: bytes
    ca_pem: bytes


class EdgeCertificate(msgspec.Struct, frozen=True):
    """The certificate of a node's HTTPS listener, and why it lacks hosts that were requested."""

    pem: bytes
    refused: tuple[str, ...] = ()


class _EnrolledNode(msgspec.Struct, frozen=True):
    """The node of a machine that joins: a new one, or the one that it was, with its record."""

    node: str
    certificate: Record[Certificate] | None = None  # that it had


class Authenticator:
    """Tokens and certificates of one cloud."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        authority: pki.CertificateAuthority,
        clock: Clock,
        settings: IdentitySettings,
    ) -> None:
        self._store = store
        self._events = events
        self._authority = authority
        self._clock = clock
        self._settings = settings
        self._token_keys = TokenKeys(store, events, clock, authority)
        self._rotation: AuthorityRotation | None = None
        self._tokens = TokenRegistry(
            store,
            events,
            clock,
            settings,
            self._token_keys,
            join_pin=lambda: pin_of(authority.newest.fingerprint),
            issuer=lambda: pin_of(authority.fingerprint),
            issuers=self._issuers,
        )
        self.offline_feed = OfflineTokenFeed(self._tokens, self._token_keys)  # for nodes
        self._edge_names = edge_names.parse_allowed(settings.edge_names)
        self._certificates = CertificateRegistry(store, events, clock, authority)
        self.console_sessions = ConsoleSessions(store, events, clock, self._check_credential)

    def use_rotation(self, rotation: AuthorityRotation) -> None:
        """Issue certificates as the replacement of the CA requires it. Before `run`."""
        self._rotation = rotation
        rotation.holders = lambda: (self._certificates.all(), self._tokens.all())

    def _issuers(self) -> Collection[str]:
        """The names of this cloud in offline tokens."""
        if self._rotation is None:
            return (pin_of(self._authority.fingerprint),)
        return self._rotation.issuers()

    def _issuer_for(self, node: str = "") -> pki.CertificateAuthority:
        """The CA that issues a certificate now: to a node, or to another holder."""
        is_new = self._rotation is not None and self._rotation.uses_successor(node)
        return self._authority.newest if is_new else self._authority

    async def run(self) -> None:
        """Follow the store and remove what has expired, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tokens.table.run())
            group.create_task(self._token_keys.table.run())
            group.create_task(self._certificates.table.run())
            group.create_task(self.console_sessions.table.run())
            group.create_task(self._certificates.record_used())
            group.create_task(self._sweep_for_ever())

    async def ready(self) -> None:
        """Wait until callers can be authenticated; `FailedPrecondition` if the store belongs to another CA
        than ours.

        Needs `run` beside it.
        """
        await self._claim()
        await self._tokens.table.ready()
        await self._token_keys.table.ready()
        await self._certificates.table.ready()
        await self.console_sessions.table.ready()

    def _check_credential(self, caller: Caller) -> None:
        """Raise `Unauthenticated` if what this caller showed once would be refused now."""
        if caller.origin is AuthMethod.TOKEN:
            self._tokens.check(caller.token)
        elif caller.origin is AuthMethod.CERTIFICATE:
            self._certificates.check(caller.serial)
        elif caller.origin is not AuthMethod.LOOPBACK or not self._settings.local_trust:
            raise errors.Unauthenticated("identity.local_trust is off, so local users need a token")

    def caller_from_token(self, text: str) -> Caller:
        """The caller of this token; `Unauthenticated` if it is not valid."""
        return self._tokens.caller(text)

    def caller_from_certificate(self, der: bytes) -> Caller:
        """The caller of this certificate; `Unauthenticated` if it is not valid."""
        return self._certificates.caller(der)

    async def create_token(
        self,
        role: Role,
        *,
        ttl_s: float | None,
        note: str,
        actor: str,
        namespaces: Sequence[str] = (),
        offline: bool = False,
    ) -> tuple[Token, str]:
        """A new token, and its text, which is shown once; bound to `namespaces` if there are any. With
        `offline` it is a signed one, which nodes verify, too."""
        return await self._tokens.create(
            role, ttl_s=ttl_s, note=note, actor=actor, namespaces=namespaces, offline=offline
        )

    def tokens(self) -> list[Token]:
        return self._tokens.all()

    async def revoke_token(self, token_id: str, *, actor: str) -> None:
        await self._tokens.revoke(token_id, actor=actor)

    async def rotate_token_key(self, *, actor: str, revoke: bool) -> str:
        """Sign offline tokens with a new key, whose id is returned. With `revoke`, all that were signed with
        others are refused."""
        ends = [token.expires_at for token in self._tokens.all() if token.is_offline and token.expires_at]
        key = await self._token_keys.rotate(actor=actor, revoke=revoke, refused_until=max(ends, default=0.0))
        return key.id

    async def import_revoked_tokens(self, revoked: Sequence[RevokedToken]) -> None:
        """Refuse these offline tokens and keys from now on: the store may have been restored from before
        they were revoked."""
        await self._token_keys.import_revoked([one for one in revoked if one.is_key])
        await self._tokens.import_revoked([one for one in revoked if not one.is_key])

    def certificates(self) -> list[Certificate]:
        return self._certificates.all()

    async def revoke_certificate(self, serial: str, *, actor: str) -> None:
        """Refuse the certificate from now on; if it is a node's, all of that node's, for renewing too."""
        await self._certificates.revoke(serial, actor=actor)

    def counts(self, serial: str) -> bool:
        """Whether the certificate of this serial is on record and not revoked."""
        return self._certificates.counts(serial)

    def is_revoked(self, serial: str) -> bool:
        """Whether the certificate of this serial was revoked, as far as the store knows."""
        return self._certificates.is_revoked(serial)

    def revoked(self) -> Sequence[RevokedCertificate]:
        """Certificates that were revoked and have not expired."""
        return self._certificates.revoked()

    async def import_revoked(self, revoked: Sequence[RevokedCertificate], *, actor: str) -> None:
        """Refuse these too from now on, if a server of this cloud has revoked them: the store may have been
        restored from before that. `actor` is the node that knew them."""
        await self._certificates.import_revoked(revoked, actor=actor)

    def listen_records(self, changed: Callable[[], None]) -> None:
        """Call `changed` when a token or a certificate is made, used or revoked."""
        self._tokens.table.subscribe(lambda _: changed())
        self._certificates.table.subscribe(lambda _: changed())

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` when certificates no longer count."""
        self._certificates.listen(lambda revoked: changed())

    def listen_revoked(self, callback: Callable[[Sequence[RevokedCertificate]], None]) -> None:
        """Call `callback` with certificates that were revoked."""
        self._certificates.listen(callback)

    async def join(
        self, token_text: str, csr_pem: bytes, name: str, *, previous_pem: bytes = b""
    ) -> EnrollmentResult:
        """Make the sender a node, once per token.

        A sender that lost the response repeats the request with the same key and gets a certificate for the
        same node. One that was a node before sends `previous_pem`, its certificate for the same key, and is
        that node again; `Unprocessable`, and the token not used, if that was revoked.
        """
        shown = tokens.parse(token_text)
        while True:
            record = await self._tokens.table.read(shown.id)
            token = tokens.verify_token(record and record.value, shown, self._clock.now())
            if token.role is not Role.NODE:
                raise errors.Forbidden(
                    f"this token has the role {token.role} and cannot join a machine; "
                    "an admin makes one that can with `skerry token create --role node`"
                )
            request, name = _checked(csr_pem), _checked_name(name)
            assert record is not None, "a token without a record is refused"
            try:
                if token.used_at is None:
                    returning = await self._previous_node(previous_pem, request)
                    return await self._join_first(record, request, name, returning, shown.pin)
                return await self._join_again(token, request, shown.pin)
            except errors.Conflict:
                continue  # another join or a revocation was quicker; reading again shows which

    async def renew(self, caller: Caller, csr_pem: bytes) -> bytes:
        """A new certificate (PEM) for the node that calls; its key may be a new one."""
        if caller.origin is not AuthMethod.CERTIFICATE or caller.role is not Role.NODE or not caller.node:
            raise errors.Forbidden("only a node renews a certificate, and shows the present one to do so")
        request = _checked(csr_pem)
        while True:
            record = await self._certificates.table.read(caller.serial)
            if record is None and await self._certificates.record(caller.serial):
                continue
            certificates.verify_certificate(record and record.value, self._clock.now())
            assert record is not None, "a certificate without a record is refused"
            try:
                return (await self._follow_up(record, request, self._issuer_for(caller.node))).pem
            except errors.Conflict:
                continue  # renewed twice at once, or revoked; reading again shows which

    def issuer_of(self, role: str) -> pki.CertificateAuthority:
        """The CA of a certificate of this machine. Listeners show one of the old CA until that is dropped:
        those who were away know no other."""
        return self._authority if role == SERVER else self._issuer_for()

    async def issue_local(
        self, csr_pem: bytes, *, role: str, name: str, hosts: Iterable[str] = ()
    ) -> pki.IssuedCertificate:
        """A certificate for this machine's own listeners (role `server`) or its local client, on record."""
        issued = self.issuer_of(role).issue(
            _checked(csr_pem),
            name=name,
            role=role,
            lifetime_s=self._settings.server_certificate_s,
            server=role == SERVER,
            hosts=hosts,
        )
        event = self._events.put(
            "certificate.issued", f"certificate/{issued.serial}", actor="skerry", role=role, name=name
        )
        certificate = msgspec.structs.replace(
            certificates.record_of(issued, name=name, node=""), hosts=tuple(sorted(hosts))
        )
        table = self._certificates.table
        await table.commit(
            [table.put(issued.serial, certificate), event], [table.expect(issued.serial, None)]
        )
        log.info("certificate.issued", serial=issued.serial, role=role, name=name)
        return issued

    async def issue_edge(
        self, caller: Caller, csr_pem: bytes, hosts: Sequence[str], address: str
    ) -> EdgeCertificate:
        """A certificate for the HTTPS listener of the node that calls from `address`, with those of `hosts`
        that it may have (`edge_names`). It proves nothing to servers."""
        if caller.origin is not AuthMethod.CERTIFICATE or caller.role is not Role.NODE or not caller.node:
            raise errors.Forbidden("only a node gets a certificate for its listener, with its own")
        request = _checked(csr_pem)
        held = [one.value for one in self._certificates.live_of(caller.node).values()]
        if sum(one.role == EDGE for one in held) >= certificates.MAX_EDGE_PER_NODE:
            raise errors.Overloaded(
                f"node {caller.node} has {certificates.MAX_EDGE_PER_NODE} certificates for its listener that "
                "have not expired; use the newest, and renew later",
                retry_after_s=600.0,
            )
        name = next((one.name for one in held if one.role == Role.NODE), caller.node)
        node = edge_names.EdgeNode(caller.node, name, address, self._allowed_to(caller.node, name))
        decided = edge_names.decide_hosts(
            node,
            hosts,
            of_servers=self._certificates.hosts(lambda one: one.role == SERVER),
            of_others=self._certificates.hosts(lambda one: one.role == EDGE and one.node != caller.node),
        )
        if not decided.granted:
            raise errors.Invalid(
                f"this node may have none of these names: {'; '.join(decided.refused)}", field="hosts"
            )
        issued = self._issuer_for(caller.node).issue(
            request,
            name=caller.node,
            role=EDGE,
            lifetime_s=self._settings.server_certificate_s,
            server=True,
            hosts=decided.granted,
        )
        record = msgspec.structs.replace(
            certificates.record_of(issued, name=name, node=caller.node), hosts=tuple(sorted(decided.granted))
        )
        event = self._events.put(
            "certificate.issued",
            f"certificate/{issued.serial}",
            actor=f"node/{caller.node}",
            role=EDGE,
            name=name,
            hosts=" ".join(record.hosts),
        )
        table = self._certificates.table
        await table.commit([table.put(issued.serial, record), event], [table.expect(issued.serial, None)])
        log.info("certificate.issued", serial=issued.serial, role=EDGE, node=caller.node, hosts=record.hosts)
        return EdgeCertificate(issued.pem, decided.refused)

    def _allowed_to(self, node: str, name: str) -> frozenset[str]:
        nothing: frozenset[str] = frozenset()
        return self._edge_names.get(node, nothing) | self._edge_names.get(name, nothing)

    async def issue_client(
        self,
        csr_pem: bytes,
        *,
        name: str,
        role: Role,
        actor: str,
        ttl_s: float | None = None,
        namespaces: Sequence[str] = (),
    ) -> tuple[Certificate, bytes]:
        """A certificate for a client of gRPC or HTTPS, on record, and its PEM; bound to `namespaces` if there
        are any. Raises `Invalid`."""
        bound = check_bound_namespaces(namespaces)
        if bound is not None:
            check_may_bind(role)
        if role is Role.NODE:
            raise errors.Invalid(
                "a node gets its certificate by joining: `skerry token create --role node`", field="role"
            )
        lifetime_s = self._settings.server_certificate_s if ttl_s is None else ttl_s
        if not _MIN_CLIENT_S <= lifetime_s <= _MAX_CLIENT_S:
            raise errors.Invalid(
                f"the life of a client's certificate is {_MIN_CLIENT_S:.0f} s to "
                f"{_MAX_CLIENT_S / 86400:.0f} days",
                field="ttl_s",
            )
        issued = self._issuer_for().issue(
            _checked(csr_pem),
            name=_checked_name(name, "client"),
            role=certificate_role(role, bound),
            lifetime_s=lifetime_s,
            units=bound or (),
        )
        event = self._events.put(
            "certificate.issued",
            f"certificate/{issued.serial}",
            actor=actor,
            role=role,
            name=name,
            **({} if bound is None else {"bound_to": " ".join(bound)}),
        )
        record = msgspec.structs.replace(
            certificates.record_of(issued, name=name, node="", namespaces=bound), role=role
        )
        table = self._certificates.table
        await table.wait_for_change(
            await table.commit([table.put(issued.serial, record), event], [table.expect(issued.serial, None)])
        )
        log.info("certificate.issued", serial=issued.serial, role=role, name=name, actor=actor)
        return record, issued.pem

    async def sweep(self) -> None:
        """Remove tokens and certificates that expired long enough ago, and sessions of the console."""
        keys = self._token_keys.overdue(self._tokens.signed_by())
        sessions = self.console_sessions.overdue()
        overdue = [*self._tokens.overdue(), *keys, *self._certificates.overdue(), *sessions]
        for start in range(0, len(overdue), MAX_OPS):
            await self._store.commit([Delete(key) for key in overdue[start : start + MAX_OPS]])
        if overdue:
            log.info("identity.swept", records=len(overdue))

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            try:
                await self.sweep()
            except errors.SkerryError as error:
                log.warning("identity.not_swept", error=error.message)

    async def _claim(self) -> None:
        """Write our CA's fingerprint into a new store; refuse one that holds another's."""
        ours = self._authority.fingerprint
        try:
            await self._store.commit([Put(AUTHORITY_KEY, ours.encode())], [Expect(AUTHORITY_KEY, ABSENT)])
        except errors.Conflict:
            entry = await self._store.get(AUTHORITY_KEY)
            theirs = entry.value.decode("ascii", "replace") if entry else ""
            if theirs != ours:
                raise errors.FailedPrecondition(
                    f"this store belongs to the CA {theirs[:16]}..., and the one in this data folder is "
                    f"{ours[:16]}...: copy ca.crt and ca.key from the pki folder of a server that "
                    "already runs on this store, or use another store"
                ) from None

    async def _previous_node(self, previous_pem: bytes, request: pki.SigningRequest) -> _EnrolledNode:
        """The node that the sender was before: by a certificate of ours for its key, which may have expired
        or have no record in this store, if no certificate of that node was revoked. The request proves the
        key, the token admits it."""
        unknown = _EnrolledNode(ulid.new_id(self._clock.now()))
        try:
            previous = pki.read_certificate(previous_pem)
        except pki.InvalidCertificate:
            return unknown
        is_ours = pki.is_issued_by(previous_pem, self._authority.bundle_pem)
        if not is_ours or previous.role != Role.NODE or previous.key != request.digest:
            return unknown
        record = await self._certificates.table.read(previous.serial)
        is_revoked = record is not None and record.value.revoked_at is not None
        if is_revoked or self._certificates.is_revoked_node(previous.name):
            raise errors.Unprocessable(
                "the certificate that this machine had was revoked, and so its key is not taken again: "
                "join with a new key, as a new node"
            )
        self._check_live(previous.name)
        return _EnrolledNode(previous.name, record)

    async def _join_first(
        self,
        record: Record[Token],
        request: pki.SigningRequest,
        name: str,
        returning: _EnrolledNode,
        pin: str,
    ) -> EnrollmentResult:
        token, node = record.value, returning.node
        issuer = self._issuer_of_pin(pin)
        issued = self._issue_to(node, request, issuer)
        certificate = certificates.record_of(issued, name=name, node=node)
        used = msgspec.structs.replace(token, used_at=self._clock.now(), used_by=issued.serial)
        event = self._events.put(
            "node.joined", f"node/{node}", actor=f"token:{token.id}", name=name, serial=issued.serial
        )
        table = self._tokens.table
        await table.wait_for_change(
            await self._commit_next(
                certificate,
                returning.certificate,
                [table.put(token.id, used), event],
                [table.expect(token.id, record)],
            )
        )
        log.info("node.joined", node=node, name=name, token=token.id, serial=issued.serial)
        return EnrollmentResult(node, issued.pem, issuer.certificate_pem)

    def _issuer_of_pin(self, pin: str) -> pki.CertificateAuthority:
        """The CA that an invitation names: a newcomer knows no other."""
        newest = self._authority.newest
        return newest if pin == pin_of(newest.fingerprint) else self._authority

    async def _join_again(self, token: Token, request: pki.SigningRequest, pin: str) -> EnrollmentResult:
        record = await self._certificates.table.read(token.used_by)
        if record is None or not hmac.compare_digest(record.value.key, request.digest):
            raise tokens.used_up(token)
        certificates.verify_certificate(record.value, self._clock.now())
        issuer = self._issuer_of_pin(pin)
        issued = await self._follow_up(record, request, issuer)
        return EnrollmentResult(record.value.node, issued.pem, issuer.certificate_pem)

    async def _follow_up(
        self, record: Record[Certificate], request: pki.SigningRequest, issuer: pki.CertificateAuthority
    ) -> pki.IssuedCertificate:
        """The next certificate of the node that holds `record`."""
        certificate = record.value
        self._check_live(certificate.node)
        issued = self._issue_to(certificate.node, request, issuer)
        await self._commit_next(
            certificates.record_of(issued, name=certificate.name, node=certificate.node), record
        )
        log.info(
            "certificate.renewed", node=certificate.node, serial=issued.serial, followed=certificate.serial
        )
        return issued

    async def _commit_next(
        self,
        following: Certificate,
        followed: Record[Certificate] | None,
        ops: Sequence[Op] = (),
        expect: Sequence[Expect] = (),
    ) -> int:
        """Record a new certificate, and that it follows another: writing to that record makes a concurrent
        revocation fail. Returns when our own reads have it, because it may be used at once."""
        table = self._certificates.table
        ops = [table.put(following.serial, following), *ops]
        expect = [table.expect(following.serial, None), *expect]
        if followed is not None:
            before = followed.value
            ops.append(table.put(before.serial, msgspec.structs.replace(before, renewed_by=following.serial)))
            expect.append(table.expect(before.serial, followed))
        return await table.commit(ops, expect)

    def _check_live(self, node: str) -> None:
        if len(self._certificates.live_of(node)) >= certificates.MAX_LIVE_PER_NODE:
            raise errors.Overloaded(
                f"node {node} has {certificates.MAX_LIVE_PER_NODE} certificates that have not "
                "expired; use the newest, and renew later",
                retry_after_s=60.0,
            )

    def _issue_to(
        self, node: str, request: pki.SigningRequest, issuer: pki.CertificateAuthority
    ) -> pki.IssuedCertificate:
        # A node also serves: the runtime on its own socket, under the one name that Aurae's clients verify.
        return issuer.issue(
            request,
            name=node,
            role=Role.NODE,
            lifetime_s=self._settings.node_certificate_s,
            server=True,
            client=True,
            hosts=[NODE_TLS_NAME],
        )


def _checked(csr_pem: bytes) -> pki.SigningRequest:
    try:
        return pki.SigningRequest.parse(csr_pem)
    except pki.InvalidSigningRequest as error:
        raise errors.Invalid(str(error), field="csr") from error


def _checked_name(name: str, noun: str = "node") -> str:
    if not _NAME.fullmatch(name):
        raise errors.Invalid(
            f"a {noun}'s name is 1 to 63 letters, digits, dots, dashes or underscores, "
            "with a letter or digit at both ends",
            field="name",
        )
    return name

"""Who may speak to this cloud: tokens, certificates, and how a machine becomes a node.

Answers the gate's question (who is this?) from memory, and does what changes the answer in transactions of
the store, each with the event that tells of it. What a caller may then do is decided in `skerry.wire.access`.
Private keys of others are never seen here: a holder makes its own and sends a signing request.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Iterable

import msgspec
import structlog

from skerry.control import certificates, tokens
from skerry.control.certificates import Certificates
from skerry.control.events import EventLog
from skerry.control.tokens import Tokens
from skerry.kit import ids, pki
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.identity import AURAE_NAME, SERVER, Caller, Certificate, Origin, Role, Token
from skerry.model.settings import IdentitySettings
from skerry.store.protocol import ABSENT, MAX_OPS, Delete, Entry, Expect, Put, Store

log = structlog.get_logger(__name__)

AUTHORITY_KEY = "identity/ca"
_SWEEP_EVERY_S = 600.0
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class Joined(msgspec.Struct, frozen=True):
    """What a machine gets for its token: its node id and a certificate that says so."""

    node: str
    certificate_pem: bytes
    ca_pem: bytes


class Identity:
    """Tokens and certificates of one cloud."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        authority: pki.Authority,
        clock: Clock,
        settings: IdentitySettings,
    ) -> None:
        self._store = store
        self._events = events
        self._authority = authority
        self._clock = clock
        self._settings = settings
        self._tokens = Tokens(store, events, clock, settings, authority.fingerprint)
        self._certificates = Certificates(store, events, clock, authority)

    async def run(self) -> None:
        """Follow the store and forget what has expired, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tokens.view.run())
            group.create_task(self._certificates.view.run())
            group.create_task(self._sweep_for_ever())

    async def ready(self) -> None:
        """Wait until callers can be told apart; `Refused` if the store belongs to another CA than ours.

        Needs `run` beside it.
        """
        await self._claim()
        await self._tokens.view.ready()
        await self._certificates.view.ready()

    def caller_from_token(self, text: str) -> Caller:
        """Who sends this token; `Unauthenticated` says why it is nobody."""
        return self._tokens.caller(text)

    def caller_from_certificate(self, der: bytes) -> Caller:
        """Who holds this certificate; `Unauthenticated` says why it is nobody."""
        return self._certificates.caller(der)

    async def create_token(
        self, role: Role, *, ttl_s: float | None, note: str, actor: str
    ) -> tuple[Token, str]:
        """A new token, and its text, which is shown once."""
        return await self._tokens.create(role, ttl_s=ttl_s, note=note, actor=actor)

    def tokens(self) -> list[Token]:
        return self._tokens.all()

    async def revoke_token(self, token_id: str, *, actor: str) -> None:
        await self._tokens.revoke(token_id, actor=actor)

    def certificates(self) -> list[Certificate]:
        return self._certificates.all()

    async def revoke_certificate(self, serial: str, *, actor: str) -> None:
        """Refuse the certificate from now on; if it is a node's, all of that node's, for renewing too."""
        await self._certificates.revoke(serial, actor=actor)

    def counts(self, serial: str) -> bool:
        """Whether the certificate of this serial is on record and not revoked."""
        return self._certificates.counts(serial)

    async def join(self, token_text: str, csr_pem: bytes, name: str) -> Joined:
        """Make the sender a node, once per token.

        A sender that lost the answer asks again with the same key and gets a certificate for the same node.
        """
        shown = tokens.parse(token_text)
        while True:
            entry = await self._store.get(tokens.PREFIX + shown.id)
            token = tokens.judge(tokens.decode(entry) if entry else None, shown, self._clock.now())
            if token.role is not Role.NODE:
                raise errors.Forbidden(
                    f"this token has the role {token.role} and cannot join a machine; "
                    "an admin makes one that can with `skerry token create --role node`"
                )
            request, name = _checked(csr_pem), _checked_name(name)
            assert entry is not None, "judge refuses a token without a record"
            try:
                if token.used_at is None:
                    return await self._join_first(token, entry, request, name)
                return await self._join_again(token, request)
            except errors.Conflict:
                continue  # another join or a revocation was quicker; reading again shows which

    async def renew(self, caller: Caller, csr_pem: bytes) -> bytes:
        """A new certificate (PEM) for the node that calls; its key may be a new one."""
        if caller.origin is not Origin.CERTIFICATE or caller.role is not Role.NODE or not caller.node:
            raise errors.Forbidden("only a node renews a certificate, and shows the present one to do so")
        request = _checked(csr_pem)
        while True:
            entry = await self._store.get(certificates.PREFIX + caller.serial)
            record = certificates.judge(certificates.decode(entry) if entry else None, self._clock.now())
            assert entry is not None, "judge refuses a certificate without a record"
            try:
                return (await self._follow_up(record, entry, request)).pem
            except errors.Conflict:
                continue  # renewed twice at once, or revoked; reading again shows which

    async def issue_local(
        self, csr_pem: bytes, *, role: str, name: str, lifetime_s: float, hosts: Iterable[str] = ()
    ) -> pki.Issued:
        """A certificate for this machine's own listeners (role `server`) or its local client, on record."""
        issued = self._authority.issue(
            _checked(csr_pem), name=name, role=role, lifetime_s=lifetime_s, server=role == SERVER, hosts=hosts
        )
        told = self._events.put(
            "certificate.issued", f"certificate/{issued.serial}", actor="skerry", role=role, name=name
        )
        record = certificates.record_of(issued, name=name, node="")
        await self._commit([certificates.put(record), told], [_new(record)])
        log.info("certificate.issued", serial=issued.serial, role=role, name=name)
        return issued

    async def sweep(self) -> None:
        """Forget tokens and certificates that expired long enough ago."""
        overdue = [*self._tokens.overdue(), *self._certificates.overdue()]
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
                log.warning("identity.not-swept", error=error.message)

    async def _claim(self) -> None:
        """Write our CA's fingerprint into a new store; refuse one that holds another's."""
        ours = self._authority.fingerprint
        try:
            await self._store.commit([Put(AUTHORITY_KEY, ours.encode())], [Expect(AUTHORITY_KEY, ABSENT)])
        except errors.Conflict:
            entry = await self._store.get(AUTHORITY_KEY)
            theirs = entry.value.decode("ascii", "replace") if entry else ""
            if theirs != ours:
                raise errors.Refused(
                    f"this store belongs to the CA {theirs[:16]}..., and the one in this data folder is "
                    f"{ours[:16]}...: copy ca.crt and ca.key from the pki folder of a server that "
                    "already runs on this store, or use another store"
                ) from None

    async def _join_first(self, token: Token, entry: Entry, request: pki.Request, name: str) -> Joined:
        node = ids.new_id(self._clock.now())
        issued = self._issue_to(node, request)
        record = certificates.record_of(issued, name=name, node=node)
        used = msgspec.structs.replace(token, used_at=self._clock.now(), used_by=issued.serial)
        told = self._events.put(
            "node.joined", f"node/{node}", actor=f"token:{token.id}", name=name, serial=issued.serial
        )
        revision = await self._commit(
            [tokens.put(used), certificates.put(record), told],
            [Expect(entry.key, entry.revision), _new(record)],
        )
        await self._tokens.view.reached(revision)
        log.info("node.joined", node=node, name=name, token=token.id, serial=issued.serial)
        return Joined(node, issued.pem, self._authority.certificate_pem)

    async def _join_again(self, token: Token, request: pki.Request) -> Joined:
        entry = await self._store.get(certificates.PREFIX + token.used_by)
        if entry is None:
            raise tokens.used_up(token)
        record = certificates.decode(entry)
        if not hmac.compare_digest(record.key, request.digest):
            raise tokens.used_up(token)
        certificates.judge(record, self._clock.now())
        issued = await self._follow_up(record, entry, request)
        return Joined(record.node, issued.pem, self._authority.certificate_pem)

    async def _follow_up(self, record: Certificate, entry: Entry, request: pki.Request) -> pki.Issued:
        """The next certificate of the node that holds `record`; writing to that makes revocations notice."""
        if len(self._certificates.live_of(record.node)) >= certificates.MAX_LIVE_PER_NODE:
            raise errors.Overloaded(
                f"node {record.node} has {certificates.MAX_LIVE_PER_NODE} certificates that have not "
                "expired; use the newest, and renew later",
                retry_after_s=60.0,
            )
        issued = self._issue_to(record.node, request)
        following = certificates.record_of(issued, name=record.name, node=record.node)
        followed = msgspec.structs.replace(record, renewed_by=issued.serial)
        await self._commit(
            [certificates.put(following), certificates.put(followed)],
            [Expect(entry.key, entry.revision), _new(following)],
        )
        log.info("certificate.renewed", node=record.node, serial=issued.serial, followed=record.serial)
        return issued

    def _issue_to(self, node: str, request: pki.Request) -> pki.Issued:
        # A node also serves: the runtime on its own socket, under the one name that Aurae's clients ask for.
        return self._authority.issue(
            request,
            name=node,
            role=Role.NODE,
            lifetime_s=self._settings.node_certificate_s,
            server=True,
            client=True,
            hosts=[AURAE_NAME],
        )

    async def _commit(self, ops: list[Put], expect: list[Expect]) -> int:
        """Commit a new certificate, and wait until our own reads know it: it may be shown at once."""
        revision = await self._store.commit(ops, expect)
        await self._certificates.view.reached(revision)
        return revision


def _new(record: Certificate) -> Expect:
    return Expect(certificates.PREFIX + record.serial, ABSENT)


def _checked(csr_pem: bytes) -> pki.Request:
    try:
        return pki.Request.parse(csr_pem)
    except pki.BadRequest as error:
        raise errors.Invalid(str(error), field="csr") from error


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise errors.Invalid(
            "a node's name is 1 to 63 letters, digits, dots, dashes or underscores, "
            "with a letter or digit at both ends",
            field="name",
        )
    return name

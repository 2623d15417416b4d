"""This machine's place in a cloud: its key, its certificate, and keeping that certificate fresh.

The folder holds `node.key` (made once, never sent), `node.crt`, `ca.crt` and `join.json`, which is written
last. Since the key stays and only the certificate is exchanged, no reader ever finds a pair that does not
belong together. How a renewal travels is not known here: the caller of `run` passes that in. The token is
shown to the server once and never written or logged. A machine that joins again stays the node that it is for
as long as a server takes its certificate; what was done is said in `NodeIdentity.outcome`.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files, json_codec, pki, renewal, tls
from skerry.kit.clock import Clock, iso
from skerry.model import errors
from skerry.model.callers import Role
from skerry.model.token_text import MalformedToken, TokenText, pin_of
from skerry.node.agent import join as agent_join

log = structlog.get_logger(__name__)

RenewCertificate = Callable[[bytes], Awaitable[bytes]]

_RENEW_TIMEOUT_S = 30.0


class JoinRecord(msgspec.Struct, frozen=True):
    """Which node this machine is, and of which cloud."""

    node: str
    name: str
    url: str
    grpc: str  # HOST:PORT to dial
    also: tuple[str, ...] = ()  # other addresses of the same server, for when that one cannot be reached


class _JoinRequest(msgspec.Struct, frozen=True):
    """What `NodeIdentity.join` was asked for; `token` and `fingerprint` may be empty."""

    servers: tuple[agent_join.JoinServer, ...]  # in the order to try them
    token: str
    name: str
    fingerprint: str


class _StoredMembership(msgspec.Struct, frozen=True):
    """What is in the folder: a certificate that is ours, and was good once."""

    record: JoinRecord
    issued: pki.IssuedCertificate
    fingerprint: str  # of the cloud's CA


class NodeIdentity:
    """One machine in one cloud."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        sleep: renewal.Sleep = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._folder = folder
        self._key_file = folder / "node.key"
        self._certificate_file = folder / "node.crt"
        self._authority_file = folder / "ca.crt"
        self._record_file = folder / "join.json"
        self._contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None  # to dial, to serve
        self._due = 0.0
        self._not_after = 0.0
        self.outcome = ""  # what `join` did, in a sentence
        self.left_cloud = False  # `join` has made this machine a node of another cloud than before

    @property
    def context(self) -> ssl.SSLContext:
        """For dialling the server, with this node's certificate; the same object for ever."""
        assert self._contexts is not None, "join first"
        return self._contexts[0]

    @property
    def serving_context(self) -> ssl.SSLContext:
        """For serving on this node's own socket to clients with a certificate; the same object for ever."""
        assert self._contexts is not None, "join first"
        return self._contexts[1]

    @property
    def authority_file(self) -> Path:
        return self._authority_file

    @property
    def certificate_file(self) -> Path:
        return self._certificate_file

    @property
    def key_file(self) -> Path:
        return self._key_file

    async def join(self, urls: str, token: str, name: str, *, fingerprint: str = "") -> JoinRecord:
        """Become a node of the cloud at `urls`; one that is a node already stays it, with or without token.

        Of several servers, with commas between them, the first that can be reached is asked; one whose CA has
        not this `fingerprint` (without it: the one in the token) is passed over and never shown the token.
        May be repeated after any failure, with the same token: the key stays, and a server that has already
        used the token up for this key answers again. To another cloud it moves only by a `fingerprint`.
        """
        servers = tuple(agent_join.JoinServer.parse(url.strip()) for url in urls.split(",") if url.strip())
        record = await asyncio.to_thread(self._join, _JoinRequest(servers, token, name, fingerprint))
        log.info("node.joined", node=record.node, name=name, url=record.url, outcome=self.outcome)
        self._put_to_use()
        return record

    def read(self) -> JoinRecord | None:
        """Which node this machine is, whether or not its certificate still serves; None if it is none."""
        stored = self._read_stored() if self._folder.exists() else None
        return None if stored is None else stored.record

    def load(self) -> JoinRecord | None:
        """The node that this machine is, its certificate put to use; None if that has expired."""
        stored = self._read_stored()
        if stored is None or stored.issued.not_after <= self._clock.now():
            return None
        self._put_to_use()
        return stored.record

    def forget(self) -> None:
        """Be no node any more; the key and the certificate stay in their files, and are of no use."""
        self._record_file.unlink(missing_ok=True)

    async def run(self, renew: RenewCertificate) -> None:
        """Renew in time, for ever. `renew` takes a signing request to the server and brings a certificate."""

        async def renew_now() -> None:
            if self._not_after <= self._clock.now():
                # The server will not talk to us, and TLS gives the reason to the server's log, not to ours.
                log.error(
                    "certificate.expired",
                    at=iso(self._not_after),
                    hint="make an invitation (`skerry token create --role node`) and start again with it: "
                    "skerry node --join INVITATION",
                )
            async with asyncio.timeout(_RENEW_TIMEOUT_S):
                pem = await renew(pki.make_request(self._key_file.read_bytes()))
            issued = await asyncio.to_thread(self._keep_renewed, pem)
            self._put_to_use()
            log.info("certificate.renewed", serial=issued.serial, not_after=iso(issued.not_after))

        await renewal.renew_when_due(
            lambda: self._due, renew_now, clock=self._clock, sleep=self._sleep, what="node certificate"
        )

    def _join(self, request: _JoinRequest) -> JoinRecord:
        files.private_folder(self._folder)
        stored = self._read_stored()
        if stored is None:
            record = self._enrol_at_one(request)
            self.outcome = f"joined the cloud at {record.url} as node {record.node}"
            return record
        if request.token and _parse(request.token).pin != pin_of(stored.fingerprint):
            return self._move(stored.record, request)
        if stored.issued.not_after <= self._clock.now():
            reason = f"its certificate had expired at {iso(stored.issued.not_after)}"
            return self._enrol_again(stored, reason, request)
        if request.token or (
            request.servers and stored.record.url not in [each.url for each in request.servers]
        ):
            return self._check_in(stored, request)
        self.outcome = f"{_was(stored.record)}; kept its certificate"
        return stored.record

    def _read_stored(self) -> _StoredMembership | None:
        """The membership in the folder, if all of it is there and belongs together."""
        try:
            record = json_codec.decode(self._record_file.read_bytes(), JoinRecord)
            authority_pem = self._authority_file.read_bytes()
            issued = self._check(self._certificate_file.read_bytes(), record.node, authority_pem)
        except FileNotFoundError:
            return None
        except (json_codec.InvalidJson, pki.InvalidCertificate) as error:
            log.warning("membership.unusable", folder=str(self._folder), error=str(error))
            return None
        return _StoredMembership(record, issued, pki.fingerprint(authority_pem))

    def _move(self, old: JoinRecord, request: _JoinRequest) -> JoinRecord:
        """To another cloud; what there was is replaced only once the other cloud has taken this machine."""
        if not request.fingerprint:
            raise errors.FailedPrecondition(
                f"this machine is node {old.node} of {old.url}, and the token is of another cloud: leave the "
                "present one with `skerry node leave`, or join by an invitation of the other, or use another "
                "data folder"
            )
        record = self._enrol_at_one(request)
        self.left_cloud = True
        self.outcome = (
            f"this machine was node {old.node} of another cloud, {old.url}; left that, and joined the cloud "
            f"at {record.url} as node {record.node}. That one still lists it: `skerry node remove {old.node}`"
        )
        return record

    def _check_in(self, stored: _StoredMembership, request: _JoinRequest) -> JoinRecord:
        """Ask a server whether it takes the certificate, and where it is dialled now."""
        failures = []
        for server in request.servers:
            log.info("node.checking_in", url=server.url)
            try:
                address = agent_join.fetch_server_address(
                    server, self._authority_file, self._certificate_file, self._key_file, self._clock
                )
            except errors.Unauthenticated as error:
                if not request.token:
                    raise
                return self._enrol_again(stored, error.message, request)
            except errors.SkerryError as error:
                failures.append(error.message)
            else:
                return self._keep_membership(stored.record, server, address.grpc)
        self.outcome = f"{_was(stored.record)}; kept its certificate"
        if failures:
            self.outcome += f", though no server could be asked: {'; '.join(failures)}"
        return stored.record

    def _keep_membership(self, record: JoinRecord, server: agent_join.JoinServer, grpc: str) -> JoinRecord:
        """The node that it is, at a server that may have moved."""
        first, *also = server.grpc_addresses(grpc)
        now = msgspec.structs.replace(record, url=server.url, grpc=first, also=tuple(also))
        self.outcome = f"{_was(record)}; kept its name and certificate"
        if now != record:
            files.write_atomically(self._record_file, json_codec.encode(now))
            self.outcome += f"; the server is at {now.url} now, and dialled at {now.grpc}"
        return now

    def _enrol_again(self, stored: _StoredMembership, reason: str, request: _JoinRequest) -> JoinRecord:
        """By the certificate that does not serve any more as proof of who this was. One that was revoked is
        no such proof: then this is a new node, with a new key."""
        try:
            record = self._enrol_at_one(request, stored.issued.pem)
        except errors.Unprocessable:
            self._key_file.unlink()
            record = self._enrol_at_one(request)
        old = stored.record.node
        became = "the same node, with a new certificate"
        if record.node != old:
            became = f"a new node, {record.node}; the old one is still listed: `skerry node remove {old}`"
        self.outcome = f"{_was(stored.record)}, but {reason.rstrip('.')}: joined again as {became}"
        return record

    def _enrol_at_one(self, request: _JoinRequest, previous_pem: bytes = b"") -> JoinRecord:
        """At the first server that is of the cloud and can be reached."""
        shown = _parse(request.token)
        if not request.servers:
            raise errors.Invalid(
                "say which cloud to join: --join INVITATION, as `skerry token create --role node` prints it",
                field="join",
            )
        failures: list[errors.SkerryError] = []
        for server in request.servers:
            log.info("node.joining", url=server.url)
            try:
                authority = agent_join.fetch_authority(server, request.fingerprint or shown.pin, self._clock)
                return self._enrol(server, authority, shown, request.name, previous_pem)
            except (errors.Unavailable, errors.TimedOut, agent_join.AuthorityMismatch) as error:
                log.warning("node.not_joined", url=server.url, reason=error.message)
                failures.append(error)
        raise _none_of(failures)

    def _enrol(
        self,
        server: agent_join.JoinServer,
        authority_pem: bytes,
        shown: TokenText,
        name: str,
        previous_pem: bytes,
    ) -> JoinRecord:
        request = pki.make_request(self._make_key())
        answer = agent_join.request_certificate(
            server, authority_pem, shown, request, name, self._clock, previous_pem=previous_pem
        )
        first, *also = server.grpc_addresses(answer.grpc)
        record = JoinRecord(node=answer.node, name=name, url=server.url, grpc=first, also=tuple(also))
        try:
            issued = self._check(answer.certificate.encode(), record.node, authority_pem)
        except pki.InvalidCertificate as error:
            raise errors.FailedPrecondition(
                f"{server.url} gave a certificate that cannot be used: {error}"
            ) from None
        files.write_atomically(self._authority_file, authority_pem)
        files.write_atomically(self._certificate_file, issued.pem)
        files.write_atomically(self._record_file, json_codec.encode(record))
        return record

    def _make_key(self) -> bytes:
        try:
            return pki.load_or_create_key(self._key_file)
        except pki.UnusableKeyFiles as error:
            raise errors.FailedPrecondition(f"{error}, or remove {self._folder} and join anew") from None

    def _keep_renewed(self, pem: bytes) -> pki.IssuedCertificate:
        record = json_codec.decode(self._record_file.read_bytes(), JoinRecord)
        issued = self._check(pem, record.node, self._authority_file.read_bytes())
        if issued.not_after <= self._clock.now():
            raise pki.InvalidCertificate("it has expired already; compare the clocks of the two machines")
        files.write_atomically(self._certificate_file, issued.pem)
        return issued

    def _check(self, pem: bytes, node: str, authority_pem: bytes) -> pki.IssuedCertificate:
        """The certificate in `pem`, if it is this node's, for this key, and of this CA."""
        issued = pki.read_certificate(pem)
        if not pki.is_issued_by(pem, authority_pem):
            raise pki.InvalidCertificate("it was issued by another CA")
        if issued.role != Role.NODE or issued.name != node:
            raise pki.InvalidCertificate("it is for somebody else")
        if issued.key != pki.key_digest(self._make_key()):
            raise pki.InvalidCertificate("it is for another key")
        return issued

    def _put_to_use(self) -> None:
        if self._contexts is None:
            authority_pem = self._authority_file.read_bytes()
            self._contexts = (tls.client(authority_pem), tls.mutual_server(authority_pem))
        for context in self._contexts:
            tls.load(context, self._certificate_file, self._key_file)
        issued = pki.read_certificate(self._certificate_file.read_bytes())
        self._not_after = issued.not_after
        self._due = renewal.due_at(issued.issued_at, issued.not_after, self._chance())


def _was(record: JoinRecord) -> str:
    return f"this machine was node {record.node} of {record.url} already"


def _none_of(failures: Sequence[errors.SkerryError]) -> errors.SkerryError:
    """What to say when no server has taken this machine in."""
    if len(failures) == 1:
        return failures[0]
    is_refused = any(isinstance(each, errors.FailedPrecondition) for each in failures)
    kind = errors.FailedPrecondition if is_refused else errors.Unavailable
    reasons = "; ".join(each.message for each in failures)
    return kind(f"none of {len(failures)} addresses leads to a server of that cloud: {reasons}")


def _parse(token: str) -> TokenText:
    if not token:
        raise errors.Unauthenticated(
            "this machine is not a node yet: give it an invitation with --join; "
            "an admin makes one with `skerry token create --role node`"
        )
    try:
        shown = TokenText.parse(token.strip())
    except MalformedToken as error:
        raise errors.Unauthenticated(str(error)) from None
    if not shown.pin:
        raise errors.Unauthenticated(
            "this token cannot join a machine; an admin makes one that can with "
            "`skerry token create --role node`"
        )
    return shown

"""The node's identity in a cloud: key, certificate and its renewal.

The folder holds `node.key` (created once, never sent), `node.crt`, `ca.crt` and `join.json`, which is written
last. The key stays and only the certificate is replaced, so key and certificate always match. The caller of
`run` passes in the renewal request. The token is sent to the server once and never stored or logged. A
machine that joins again stays the same node while a server accepts its certificate; `NodeIdentity.outcome`
describes the result.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files, json_codec, pki, renewal, tasks, tls
from skerry.kit.callbacks import CallbackList
from skerry.kit.clock import Clock, iso
from skerry.model import errors
from skerry.model.authority_bundle import AuthorityBundle, TrustedAuthorities
from skerry.model.callers import Role
from skerry.model.token_text import MalformedToken, TokenText, pin_of
from skerry.node.agent import join as agent_join
from skerry.node.agent.network_state import NetworkState

log = structlog.get_logger(__name__)

RenewCertificate = Callable[[bytes], Awaitable[bytes]]

_RENEW_TIMEOUT_S = 30.0


class JoinRecord(msgspec.Struct, frozen=True):
    """Node id and cloud of this machine."""

    node: str
    name: str
    url: str
    grpc: str  # HOST:PORT to dial
    also: tuple[str, ...] = ()  # other addresses of the same server


class _JoinRequest(msgspec.Struct, frozen=True):
    """Arguments of `NodeIdentity.join`; `token` and `fingerprint` may be empty."""

    servers: tuple[agent_join.JoinServer, ...]  # in the order to try them
    token: str
    name: str
    fingerprint: str
    keeps_expired: bool = False


class _StoredMembership(msgspec.Struct, frozen=True):
    """A valid membership in the folder; its certificate may have expired."""

    record: JoinRecord
    issued: pki.IssuedCertificate
    fingerprints: tuple[str, ...]  # of the cloud's CA; of two while it is replaced


class NodeIdentity:
    """The identity of this machine in one cloud."""

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
        self._renew_soon = asyncio.Event()
        self._report: Callable[[], None] = lambda: None  # to servers, once they are followed
        self._bundle: AuthorityBundle | None = None
        self._listeners: CallbackList[[AuthorityBundle]] = CallbackList()
        self.outcome = ""  # result of `join`, in a sentence
        self.has_left_cloud = False  # `join` has moved this machine from another cloud

    @property
    def context(self) -> ssl.SSLContext:
        """For dialling the server with this node's certificate; always the same object."""
        assert self._contexts is not None, "join first"
        return self._contexts[0]

    @property
    def serving_context(self) -> ssl.SSLContext:
        """For serving this node's own socket to clients with a certificate; always the same object."""
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

    async def join(
        self, urls: str, token: str, name: str, *, fingerprint: str = "", keeps_expired: bool = False
    ) -> JoinRecord:
        """Join the cloud at `urls`. A machine that is its node already stays that node, with or without a
        token.

        Of several servers, separated by commas, the first that can be reached is used; one whose CA does not
        have this `fingerprint` (default: the one in the token) is skipped and never sent the token. Can be
        repeated with the same token after any failure: the key stays, and a server that has used the token up
        for this key responds again. Moving to another cloud requires a `fingerprint`. With `keeps_expired`, a
        machine whose certificate has expired stays the node that it is if there is no token: servers reject
        it, and it goes on without them.
        """
        servers = tuple(agent_join.JoinServer.parse(url.strip()) for url in urls.split(",") if url.strip())
        record = await asyncio.to_thread(
            self._join, _JoinRequest(servers, token, name, fingerprint, keeps_expired)
        )
        log.info("node.joined", node=record.node, name=name, url=record.url, outcome=self.outcome)
        self._put_to_use()
        return record

    def read(self) -> JoinRecord | None:
        """The stored membership, even if its certificate has expired; None if this machine is no node."""
        stored = self._read_stored() if self._folder.exists() else None
        return None if stored is None else stored.record

    def load(self) -> JoinRecord | None:
        """The stored membership, with its certificate loaded; None if that has expired."""
        stored = self._read_stored()
        if stored is None or stored.issued.not_after <= self._clock.now():
            return None
        self._put_to_use()
        return stored.record

    def follow(self, network: NetworkState) -> None:
        """Trust the CAs that servers name, now and whenever they change; report which, and which one our own
        certificate is of, also when that was renewed."""

        def changed(bundles: Mapping[str, AuthorityBundle]) -> None:
            for bundle in bundles.values():
                if not network.is_current and self._authority_file.read_bytes() != bundle.pem.encode():
                    return  # of an earlier process: the file was written first, and is newer
                try:
                    fingerprints = tuple(map(pki.fingerprint, pki.split_bundle(bundle.pem.encode())))
                    self._trust(bundle)
                except (pki.InvalidCertificate, OSError, ssl.SSLError) as error:
                    log.error("authorities.not_trusted", error=str(error))
                    return
                self._report = partial(self._report_trust, network, fingerprints)
                self._report()

        network.subscribe(AuthorityBundle, changed)

    def _report_trust(self, network: NetworkState, fingerprints: tuple[str, ...]) -> None:
        issued = pki.read_certificate(self._certificate_file.read_bytes())
        network.report(TrustedAuthorities(fingerprints, issued.issuer))

    def listen_authorities(self, changed: Callable[[AuthorityBundle], None]) -> None:
        """Call `changed` with the CAs that are trusted, now if they are known, and when they change."""
        self._listeners.add(changed)
        if self._bundle is not None:
            changed(self._bundle)

    def _trust(self, bundle: AuthorityBundle) -> None:
        pem = bundle.pem.encode()
        if self._authority_file.read_bytes() != pem:
            files.write_atomically(self._authority_file, pem)
            for context in self._contexts or ():
                tls.trust(context, pem)
            log.info("authorities.changed", authorities=pem.count(b"BEGIN CERTIFICATE"))
        if not is_of_issuing(self._certificate_file.read_bytes(), bundle):
            self._due = 0.0
            self._renew_soon.set()
        if bundle != self._bundle:
            self._bundle = bundle
            self._listeners.notify(bundle)

    async def _sleep_until_due(self, seconds: float) -> None:
        """Sleep, unless the certificate has to be renewed by another CA."""
        sleeping = asyncio.ensure_future(self._sleep(seconds))
        waking = asyncio.ensure_future(self._renew_soon.wait())
        try:
            await asyncio.wait([sleeping, waking], return_when=asyncio.FIRST_COMPLETED)
            self._renew_soon.clear()
            if sleeping.done():
                sleeping.result()
        finally:
            await tasks.cancel_and_wait([sleeping, waking])

    def forget(self) -> None:
        """Remove the membership; the files of key and certificate stay, unused."""
        self._record_file.unlink(missing_ok=True)

    async def run(self, renew: RenewCertificate) -> None:
        """Renew the certificate in time, for ever. `renew` sends a signing request and returns the
        certificate."""

        async def renew_now() -> None:
            if self._not_after <= self._clock.now():
                # The server rejects the connection; TLS logs the reason there, not here.
                log.error(
                    "certificate.expired",
                    at=iso(self._not_after),
                    hint="make an invitation (`skerry token create --role node`) and start again with it: "
                    "skerry node --join INVITATION",
                )
            async with asyncio.timeout(_RENEW_TIMEOUT_S):
                pem = await renew(pki.make_request(self._key_file.read_bytes()))
            issued = await asyncio.to_thread(self._store_renewed, pem)
            self._put_to_use()
            self._report()  # not before it is stored: servers drop the CA of the former one then
            log.info("certificate.renewed", serial=issued.serial, not_after=iso(issued.not_after))

        await renewal.renew_when_due(
            lambda: self._due,
            renew_now,
            clock=self._clock,
            sleep=self._sleep_until_due,
            what="node certificate",
        )

    def _join(self, request: _JoinRequest) -> JoinRecord:
        files.private_folder(self._folder)
        stored = self._read_stored()
        if stored is None:
            record = self._enrol_at_one(request)
            self.outcome = f"joined the cloud at {record.url} as node {record.node}"
            return record
        if request.token and _parse(request.token).pin not in map(pin_of, stored.fingerprints):
            return self._move(stored.record, request)
        if stored.issued.not_after <= self._clock.now():
            reason = f"its certificate had expired at {iso(stored.issued.not_after)}"
            if request.keeps_expired and not request.token:
                self.outcome = (
                    f"{_was(stored.record)}, but {reason}: it goes on without a server until it joins again "
                    "with an invitation"
                )
                return stored.record
            return self._enrol_again(stored, reason, request)
        if request.token or (
            request.servers and stored.record.url not in [each.url for each in request.servers]
        ):
            return self._check_in(stored, request)
        self.outcome = f"{_was(stored.record)}; kept its certificate"
        return stored.record

    def _read_stored(self) -> _StoredMembership | None:
        """The membership in the folder, if it is complete and consistent."""
        try:
            record = json_codec.decode(self._record_file.read_bytes(), JoinRecord)
            authority_pem = self._authority_file.read_bytes()
            issued = self._check(self._certificate_file.read_bytes(), record.node, authority_pem)
        except FileNotFoundError:
            return None
        except (json_codec.InvalidJson, pki.InvalidCertificate) as error:
            log.warning("membership.unusable", folder=str(self._folder), error=str(error))
            return None
        known = tuple(map(pki.fingerprint, pki.split_bundle(authority_pem)))
        return _StoredMembership(record, issued, known)

    def _move(self, old: JoinRecord, request: _JoinRequest) -> JoinRecord:
        """Join another cloud; the stored membership is replaced only when that has succeeded."""
        if not request.fingerprint:
            raise errors.FailedPrecondition(
                f"this machine is node {old.node} of {old.url}, and the token is of another cloud: leave the "
                "present one with `skerry node leave`, or join by an invitation of the other, or use another "
                "data folder"
            )
        record = self._enrol_at_one(request)
        self.has_left_cloud = True
        self.outcome = (
            f"this machine was node {old.node} of another cloud, {old.url}; left that, and joined the cloud "
            f"at {record.url} as node {record.node}. That one still lists it: `skerry node remove {old.node}`"
        )
        return record

    def _check_in(self, stored: _StoredMembership, request: _JoinRequest) -> JoinRecord:
        """Check with a server that it accepts the certificate, and update the address to dial."""
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
                return self._update_address(stored.record, server, address.grpc)
        self.outcome = f"{_was(stored.record)}; kept its certificate"
        if failures:
            self.outcome += f", though no server could be asked: {'; '.join(failures)}"
        return stored.record

    def _update_address(self, record: JoinRecord, server: agent_join.JoinServer, grpc: str) -> JoinRecord:
        """Store the address of a server that may have moved."""
        first, *also = server.grpc_addresses(grpc)
        now = msgspec.structs.replace(record, url=server.url, grpc=first, also=tuple(also))
        self.outcome = f"{_was(record)}; kept its name and certificate"
        if now != record:
            files.write_atomically(self._record_file, json_codec.encode(now))
            self.outcome += f"; the server is at {now.url} now, and dialled at {now.grpc}"
        return now

    def _enrol_again(self, stored: _StoredMembership, reason: str, request: _JoinRequest) -> JoinRecord:
        """Join with the old certificate as proof of the node's id. A revoked one proves nothing: then this
        becomes a new node, with a new key."""
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
        """Enrol with the first reachable server of the cloud."""
        token = _parse(request.token)
        if not request.servers:
            raise errors.Invalid(
                "say which cloud to join: --join INVITATION, as `skerry token create --role node` prints it",
                field="join",
            )
        failures: list[errors.SkerryError] = []
        for server in request.servers:
            log.info("node.joining", url=server.url)
            try:
                authority = agent_join.fetch_authority(server, request.fingerprint or token.pin, self._clock)
                return self._enrol(server, authority, token, request.name, previous_pem)
            except (errors.Unavailable, errors.TimedOut, agent_join.AuthorityMismatch) as error:
                log.warning("node.not_joined", url=server.url, reason=error.message)
                failures.append(error)
        raise _none_of(failures)

    def _enrol(
        self,
        server: agent_join.JoinServer,
        authority_pem: bytes,
        token: TokenText,
        name: str,
        previous_pem: bytes,
    ) -> JoinRecord:
        request = pki.make_request(self._make_key())
        reply = agent_join.request_certificate(
            server, authority_pem, token, request, name, self._clock, previous_pem=previous_pem
        )
        first, *also = server.grpc_addresses(reply.grpc)
        record = JoinRecord(node=reply.node, name=name, url=server.url, grpc=first, also=tuple(also))
        try:
            issued = self._check(reply.certificate.encode(), record.node, authority_pem)
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

    def _store_renewed(self, pem: bytes) -> pki.IssuedCertificate:
        record = json_codec.decode(self._record_file.read_bytes(), JoinRecord)
        issued = self._check(pem, record.node, self._authority_file.read_bytes())
        if issued.not_after <= self._clock.now():
            raise pki.InvalidCertificate("it has already expired; compare the clocks of the two machines")
        files.write_atomically(self._certificate_file, issued.pem)
        return issued

    def _check(self, pem: bytes, node: str, authority_pem: bytes) -> pki.IssuedCertificate:
        """The certificate in `pem`, if it is for this node and this key, and issued by this CA."""
        issued = pki.read_certificate(pem)
        if not pki.is_issued_by(pem, authority_pem):
            raise pki.InvalidCertificate("it was issued by another CA")
        if issued.role != Role.NODE or issued.name != node:
            raise pki.InvalidCertificate("it is for another node")
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


def is_of_issuing(pem: bytes, bundle: AuthorityBundle) -> bool:
    """Whether the certificate is of the CA that issues now; True if that is not in the bundle."""
    issuing = [one for one in pki.split_bundle(bundle.pem.encode()) if pki.fingerprint(one) == bundle.issuing]
    return not issuing or pki.is_issued_by(pem, issuing[0])


def _was(record: JoinRecord) -> str:
    return f"this machine was node {record.node} of {record.url} already"


def _none_of(failures: Sequence[errors.SkerryError]) -> errors.SkerryError:
    """The error when no server could be joined."""
    if len(failures) == 1:
        return failures[0]
    is_rejected = any(isinstance(each, errors.FailedPrecondition) for each in failures)
    kind = errors.FailedPrecondition if is_rejected else errors.Unavailable
    reasons = "; ".join(each.message for each in failures)
    return kind(f"none of {len(failures)} addresses leads to a server of that cloud: {reasons}")


def _parse(token: str) -> TokenText:
    if not token:
        raise errors.Unauthenticated(
            "this machine is not a node yet: give it an invitation with --join; "
            "an admin makes one with `skerry token create --role node`"
        )
    try:
        parsed = TokenText.parse(token.strip())
    except MalformedToken as error:
        raise errors.Unauthenticated(str(error)) from None
    if not parsed.pin:
        raise errors.Unauthenticated(
            "this token cannot join a machine; an admin makes one that can with "
            "`skerry token create --role node`"
        )
    return parsed

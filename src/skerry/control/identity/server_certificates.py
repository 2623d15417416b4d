"""This server's own certificates: of its listeners, and of the local admin; created, loaded and renewed here.

In the data folder's `pki`: `ca`, `server` and `client`, each with a `.crt` and a `.key`. A key is made once
and stays; renewing exchanges the certificate alone, in one rename, so a reader never finds a pair that does
not belong together, not even after a crash. That costs no security: a process that can read one of these keys
can read the CA's beside it. The contexts are made once, too, and get new certificates in place.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from skerry.control.identity.authenticator import Authenticator
from skerry.control.identity.server_names import ServerNames
from skerry.kit import files, pki, renewal, tls
from skerry.kit.clock import Clock, iso
from skerry.model import errors
from skerry.model.callers import LOCAL_ADMIN, SERVER, Role

log = structlog.get_logger(__name__)


class TlsContexts(msgspec.Struct, frozen=True):
    """What listeners are given."""

    grpc: ssl.SSLContext  # TCP and unix socket: only clients with a certificate
    http: ssl.SSLContext  # HTTPS: a client may show a certificate or send a token


class _CertificateFiles(msgspec.Struct, frozen=True):
    """A certificate that this machine should have."""

    certificate_file: Path
    key_file: Path
    role: str
    name: str
    hosts: frozenset[str] = frozenset()


def open_authority(folder: Path, clock: Clock) -> pki.CertificateAuthority:
    """The CA in the data folder's `pki`, made at the first start; `FailedPrecondition` says what is
    broken."""
    try:
        return pki.CertificateAuthority.load_or_create(folder / "pki", clock)
    except pki.UnusableKeyFiles as error:
        raise errors.FailedPrecondition(str(error)) from None
    except OSError as error:
        raise errors.FailedPrecondition(
            f"the CA in {folder / 'pki'} cannot be used: {error.strerror}: {error.filename}"
        ) from None


class ServerCertificates:
    """The certificates and TLS contexts of one server, and of the `node` that is this machine, if it is one.
    `folder` is the data folder."""

    def __init__(
        self,
        folder: Path,
        identity: Authenticator,
        authority: pki.CertificateAuthority,
        clock: Clock,
        *,
        names: Callable[[], ServerNames],
        node: str = "",
        check_every_s: float = renewal.LOOK_AGAIN_S,
        sleep: renewal.Sleep = asyncio.sleep,
    ) -> None:
        """`names` is called again every `check_every_s`, because addresses of a machine change while it
        runs."""
        pki_folder = folder / "pki"
        self._identity = identity
        self._authority = authority
        self._clock = clock
        self._trusted = authority.bundle_pem
        self._sleep = sleep
        self._names = names
        self.names: frozenset[str] = frozenset()  # of this machine, in the certificate that is shown now
        self._check_every_s = check_every_s
        self.ca_file = pki_folder / "ca.crt"
        self.client_certificate_file = pki_folder / "client.crt"
        self.client_key_file = pki_folder / "client.key"
        self._server = _CertificateFiles(
            pki_folder / "server.crt", pki_folder / "server.key", SERVER, names().name
        )
        self._client = _CertificateFiles(
            self.client_certificate_file, self.client_key_file, Role.ADMIN, LOCAL_ADMIN
        )
        self._node: _CertificateFiles | None = None
        if node:
            self._node = _CertificateFiles(pki_folder / "node.crt", pki_folder / "node.key", Role.NODE, node)
        self.node_context = tls.client(authority.bundle_pem)  # for dialling a server as `node`
        self.client_context = tls.client(authority.bundle_pem)  # for dialling another server
        self._certificates: dict[Path, pki.IssuedCertificate] = {}
        self._preparing = asyncio.Lock()  # it is called when something is due, and when the CA is replaced
        self.contexts = TlsContexts(
            grpc=tls.mutual_server(authority.bundle_pem),
            http=tls.https_server(authority.bundle_pem),
        )

    async def prepare(self) -> None:
        """Have the certificates in their files and the server's in the contexts. Needs `identity` ready."""
        names = self._names()
        self.names = names.own
        self._server = replace(self._server, hosts=names.hosts)
        async with self._preparing:
            for pair in (self._server, self._client, *((self._node,) if self._node else ())):
                await self._ensure(pair)
            self._load()
            self._trust()

    def _trust(self) -> None:
        """Trust the CAs that count now, if they are others than before."""
        if self._trusted != self._authority.bundle_pem:
            self._trusted = self._authority.bundle_pem
            contexts = (self.contexts.grpc, self.contexts.http, self.node_context, self.client_context)
            for context in contexts:
                tls.trust(context, self._trusted)
            log.info("certificate.trust_changed", authorities=self._trusted.count(b"BEGIN CERTIFICATE"))

    @property
    def current(self) -> pki.IssuedCertificate:
        """The one that the listeners show, once they are prepared."""
        return self._certificates[self._server.key_file]

    async def run(self) -> None:
        """Renew them in time, for ever."""
        await renewal.renew_when_due(
            self._due,
            self.prepare,
            clock=self._clock,
            sleep=self._sleep,
            what="server and local client",
            check_every_s=self._check_every_s,
        )

    def _due(self) -> float:
        if self._names().hosts != self._server.hosts:
            return self._clock.now()
        return min(
            renewal.due_at(certificate.issued_at, certificate.not_after)
            for certificate in self._certificates.values()
        )

    async def _ensure(self, pair: _CertificateFiles) -> None:
        key_pem, certificate = await asyncio.to_thread(_read, pair)
        reason = replacement_reason(
            certificate, pair.role, pair.hosts, pki.key_digest(key_pem), self._clock.now()
        )
        chain = self._authority.cross_pem() if pair.role == SERVER else b""
        if reason is None and not await asyncio.to_thread(self._is_of_present_authority, pair):
            reason = "the CA is replaced"
        if certificate is not None and reason is None:
            if self._identity.counts(certificate.serial):
                self._certificates[pair.key_file] = certificate
                return
            reason = "it is revoked or not on record"
        issued = await self._identity.issue_local(
            pki.make_request(key_pem), role=pair.role, name=pair.name, hosts=pair.hosts
        )
        await asyncio.to_thread(files.write_atomically, pair.certificate_file, issued.pem + chain)
        self._certificates[pair.key_file] = issued
        log.info(
            "certificate.replaced",
            file=str(pair.certificate_file),
            reason=reason,
            not_after=iso(issued.not_after),
        )

    def _is_of_present_authority(self, pair: _CertificateFiles) -> bool:
        """Whether the certificate is of the CA that would issue it now, with the chain that it needs."""
        pem = pair.certificate_file.read_bytes()
        issuer = self._identity.issuer_of(pair.role)
        links = 1 if pair.role == SERVER and self._authority.successor is not None else 0
        return pki.is_issued_by(pem, issuer.certificate_pem) and len(pki.split_bundle(pem)) == 1 + links

    def _load(self) -> None:
        for context in (self.contexts.grpc, self.contexts.http):
            tls.load(context, self._server.certificate_file, self._server.key_file)
        tls.load(self.client_context, self._client.certificate_file, self._client.key_file)
        if self._node is not None:
            tls.load(self.node_context, self._node.certificate_file, self._node.key_file)


def replacement_reason(
    certificate: pki.IssuedCertificate | None, role: str, hosts: frozenset[str], key: str, now: float
) -> str | None:
    """Why a certificate must be replaced, or None if it is valid."""
    if certificate is None:
        return "there was none"
    if certificate.key != key:
        return "it is for another key"
    if certificate.role != role:
        return "it is for another role"
    if certificate.hosts != hosts:
        return "the names of this server have changed"
    if now >= renewal.due_at(certificate.issued_at, certificate.not_after):
        return "it was due"
    return None


def _read(pair: _CertificateFiles) -> tuple[bytes, pki.IssuedCertificate | None]:
    """The key, which is created if there is none, and the certificate if it can be read."""
    try:
        key_pem = pki.load_or_create_key(pair.key_file)
    except pki.UnusableKeyFiles as error:
        raise errors.FailedPrecondition(f"{error}, or remove it to have a new one made") from None
    try:
        return key_pem, pki.read_certificate(pair.certificate_file.read_bytes())
    except (FileNotFoundError, pki.InvalidCertificate):
        return key_pem, None

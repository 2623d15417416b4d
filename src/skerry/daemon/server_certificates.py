"""This server's own certificates: on its listeners, and for the local admin; made, loaded and renewed here.

In the data folder's `pki`: `ca`, `server` and `client`, each with a `.crt` and a `.key`. A key is made once
and stays; renewing exchanges the certificate alone, in one rename, so a reader never finds a pair that does
not belong together, not even after a crash. Nothing is lost by that: whoever can read one of these keys can
read the CA's beside it. The contexts are made once, too, and get new certificates in place.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from skerry.control.identity.authenticator import Authenticator
from skerry.daemon import listeners
from skerry.daemon.host_identity import HostIdentity
from skerry.kit import files, pki, renewal, tls
from skerry.kit.clock import Clock, iso
from skerry.model import errors
from skerry.model.callers import NODE_TLS_NAME, SERVER, Role
from skerry.model.settings import Settings

log = structlog.get_logger(__name__)

_ADDRESSES_S = 15.0  # how often it is looked whether this machine has other addresses
_DNS_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_][a-z0-9_-]{0,62})*")


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """What listeners are given."""

    grpc: ssl.SSLContext  # TCP and unix socket: only clients with a certificate
    http: ssl.SSLContext  # HTTPS: a client may show a certificate or send a token


@dataclass(frozen=True, slots=True)
class _CertificateFiles:
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


def own_names(settings: Settings, machine: HostIdentity) -> frozenset[str]:
    """What the machine is called by others: nothing while only the machine itself can reach its listeners."""
    if not listeners.is_exposed(settings):
        return frozenset()
    return frozenset(name for name in map(_plain, (*machine.names, *machine.addresses)) if name is not None)


def server_hosts(settings: Settings, machine: HostIdentity) -> frozenset[str]:
    """Every name and address that the listeners' certificate stands for."""
    listening = [
        listeners.split_host_port(settings.http.listen, "--http")[0],
        listeners.split_host_port(listeners.grpc_listen(settings), "--grpc")[0],
    ]
    for name in settings.http.names:
        if _plain(name) is None:
            raise errors.Invalid(f"http.names: {name!r} is no host name and no address", field="http.names")
    given: Iterable[str] = [*listening, *settings.http.names, machine.name]
    plain = {name for name in map(_plain, given) if name is not None}
    return frozenset({"localhost", "127.0.0.1", "::1", NODE_TLS_NAME, *plain, *own_names(settings, machine)})


class ServerCertificates:
    """The certificates and TLS contexts of one server, and of the `node` that is this machine, if it is one.
    `folder` is the data folder."""

    def __init__(
        self,
        folder: Path,
        identity: Authenticator,
        authority: pki.CertificateAuthority,
        settings: Settings,
        clock: Clock,
        *,
        machine: Callable[[], HostIdentity],
        node: str = "",
        sleep: renewal.Sleep = asyncio.sleep,
    ) -> None:
        pki_folder = folder / "pki"
        self._identity = identity
        self._clock = clock
        self._sleep = sleep
        self._settings = settings
        self._machine = machine
        self.names: frozenset[str] = frozenset()  # of this machine, in the certificate that is shown now
        # Addresses of a machine come and go while it runs; what only it can reach does not name them.
        self._look_again_s = _ADDRESSES_S if listeners.is_exposed(settings) else renewal.LOOK_AGAIN_S
        self._lifetime_s = settings.identity.server_certificate_s
        self.ca_file = pki_folder / "ca.crt"
        self.client_certificate_file = pki_folder / "client.crt"
        self.client_key_file = pki_folder / "client.key"
        self._server = _CertificateFiles(
            pki_folder / "server.crt",
            pki_folder / "server.key",
            SERVER,
            machine().name,
        )
        self._client = _CertificateFiles(
            self.client_certificate_file, self.client_key_file, Role.ADMIN, "local-admin"
        )
        self._node: _CertificateFiles | None = None
        if node:
            self._node = _CertificateFiles(pki_folder / "node.crt", pki_folder / "node.key", Role.NODE, node)
        self.node_context = tls.client(authority.certificate_pem)  # for dialling a server as `node`
        self.client_context = tls.client(authority.certificate_pem)  # for dialling another server
        self._held: dict[Path, pki.IssuedCertificate] = {}
        self.contexts = TlsContexts(
            grpc=tls.mutual_server(authority.certificate_pem),
            http=tls.https_server(authority.certificate_pem),
        )

    async def prepare(self) -> None:
        """Have the certificates in their files and the server's in the contexts. Needs `identity` ready."""
        machine = self._machine()
        self.names = own_names(self._settings, machine)
        self._server = replace(self._server, hosts=server_hosts(self._settings, machine))
        for pair in (self._server, self._client, *((self._node,) if self._node else ())):
            await self._ensure(pair)
        self._load()

    async def run(self) -> None:
        """Renew them in time, for ever."""
        await renewal.renew_when_due(
            self._due,
            self.prepare,
            clock=self._clock,
            sleep=self._sleep,
            what="server and local client",
            look_again_s=self._look_again_s,
        )

    def _due(self) -> float:
        if server_hosts(self._settings, self._machine()) != self._server.hosts:
            return self._clock.now()
        return min(renewal.due_at(held.issued_at, held.not_after) for held in self._held.values())

    async def _ensure(self, pair: _CertificateFiles) -> None:
        key_pem, held = await asyncio.to_thread(_read, pair)
        reason = replacement_reason(held, pair.role, pair.hosts, pki.key_digest(key_pem), self._clock.now())
        if held is not None and reason is None:
            if self._identity.counts(held.serial):
                self._held[pair.key_file] = held
                return
            reason = "it is revoked or not on record"
        issued = await self._identity.issue_local(
            pki.make_request(key_pem),
            role=pair.role,
            name=pair.name,
            lifetime_s=self._lifetime_s,
            hosts=pair.hosts,
        )
        await asyncio.to_thread(files.write_atomically, pair.certificate_file, issued.pem)
        self._held[pair.key_file] = issued
        log.info(
            "certificate.replaced",
            file=str(pair.certificate_file),
            reason=reason,
            not_after=iso(issued.not_after),
        )

    def _load(self) -> None:
        for context in (self.contexts.grpc, self.contexts.http):
            tls.load(context, self._server.certificate_file, self._server.key_file)
        tls.load(self.client_context, self._client.certificate_file, self._client.key_file)
        if self._node is not None:
            tls.load(self.node_context, self._node.certificate_file, self._node.key_file)


def replacement_reason(
    held: pki.IssuedCertificate | None, role: str, hosts: frozenset[str], key: str, now: float
) -> str | None:
    """Why a certificate must be made anew, or None if it serves."""
    if held is None:
        return "there was none"
    if held.key != key:
        return "it is for another key"
    if held.role != role:
        return "it is for another role"
    if held.hosts != hosts:
        return "the names of this server have changed"
    if now >= renewal.due_at(held.issued_at, held.not_after):
        return "it was due"
    return None


def _read(pair: _CertificateFiles) -> tuple[bytes, pki.IssuedCertificate | None]:
    """The key, made if there was none, and the certificate if there is a readable one."""
    try:
        key_pem = pki.load_or_create_key(pair.key_file)
    except pki.UnusableKeyFiles as error:
        raise errors.FailedPrecondition(f"{error}, or remove it to have a new one made") from None
    try:
        return key_pem, pki.read_certificate(pair.certificate_file.read_bytes())
    except (FileNotFoundError, pki.InvalidCertificate):
        return key_pem, None


def _plain(host: str) -> str | None:
    """One spelling per host, or None for what no certificate can name: wildcards and nonsense."""
    text = host.strip().lower().removesuffix(".").partition("%")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text if _DNS_NAME.fullmatch(text) else None
    return None if address.is_unspecified else str(address)

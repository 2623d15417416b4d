"""The certificate of this node's HTTPS listener, which devices of its network verify.

Either one of the cloud's CA, for the names and addresses of this node, requested from a server and renewed
(`IssuedListenerCertificate`), or files of the operator, read again when they change
(`FileListenerCertificate`). Both put it into one context, in place. The node's own certificate is not used:
it proves this node to servers and neighbours, and names no address. Without a server the present one is used
until it expires; a node that never had one refuses TLS connections until a server issues it.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from skerry.kit import files, json_codec, pki, renewal, tls
from skerry.kit.clock import Clock, iso
from skerry.model import errors
from skerry.model.authority_bundle import AuthorityBundle
from skerry.model.callers import EDGE
from skerry.node.agent.node_identity import is_of_issuing

log = structlog.get_logger(__name__)

ADDRESSES_S: Final = 60.0  # addresses of a machine, and files of an operator, are looked at this often
_START_S: Final = 10.0

# Sends a signing request and hosts; returns the certificate, and sentences about hosts that it lacks.
RequestCertificate = Callable[[bytes, Sequence[str]], Awaitable[tuple[bytes, tuple[str, ...]]]]


class ListenerCertificate(Protocol):
    """What the listener is given."""

    context: ssl.SSLContext

    def trust(self, bundle: AuthorityBundle) -> None:
        """Accept certificates of these CAs from now on."""
        ...

    @property
    def hosts(self) -> frozenset[str]:
        """Names and addresses in the certificate that is shown now."""
        ...

    @property
    def not_after(self) -> float: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...

    async def prepare(self) -> None:
        """Have a certificate in the context, if possible."""
        ...

    async def run(self) -> None:
        """Renew it in time, for ever."""
        ...


class _RequestRecord(msgspec.Struct, frozen=True):
    """What the present certificate was requested for."""

    hosts: frozenset[str]
    refused: tuple[str, ...] = ()


class IssuedListenerCertificate:
    """One of the cloud's CA. In `folder`: `https.key`, `https.crt`, `https.json`."""

    def __init__(
        self,
        folder: Path,
        authority_pem: bytes,
        hosts: Callable[[], frozenset[str]],
        request: RequestCertificate,
        clock: Clock,
        *,
        sleep: renewal.Sleep = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`hosts` is called again and again, because addresses of a machine change while it runs."""
        self._key_file = folder / "https.key"
        self._certificate_file = folder / "https.crt"
        self._record_file = folder / "https.json"
        self._authority_pem = authority_pem
        self._bundle: AuthorityBundle | None = None
        self._hosts = hosts
        self._request = request
        self._clock = clock
        self._sleep = sleep
        self._chance = chance()
        self._issued: pki.IssuedCertificate | None = None
        self._record = _RequestRecord(frozenset())
        self._error = ""
        self.context = tls.https_server(authority_pem)

    def trust(self, bundle: AuthorityBundle) -> None:
        """Accept certificates of these CAs, and have one of that which issues now."""
        self._bundle = bundle
        self._authority_pem = bundle.pem.encode()
        tls.trust(self.context, self._authority_pem)

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset() if self._issued is None else self._issued.hosts

    @property
    def not_after(self) -> float:
        return 0.0 if self._issued is None else self._issued.not_after

    @property
    def warnings(self) -> tuple[str, ...]:
        if self._issued is None:
            return (
                "the HTTPS listener has no certificate yet, and refuses connections: "
                f"{self._error or 'none was requested'}",
            )
        return tuple(f"the certificate of the HTTPS listener: {reason}" for reason in self._record.refused)

    async def prepare(self) -> None:
        """Load the stored certificate, and request one if that will not do. A server that cannot be reached
        is no error: the stored one is used, or none yet."""
        await asyncio.to_thread(self._load_stored)
        if not self._due() <= self._clock.now() and not self._record.refused:
            return
        try:
            async with asyncio.timeout(_START_S):
                await self._renew()
        except (errors.SkerryError, TimeoutError, pki.InvalidCertificate) as error:
            self._error = str(error) or "no server could be reached"
            log.warning("listener.no_certificate", error=self._error, has_one=self._issued is not None)

    async def run(self) -> None:
        await renewal.renew_when_due(
            self._due,
            self._renew,
            clock=self._clock,
            sleep=self._sleep,
            what="HTTPS listener",
            check_every_s=ADDRESSES_S,
        )

    def _due(self) -> float:
        """When to request one; at once if there is none, or for addresses that are new. Those that are gone
        do no harm."""
        if self._issued is None or self._hosts() - self._record.hosts:
            return self._clock.now()
        if self._bundle is not None and not is_of_issuing(self._issued.pem, self._bundle):
            return self._clock.now()
        return renewal.due_at(self._issued.issued_at, self._issued.not_after, self._chance)

    async def _renew(self) -> None:
        hosts = self._hosts()
        key_pem = await asyncio.to_thread(self._load_key)
        pem, refused = await self._request(pki.make_request(key_pem), sorted(hosts))
        issued = self._check(pem, key_pem)
        if issued.not_after <= self._clock.now():
            raise pki.InvalidCertificate("it has already expired; compare the clocks of the two machines")
        await asyncio.to_thread(self._store, issued, _RequestRecord(hosts, refused))
        log.info(
            "listener.certificate",
            hosts=sorted(issued.hosts),
            refused=refused,
            not_after=iso(issued.not_after),
        )

    def _store(self, issued: pki.IssuedCertificate, record: _RequestRecord) -> None:
        files.write_atomically(self._certificate_file, issued.pem)
        files.write_atomically(self._record_file, json_codec.encode(record))
        tls.load(self.context, self._certificate_file, self._key_file)
        self._issued, self._record = issued, record

    def _load_stored(self) -> None:
        try:
            key_pem, pem = self._key_file.read_bytes(), self._certificate_file.read_bytes()
            issued = self._check(pem, key_pem)
            tls.load(self.context, self._certificate_file, self._key_file)
        except FileNotFoundError:
            return
        except (pki.InvalidCertificate, ssl.SSLError, ValueError) as error:  # of another cloud, or damaged
            log.warning("listener.certificate_unusable", error=str(error))
            return
        self._issued = issued
        try:
            self._record = json_codec.decode(self._record_file.read_bytes(), _RequestRecord)
        except (FileNotFoundError, json_codec.InvalidJson):
            self._record = _RequestRecord(issued.hosts)

    def _load_key(self) -> bytes:
        try:
            return pki.load_or_create_key(self._key_file)
        except pki.UnusableKeyFiles as error:
            raise errors.FailedPrecondition(f"{error}, or remove it to have a new one made") from None

    def _check(self, pem: bytes, key_pem: bytes) -> pki.IssuedCertificate:
        issued = pki.read_certificate(pem)
        if not pki.is_issued_by(pem, self._authority_pem):
            raise pki.InvalidCertificate("it was issued by another CA")
        if issued.role != EDGE:
            raise pki.InvalidCertificate("it is not for a listener")
        if issued.key != pki.key_digest(key_pem):
            raise pki.InvalidCertificate("it is for another key")
        return issued


class FileListenerCertificate:
    """Files of the operator: `node.tls_cert` and `node.tls_key`."""

    def __init__(
        self,
        certificate_file: Path,
        key_file: Path,
        authority_pem: bytes,
        clock: Clock,
        *,
        sleep: renewal.Sleep = asyncio.sleep,
    ) -> None:
        """`authority_pem` is that of clients that show a certificate of the cloud."""
        self._certificate_file = certificate_file
        self._key_file = key_file
        self._clock = clock
        self._sleep = sleep
        self._issued: pki.IssuedCertificate | None = None
        self._stamped: tuple[tuple[int, int], ...] = ()
        self.context = tls.https_server(authority_pem)

    def trust(self, bundle: AuthorityBundle) -> None:
        """Accept certificates of these CAs."""
        tls.trust(self.context, bundle.pem.encode())

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset() if self._issued is None else self._issued.hosts

    @property
    def not_after(self) -> float:
        return 0.0 if self._issued is None else self._issued.not_after

    @property
    def warnings(self) -> tuple[str, ...]:
        if self._issued is not None and self._issued.not_after <= self._clock.now():
            return (f"the certificate in {self._certificate_file} expired at {iso(self._issued.not_after)}",)
        return ()

    async def prepare(self) -> None:
        """Raises `FailedPrecondition` if the files cannot be used."""
        try:
            await asyncio.to_thread(self._load)
        except (OSError, ssl.SSLError, pki.InvalidCertificate) as error:
            raise errors.FailedPrecondition(
                f"node.tls_cert {self._certificate_file} and node.tls_key {self._key_file} cannot be used: "
                f"{error}"
            ) from None

    async def run(self) -> None:
        while True:
            await self._sleep(ADDRESSES_S)
            try:
                if await asyncio.to_thread(self._stamps) != self._stamped:
                    await asyncio.to_thread(self._load)
                    log.info("listener.certificate_read", file=str(self._certificate_file))
            except (OSError, ssl.SSLError, pki.InvalidCertificate) as error:
                log.warning("listener.certificate_unusable", error=str(error))

    def _load(self) -> None:
        stamped = self._stamps()
        issued = pki.read_certificate(self._certificate_file.read_bytes())
        tls.load(self.context, self._certificate_file, self._key_file)
        self._issued, self._stamped = issued, stamped

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        found = [path.stat() for path in (self._certificate_file, self._key_file)]
        return tuple((one.st_mtime_ns, one.st_ino) for one in found)

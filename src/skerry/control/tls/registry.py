"""The registry of certificates: imports, requests and deletions of people; private keys are never shown.

The records are read from memory; chain and key of each are one sealed value (`skerry.control.secrets.vault`),
which edge nodes alone can request (`skerry.control.tls.edge_certificates`). Orders are the leader's
(`skerry.control.tls.controller`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from skerry.control.named_table import key_of, key_of_name
from skerry.control.paging import ListPage
from skerry.control.secrets import vault as vaults
from skerry.control.tls import certificate_pair, decisions
from skerry.control.tls.certificate_pair import CertificatePair
from skerry.control.tls.deps import TlsDeps
from skerry.control.tls.tables import TlsRecord
from skerry.control.workloads.registry import check_may_create, check_space
from skerry.kit import logs, ulid
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.namespace_scope import ListedNamespaces
from skerry.model.tls_certificates import (
    WILDCARD,
    CertificateSource,
    TlsCertificate,
    WantedDomains,
    check_domain,
    check_name,
    domain_of,
    name_of,
)
from skerry.model.tls_settings import TlsSettings
from skerry.store.protocol import Op

MAX_CERTIFICATES: Final = 10_000
_AGAIN_S: Final = 60.0  # between two attempts that people ask for


class TlsRegistry:
    """The certificates of one cloud."""

    def __init__(
        self,
        deps: TlsDeps,
        wanted: WantedDomains,
        *,
        new_id: Callable[[float], str] = ulid.new_id,
    ) -> None:
        self._table, self._vault, self._events, self._clock, self._settings, self._internal = deps
        self._wanted = wanted
        self._new_id = new_id

    # Requests

    async def import_pair(
        self,
        name: str,
        chain_pem: bytes,
        key_pem: bytes,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
    ) -> tuple[TlsCertificate, bool]:
        """The certificate of this name with this chain and key, and whether they are new. It takes the place
        of one that Skerry has got under this name."""
        check_may_create(namespace, actor)
        check_space()
        check_name(name)
        pair = await asyncio.to_thread(certificate_pair.read_pair, chain_pem, key_pem, self._clock.now())
        if (domain := domain_of(name)) is not None:
            certificate_pair.check_covers(pair, domain)
        key = key_of_name(name, namespace)
        while True:
            record = await self._table.read(key)
            if record is not None and record.value.is_deleting:
                raise errors.Conflict(f"certificate {name} is being deleted; try again in a moment")
            if record is not None and await self._has(record.value, pair):
                return record.value, False
            if record is None:
                self._table.check_limit(namespace, MAX_CERTIFICATES)
            last, guard = await self._table.last_deleted(namespace)
            after = self._imported(record, name, namespace, pair, last)
            write = await self._vault.seal(after.ref, pair.pem)
            ops: list[Op] = [
                self._table.put(key, after),
                write.put,
                self._table.event(self._events, "imported", after, actor=actor),
            ]
            if record is not None and record.value.version:
                ops.append(vaults.delete_value(record.value.ref))
            guards = [guard] if record is None else []
            try:
                await self._table.commit(ops, [self._table.expect(key, record), write.expect, *guards])
            except errors.Conflict:
                continue  # another request, the leader, or a rotation of the key, was quicker
            return after, True

    async def issue(
        self, domain: str, *, actor: str, namespace: Namespace = DEFAULT_NAMESPACE
    ) -> tuple[TlsCertificate, bool]:
        """Have a certificate for a domain, without a route; one that is there is renewed now. Returns it, and
        whether it is new. The leader gets it."""
        check_may_create(namespace, actor)
        check_space()
        check_domain(domain)
        source = self._source_of(domain, namespace)
        self._check_not_elsewhere(domain, namespace)
        name = name_of(domain)
        key = key_of_name(name, namespace)
        while True:
            record = await self._table.read(key)
            now = self._clock.now()
            if record is None:
                self._table.check_limit(namespace, MAX_CERTIFICATES)
                after = TlsCertificate(
                    self._new_id(now),
                    name,
                    now,
                    source,
                    (domain,),
                    namespace,
                    is_requested=True,
                    request_id=logs.request_id(),
                )
            else:
                after = self._requested_again(record.value, source, now)
            event = self._table.event(self._events, "requested", after, actor=actor)
            try:
                await self._table.commit(
                    [self._table.put(key, after), event], [self._table.expect(key, record)]
                )
            except errors.Conflict:
                continue
            return after, record is None

    async def delete(
        self,
        name: str,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
        force: bool = False,
    ) -> TlsCertificate:
        """Delete it with its chain and key; `Conflict` while routes use it, unless with `force`."""
        key = key_of_name(name, namespace)
        while True:
            record = await self._table.read(key) if "/" not in name else None
            if record is None:
                raise self._table.unknown(name, namespace)
            certificate = record.value
            if not force and (hosts := self.hosts(certificate)):
                raise errors.Conflict(
                    f"certificate {name} is used by the routes of {', '.join(hosts[:5])}; delete those "
                    "first, or use --force"
                )
            after = replace(certificate, is_deleting=True, retry_at=0.0, request_id=logs.request_id())
            event = self._table.event(self._events, "deleted", after, actor=actor)
            try:
                if certificate.order is None:
                    ops, expect = await self._table.deletion(record)
                    await self._table.commit([*ops, event], expect)
                else:  # the leader has to remove what the order has published
                    await self._table.commit([self._table.put(key, after)], [self._table.expect(key, record)])
            except errors.Conflict:
                continue
            return after

    # Reading

    async def find(self, name: str, namespace: Namespace | None = None) -> TlsCertificate:
        key = key_of_name(name, namespace)
        record = None
        if "/" not in name:  # it would be a key of another namespace
            record = self._table.get(key) or await self._table.read(key)
        if record is None:
            raise self._table.unknown(name, namespace)
        return record.value

    def list(
        self,
        *,
        namespace: ListedNamespaces = None,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
    ) -> ListPage[TlsCertificate]:
        """By age, of all namespaces if none is given."""
        page = self._table.list_page(namespace, limit=limit, offset=offset, cursor=cursor)
        return page.map(lambda record: record.value)

    def now(self) -> float:
        return self._clock.now()

    def hosts(self, certificate: TlsCertificate) -> Sequence[str]:
        """The host names of routes that it is served for."""
        known = decisions.served(self._table.values(), self._wanted.domains_wanted(), self._clock.now())
        return [host for each in known if each.key == key_of(certificate) for host in each.hosts]

    def waiting_for(self, certificate: TlsCertificate) -> str:
        """Why nothing is tried, though there is no certificate or it is due; empty: something is."""
        now = self._clock.now()
        if certificate.source is not CertificateSource.ACME or certificate.order is not None:
            return ""
        if certificate.version and now < certificate.renew_at:
            return ""
        return acme_problem(self._settings, certificate.domains[0])

    def _source_of(self, domain: str, namespace: Namespace) -> CertificateSource:
        if self._internal.has(domain):
            self._internal.check(domain, namespace)
            return CertificateSource.OWN_CA
        if problem := acme_problem(self._settings, domain):
            raise errors.FailedPrecondition(problem)
        return CertificateSource.ACME

    def _check_not_elsewhere(self, domain: str, namespace: Namespace) -> None:
        """Nobody uses up what an ACME server permits for the hosts of another's routes."""
        for each in self._wanted.domains_wanted():
            if each.domain == domain and each.namespace != namespace:
                raise errors.Conflict(f"{domain} is taken: a route of this cloud has it")

    def _requested_again(
        self, certificate: TlsCertificate, source: CertificateSource, now: float
    ) -> TlsCertificate:
        if certificate.is_deleting:
            raise errors.Conflict(f"certificate {certificate.name} is being deleted; try again in a moment")
        if not certificate.is_automatic:
            raise errors.Conflict(
                f"certificate {certificate.name} was imported; delete it first, and then issue another"
            )
        # A request does not get around the pauses after failures by much.
        earliest = certificate.failed_at + _AGAIN_S if certificate.error else 0.0
        return replace(
            certificate,
            source=source,
            is_requested=True,
            renew_at=min(certificate.renew_at, now),
            retry_at=min(certificate.retry_at, max(now, earliest)),
            request_id=logs.request_id(),
        )

    def _imported(
        self,
        record: TlsRecord | None,
        name: str,
        namespace: Namespace,
        pair: CertificatePair,
        last: int,
    ) -> TlsCertificate:
        now = self._clock.now()
        id, created_at = (
            (self._new_id(now), now) if record is None else (record.value.id, record.value.created_at)
        )
        before = 0 if record is None else record.value.version
        return TlsCertificate(
            id,
            name,
            created_at,
            CertificateSource.IMPORTED,
            pair.domains,
            namespace,
            version=(before or last) + 1,
            issuer=pair.issuer,
            serial=pair.serial,
            fingerprint=pair.fingerprint,
            key_type=pair.key_type,
            not_before=pair.not_before,
            not_after=pair.not_after,
            order=None if record is None else record.value.order,  # the leader ends it
            request_id=logs.request_id(),
        )

    async def _has(self, certificate: TlsCertificate, pair: CertificatePair) -> bool:
        if (
            certificate.source is not CertificateSource.IMPORTED
            or certificate.fingerprint != pair.fingerprint
        ):
            return False
        try:
            return await self._vault.value(certificate.ref) == pair.pem
        except (errors.FailedPrecondition, errors.Internal, errors.NotFound):
            return False  # it cannot be opened any more, and is set anew


def acme_problem(settings: TlsSettings, domain: str = "") -> str:
    """Why no certificate can be ordered; empty: it can."""
    if not settings.acme_directory:
        return "no certificates are ordered: an admin sets tls.acme_directory"
    if not settings.acme_directory.startswith("https://"):
        return "no certificates are ordered: tls.acme_directory must begin with https://"
    if not settings.acme_terms_agreed:
        return (
            "no certificates are ordered: an admin reads the terms of service of the ACME server "
            f"{settings.acme_directory} and sets tls.acme_terms_agreed"
        )
    if domain.startswith(WILDCARD) and not settings.dns_hook:
        return f"a certificate for {domain} is verified by DNS: an admin sets tls.dns_hook"
    return ""

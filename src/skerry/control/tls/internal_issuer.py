"""Certificates of the cloud's own CA, for internal names: one transaction each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from skerry.control.secrets import vault as vaults
from skerry.control.tls import certificate_pair, decisions
from skerry.control.tls.deps import TlsDeps
from skerry.control.tls.orders import ACTOR, installed
from skerry.kit import pki
from skerry.kit.pki import CertificateAuthority, SigningRequest
from skerry.model import errors
from skerry.model.tls_certificates import CertificateSource, TlsCertificate
from skerry.store.protocol import Expect, Op

ROUTE_ROLE: Final = "route"  # in the certificates; no caller has this role


class InternalIssuer:
    """Issues certificates for internal names."""

    def __init__(
        self,
        deps: TlsDeps,
        authority: CertificateAuthority,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._table, self._vault, self._events, self._clock, self._settings, self._domains = deps
        self._authority = authority
        self._chance = chance

    async def issue(self, key: str, fence: Expect) -> None:
        """The next version of a certificate, in one transaction."""
        record = await self._table.read(key)
        if record is None or record.value.source is not CertificateSource.OWN_CA:
            return
        certificate = record.value
        ops: list[Op]
        try:
            pair = await asyncio.to_thread(self._pair, certificate)
        except errors.Unprocessable as error:  # the settings have changed
            now = self._clock.now()
            attempts = certificate.attempts + 1
            after = replace(
                certificate,
                error=error.message,
                failed_at=now,
                attempts=attempts,
                retry_at=decisions.retry_time(attempts, now, self._chance()),
            )
            event = self._table.event(self._events, "failed", after, actor=ACTOR, reason=error.message)
            await self._table.commit(
                [self._table.put(key, after), event], [self._table.expect(key, record)], fence
            )
            return
        version = await self._table.next_version(certificate)
        after = installed(certificate, pair, version, self._chance())
        write = await self._vault.seal(after.ref, pair.pem)
        ops = [
            self._table.put(key, after),
            write.put,
            self._table.event(self._events, "issued", after, actor=ACTOR),
        ]
        if certificate.version:
            ops.append(vaults.delete_value(certificate.ref))
        await self._table.commit(ops, [self._table.expect(key, record), write.expect], fence)

    def _pair(self, certificate: TlsCertificate) -> certificate_pair.CertificatePair:
        (domain,) = certificate.domains
        self._domains.check(domain, certificate.namespace)
        private = pki.new_key()
        issued = self._authority.issue(
            SigningRequest.parse(pki.make_request(private)),
            name=domain,
            role=ROUTE_ROLE,
            lifetime_s=self._settings.internal_certificate_s,
            server=True,
            hosts=[domain],
        )
        return certificate_pair.read_pair(issued.pem, private, self._clock.now())

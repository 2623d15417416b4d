"""The records of certificates, and of accounts at ACME servers.

    tls/NAMESPACE/NAME              a certificate, without its chain and key
    acme-account/DIRECTORY          an account, without its key; DIRECTORY is a hash
    secret-last/tls/NAMESPACE       the highest version of those that were deleted

Edge nodes keep chains by name and version, so a version of a name never has another chain: a certificate that
is made anew goes on with the next number.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from skerry.control.events.log import EventLog
from skerry.control.named_table import NamedTable, key_of
from skerry.control.secrets import vault as vaults
from skerry.kit import json_codec
from skerry.model.ids import DEFAULT_NAMESPACE
from skerry.model.secrets import SecretKind, SecretRef
from skerry.model.tls_certificates import AcmeAccount, AcmeOrder, TlsCertificate
from skerry.store.protocol import ABSENT, Expect, Op, Put, Store
from skerry.store.tables.table import Record, Table, json_of

_LAST: Final = "secret-last/tls/"

TlsRecord = Record[TlsCertificate]


class TlsTable(NamedTable[TlsCertificate]):
    """The certificates of one cloud."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "tls", TlsCertificate, noun="certificate")

    async def last_deleted(self, namespace: str) -> tuple[int, Expect]:
        """The highest version of a certificate that was deleted there, and that it is so still; 0: none."""
        key = _LAST + namespace
        entry = await self._store.get(key)
        if entry is None:
            return 0, Expect(key, ABSENT)
        return json_codec.decode(entry.value, int), Expect(key, entry.revision)

    async def next_version(self, certificate: TlsCertificate) -> int:
        """For a certificate whose record is there."""
        if certificate.version:
            return certificate.version + 1
        last, _ = await self.last_deleted(certificate.namespace)
        return last + 1

    async def deletion(self, record: TlsRecord) -> tuple[list[Op], list[Expect]]:
        """What deletes a certificate with its chain and key."""
        certificate = record.value
        key = key_of(certificate)
        last, guard = await self.last_deleted(certificate.namespace)
        ops: list[Op] = [
            self.delete(key),
            Put(guard.key, json_codec.encode(max(last, certificate.version))),
        ]
        if certificate.version:
            ops.append(vaults.delete_value(certificate.ref))
        if certificate.order is not None:
            ops.append(vaults.delete_value(order_key(certificate, certificate.order)))
        return ops, [self.expect(key, record), guard]

    def event(
        self, events: EventLog, kind: str, certificate: TlsCertificate, *, actor: str, reason: str = ""
    ) -> Put:
        """The event `tls.KIND`."""
        return events.put(
            f"tls.{kind}",
            self.subject(certificate),
            actor=actor,
            reason=reason,
            request_id=certificate.request_id,
            name=certificate.name,
            namespace=certificate.namespace,
            domains=" ".join(certificate.domains),
            version=str(certificate.version),
        )


class AccountTable(Table[AcmeAccount]):
    """The accounts of one cloud, by directory."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "acme-account/", json_of(AcmeAccount))

    def of(self, directory: str) -> Record[AcmeAccount] | None:
        return self.get(account_id(directory))


def account_id(directory: str) -> str:
    return sha256(directory.encode()).hexdigest()[:32]


def account_key(directory: str) -> SecretRef:
    """The private key of the account at an ACME server."""
    return SecretRef(DEFAULT_NAMESPACE, SecretKind.ACME_ACCOUNT, account_id(directory), 1)


def order_key(certificate: TlsCertificate, order: AcmeOrder) -> SecretRef:
    """The private key of a certificate that is being ordered."""
    return SecretRef(certificate.namespace, SecretKind.TLS_KEY, certificate.name, order.version)

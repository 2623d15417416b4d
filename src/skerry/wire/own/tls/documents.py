"""Documents of TLS certificates: what they are for, and how they are; never private keys."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from skerry.model.tls_certificates import MAX_CHAIN, MAX_KEY, TlsCertificate

MAX_BODY = 2 * (MAX_CHAIN + MAX_KEY)  # line breaks are escaped


class ImportInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A certificate with its private key."""

    certificate: Annotated[
        str, Meta(description="PEM: the certificate, and behind it those of its issuers, if there are some")
    ]
    key: Annotated[str, Meta(description="PEM: the private key, without a password; never shown again")]
    namespace: str | UnsetType = UNSET


class IssueInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A domain that is to have a certificate."""

    domain: Annotated[
        str, Meta(min_length=1, max_length=253, description="`shop.example.org`, or `*.example.org`")
    ]
    namespace: str | UnsetType = UNSET


class OrderDocument(msgspec.Struct, frozen=True):
    """An order at an ACME server that is under way."""

    directory: str
    begun_at: float
    url: Annotated[str, Meta(description="Empty: it is not placed yet")]
    challenge: Annotated[str, Meta(description="`http-01` or `dns-01`, once it is published; empty before")]


class CertificateDocument(msgspec.Struct, frozen=True):
    """A certificate of routes, without its private key. Times are 0 where there is none yet."""

    name: str
    namespace: str
    source: Annotated[str, Meta(description="`imported`, `acme` or `own-ca`")]
    state: Annotated[
        str, Meta(description="`READY`, `PENDING`, `FAILED`: there is none yet, `EXPIRED` or `DELETING`")
    ]
    domains: tuple[str, ...]
    version: Annotated[int, Meta(description="0: there is none yet")]
    issuer: str
    serial: str
    fingerprint: Annotated[str, Meta(description="SHA-256")]
    key_type: str
    not_before: float
    not_after: float
    created_at: float
    renew_at: Annotated[float, Meta(description="0: it is not renewed by Skerry")]
    error: Annotated[str, Meta(description="Of the last attempt; the present certificate stays as it is")]
    failed_at: float
    retry_at: Annotated[float, Meta(description="0: there is no pause")]
    attempts: Annotated[int, Meta(description="Since there was a certificate last")]
    is_requested: Annotated[bool, Meta(description="By a person, so that it stays without a route")]
    waiting: Annotated[str, Meta(description="Why nothing is tried; empty: nothing is in the way")]
    hosts: Annotated[tuple[str, ...], Meta(description="Host names of routes that it is served for")]
    order: OrderDocument | None


class CertificateList(msgspec.Struct, frozen=True):
    """A page, the oldest first; `count` is how many there are in all."""

    count: int
    certificates: tuple[CertificateDocument, ...]
    cursor: str | None


def certificate_document(
    certificate: TlsCertificate, *, now: float, waiting: str = "", hosts: tuple[str, ...] = ()
) -> CertificateDocument:
    order = certificate.order
    return CertificateDocument(
        name=certificate.name,
        namespace=certificate.namespace,
        source=certificate.source,
        state=certificate.state(now),
        domains=certificate.domains,
        version=certificate.version,
        issuer=certificate.issuer,
        serial=certificate.serial,
        fingerprint=certificate.fingerprint,
        key_type=certificate.key_type,
        not_before=certificate.not_before,
        not_after=certificate.not_after,
        created_at=certificate.created_at,
        renew_at=certificate.renew_at,
        error=certificate.error,
        failed_at=certificate.failed_at,
        retry_at=certificate.retry_at,
        attempts=certificate.attempts,
        is_requested=certificate.is_requested,
        waiting=waiting,
        hosts=hosts,
        order=None
        if order is None
        else OrderDocument(
            order.directory,
            order.begun_at,
            order.url,
            "" if order.challenge is None else order.challenge.kind,
        ),
    )

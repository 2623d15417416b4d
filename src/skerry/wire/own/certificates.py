"""`/certificate/` and `/ca.pem`: what the CA gave out, taking it back, and the CA itself."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.kit.field_copy import copy_fields
from skerry.model import errors
from skerry.transport.http.endpoints import RawBody, RequestContext, endpoint
from skerry.wire.own.context import OwnContext

PEM = "application/x-pem-file"


class CertificatePath(msgspec.Struct, frozen=True):
    serial: Annotated[str, Meta(min_length=1, max_length=64)]


class CertificateInfo(msgspec.Struct, frozen=True):
    """A certificate on record. Times are seconds since the epoch."""

    serial: str
    role: Annotated[str, Meta(description="A role, or `server`")]
    name: str
    node: Annotated[str, Meta(description="The node's id, if it is a node's")]
    not_before: float
    not_after: float
    revoked_at: float | None


class CertificateList(msgspec.Struct, frozen=True):
    certificates: list[CertificateInfo]


@endpoint("GET", "/certificate/", summary="List certificates")
async def list_certificates(own: OwnContext, call: RequestContext) -> CertificateList:
    """Certificates that the CA gave out and that have not expired."""
    return CertificateList(
        [copy_fields(CertificateInfo, record) for record in own.plane.identity.certificates()]
    )


@endpoint(
    "POST",
    "/certificate/{serial}/revoke",
    summary="Revoke a certificate",
    status=204,
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def revoke(own: OwnContext, call: RequestContext, path: CertificatePath) -> None:
    """If it is a node's, all of that node's are refused from now on, for renewing too."""
    await own.plane.identity.revoke_certificate(path.serial, actor=call.caller.name)


@endpoint("GET", "/ca.pem", summary="The CA's certificate", media=PEM)
async def show_authority(own: OwnContext, call: RequestContext) -> RawBody:
    """For clients to verify this server with. A joining node compares it with the pin in its token."""
    return RawBody(own.plane.authority.certificate_pem)

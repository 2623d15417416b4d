"""`/certificate/` and `/ca.pem`: certificates that the CA issued, revoking them, and the CA itself."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.control.identity.authority_rotation import AuthorityRotation
from skerry.kit.field_copy import copy_fields
from skerry.kit.tasks import map_in_turns
from skerry.model import errors
from skerry.model.callers import Role
from skerry.transport.http.endpoints import RawBody, RequestContext, endpoint
from skerry.wire.namespaces import BoundNamespaces, RequestedNamespaces
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
    namespaces: BoundNamespaces


class IssueCertificateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A certificate for a client of gRPC or HTTPS."""

    name: Annotated[str, Meta(description="Of the client, for logs and events")]
    role: Annotated[Role, Meta(description="Any but `node`")]
    csr: Annotated[str, Meta(description="A signing request in PEM; only its key is used")]
    ttl_s: Annotated[float | None, Meta(description="Seconds; without it 30 days")] = None
    namespaces: RequestedNamespaces = ()


class IssuedClientCertificate(msgspec.Struct, frozen=True):
    """A new certificate, with that of the CA."""

    serial: str
    name: str
    role: str
    namespaces: tuple[str, ...] | None
    not_after: float
    certificate: Annotated[str, Meta(description="PEM")]
    ca: Annotated[str, Meta(description="PEM")]


class CertificateList(msgspec.Struct, frozen=True):
    certificates: tuple[CertificateInfo, ...]


@endpoint("GET", "/certificate/", summary="List certificates")
async def list_certificates(own: OwnContext, call: RequestContext) -> CertificateList:
    """Certificates that the CA issued and that have not expired."""
    found = own.plane.identity.certificates()
    return CertificateList(await map_in_turns(partial(copy_fields, CertificateInfo), found))


@endpoint(
    "POST",
    "/certificate/",
    summary="Issue a certificate for a client",
    status=201,
    raises=(errors.Invalid, errors.Unavailable),
)
async def issue(
    own: OwnContext, call: RequestContext, body: IssueCertificateRequest
) -> IssuedClientCertificate:
    """For clients of gRPC, on servers and on the sockets of nodes, and of HTTPS. It can be revoked."""
    record, pem = await own.plane.identity.issue_client(
        body.csr.encode(),
        name=body.name,
        role=body.role,
        actor=call.caller.name,
        ttl_s=body.ttl_s,
        namespaces=body.namespaces,
    )
    return copy_fields(
        IssuedClientCertificate,
        record,
        certificate=pem.decode(),
        ca=own.plane.authority.bundle_pem.decode(),
    )


@endpoint(
    "POST",
    "/certificate/{serial}/revoke",
    summary="Revoke a certificate",
    status=204,
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def revoke(own: OwnContext, call: RequestContext, path: CertificatePath) -> None:
    """If it is a node's, all certificates of that node are refused from now on, also for renewal."""
    await own.plane.identity.revoke_certificate(path.serial, actor=call.caller.name)


@endpoint("GET", "/ca.pem", summary="The CA's certificate", media=PEM)
async def show_authority(own: OwnContext, call: RequestContext) -> RawBody:
    """For clients to verify this server; two while it is replaced. A joining node takes the one whose
    fingerprint is in its token."""
    return RawBody(own.plane.authority.bundle_pem)


class AuthorityInfo(msgspec.Struct, frozen=True):
    """The CA, and its replacement."""

    fingerprint: Annotated[str, Meta(description="SHA-256")]
    not_after: float
    phase: Annotated[str, Meta(description="`trusting` or `issuing` while it is replaced, else empty")]
    successor: Annotated[str, Meta(description="The fingerprint of the new one, while it is replaced")]
    pending: Annotated[tuple[str, ...], Meta(description="Who still needs the old one")]


class FinishRotationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The end of a replacement."""

    force: Annotated[bool, Meta(description="Also if some still need the old CA: they are locked out")] = (
        False
    )


@endpoint("GET", "/certificate/authority", summary="Show the CA")
async def authority_status(own: OwnContext, call: RequestContext) -> AuthorityInfo:
    """The CA, and if it is being replaced, who still needs the old one."""
    return copy_fields(AuthorityInfo, _rotation(own).status())


@endpoint(
    "POST",
    "/certificate/authority/rotate",
    summary="Begin to replace the CA",
    raises=(errors.FailedPrecondition, errors.Conflict, errors.Unavailable),
)
async def rotate_authority(own: OwnContext, call: RequestContext) -> AuthorityInfo:
    """A new CA is created and trusted beside the old one; nodes renew their certificates by it."""
    rotation = _rotation(own)
    await rotation.begin(actor=call.caller.name)
    return copy_fields(AuthorityInfo, rotation.status())


@endpoint(
    "POST",
    "/certificate/authority/finish",
    summary="Finish the replacement of the CA",
    raises=(errors.FailedPrecondition, errors.Conflict, errors.Unavailable),
)
async def finish_rotation(
    own: OwnContext, call: RequestContext, body: FinishRotationRequest
) -> AuthorityInfo:
    """The new CA is the only one from now on. Refused while somebody still needs the old one."""
    rotation = _rotation(own)
    await rotation.finish(force=body.force, actor=call.caller.name)
    return copy_fields(AuthorityInfo, rotation.status())


def _rotation(own: OwnContext) -> AuthorityRotation:
    if own.plane.rotation is None:
        raise errors.FailedPrecondition("the CA cannot be replaced by this process")
    return own.plane.rotation

"""`/tls/`: TLS certificates of routes. Private keys are in no response.

Translation only: `skerry.control.tls` checks, seals and orders them.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.kit.tasks import map_in_turns
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE
from skerry.model.tls_certificates import MAX_NAME, TlsCertificate
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire import namespaces, rest_conventions
from skerry.wire.namespaces import NamespaceQuery, NamespaceTarget, PageQuery
from skerry.wire.own.tls import documents
from skerry.wire.own.tls.context import TlsContext
from skerry.wire.own.tls.documents import (
    MAX_BODY,
    CertificateDocument,
    CertificateList,
    ImportInput,
    IssueInput,
)

_WRITE_ERRORS = (
    errors.Invalid,
    errors.Unprocessable,
    errors.TooLarge,
    errors.Conflict,
    errors.FailedPrecondition,
    errors.Unavailable,
)


class CertificatePath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


class DeleteQuery(NamespaceQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whether to delete what is in use."""

    force: Annotated[bool, Meta(description="Also while routes use it")] = False


@endpoint("GET", "/tls/", summary="List certificates", raises=(errors.Invalid, errors.Unprocessable))
async def list_certificates(context: TlsContext, call: RequestContext, query: PageQuery) -> CertificateList:
    """Certificates of routes, without their private keys."""
    page = context.certificates.list(**query.arguments())
    items = await map_in_turns(partial(_document, context), page.items)
    return CertificateList(page.total, items, page.cursor)


@endpoint("GET", "/tls/{name}", summary="Show a certificate", raises=(errors.Invalid, errors.NotFound))
async def show_certificate(
    context: TlsContext, call: RequestContext, path: CertificatePath, query: NamespaceQuery
) -> CertificateDocument:
    """Its domains and times, where it comes from, and the last error."""
    found = await context.certificates.find(path.name, namespaces.requested_namespace(query))
    return _document(context, found)


@endpoint(
    "PUT",
    "/tls/{name}",
    summary="Import a certificate",
    status=201,
    extra_statuses={200: "It has this chain and key already."},
    raises=_WRITE_ERRORS,
    max_body_bytes=MAX_BODY,
)
async def import_certificate(
    context: TlsContext,
    call: RequestContext,
    path: CertificatePath,
    query: NamespaceTarget,
    body: ImportInput,
) -> CertificateDocument | Response:
    """In place of the one that has this name. Refused unless key and chain fit together and are valid now."""
    made, is_new = await context.certificates.import_pair(
        path.name,
        body.certificate.encode(),
        body.key.encode(),
        actor=call.caller.name,
        namespace=namespaces.target_namespace(query, body.namespace),
    )
    return rest_conventions.respond(_document(context, made), 201 if is_new else 200)


@endpoint(
    "POST",
    "/tls/",
    summary="Issue a certificate",
    status=202,
    raises=_WRITE_ERRORS,
)
async def issue_certificate(
    context: TlsContext, call: RequestContext, query: NamespaceTarget, body: IssueInput
) -> CertificateDocument:
    """For one domain, by ACME, or by the cloud's own CA if it is an internal one; one that is there is
    renewed. The leader does it: the state shows when it is done."""
    made, _ = await context.certificates.issue(
        body.domain,
        actor=call.caller.name,
        namespace=namespaces.target_namespace(query, body.namespace),
    )
    return _document(context, made)


@endpoint(
    "DELETE",
    "/tls/{name}",
    summary="Delete a certificate",
    raises=(errors.Invalid, errors.NotFound, errors.Conflict, errors.Unavailable),
)
async def delete_certificate(
    context: TlsContext, call: RequestContext, path: CertificatePath, query: DeleteQuery
) -> CertificateDocument:
    """With its private key; refused while routes use it."""
    deleted = await context.certificates.delete(
        path.name,
        actor=call.caller.name,
        namespace=namespaces.requested_namespace(query) or DEFAULT_NAMESPACE,
        force=query.force,
    )
    return documents.certificate_document(deleted, now=context.certificates.now())


def _document(context: TlsContext, certificate: TlsCertificate) -> CertificateDocument:
    registry = context.certificates
    return documents.certificate_document(
        certificate,
        now=registry.now(),
        waiting=registry.waiting_for(certificate),
        hosts=tuple(registry.hosts(certificate)),
    )

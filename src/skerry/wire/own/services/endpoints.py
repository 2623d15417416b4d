"""`/service/`: services over HTTP: list, show, create, change, delete, plan, and control of updates.

Translation only: `skerry.control.services` decides.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta
from msgspec.structs import replace

from skerry.control.services.requests import ServiceSpec
from skerry.kit.tasks import map_in_turns
from skerry.model import errors
from skerry.model.services import Service
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire import namespaces, rest_conventions
from skerry.wire.diagnostic_documents import EventDocument, event_document
from skerry.wire.namespaces import NamespaceQuery, NamespaceTarget, PageQuery
from skerry.wire.own.services import documents
from skerry.wire.own.services.context import ServiceContext
from skerry.wire.own.services.documents import RevisionDocument, ServiceDocument, ServicePlanDocument
from skerry.wire.own.services.inputs import RollbackRequest, ScaleRequest, ServiceInput
from skerry.wire.rest_conventions import Limit

_CHANGE_ERRORS = (
    errors.Invalid,
    errors.NotFound,
    errors.Conflict,
    errors.FailedPrecondition,
    errors.Unavailable,
)


class ServicePath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128, description="Its name, or its id")]


class ServiceEventsQuery(NamespaceQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many of the newest events."""

    limit: Limit = 100


class ServiceList(msgspec.Struct, frozen=True):
    """A page of services, the oldest first; `count` is how many there are in all."""

    count: int
    services: tuple[ServiceDocument, ...]
    cursor: str | None


class RevisionList(msgspec.Struct, frozen=True):
    """The stored revisions, the oldest first."""

    count: int
    revisions: tuple[RevisionDocument, ...]


class ServiceEvents(msgspec.Struct, frozen=True):
    """Events, the oldest first; `count` is how many are stored."""

    count: int
    events: tuple[EventDocument, ...]


@endpoint("GET", "/service/", summary="List services", raises=(errors.Invalid, errors.Unprocessable))
async def list_services(
    context: ServiceContext, call: RequestContext, query: PageQuery
) -> ServiceList | Response:
    """In the order of their creation, also those that are being deleted; without their copies."""
    page = context.services.list(**query.arguments())
    items = await map_in_turns(documents.service_summary, page.items)
    return ServiceList(page.total, items, page.cursor)


@endpoint("GET", "/service/{name}", summary="Show a service", raises=(errors.Invalid, errors.NotFound))
async def show(
    context: ServiceContext, call: RequestContext, path: ServicePath, query: NamespaceQuery
) -> ServiceDocument | Response:
    """With its copies. `ETag` changes with its desired state, and with the progress of an update."""
    return await _answer(context, path.name, query)


@endpoint(
    "PUT",
    "/service/",
    summary="Create a service",
    status=201,
    extra_statuses={200: "It exists already, with the same spec or the same Idempotency-Key."},
    raises=(*rest_conventions.CREATE_ERRORS, errors.Conflict),
    headers=rest_conventions.RETRY_HEADER,
    max_body_bytes=rest_conventions.MAX_SPEC_BODY,
)
async def create(
    context: ServiceContext, call: RequestContext, query: NamespaceTarget, body: ServiceInput
) -> ServiceDocument | Response:
    """Its copies are started at once; `status` is `STARTING` until all are ready.

    Its name is unique in its namespace: 409 if a service of that name has another spec, or is being deleted.
    """
    service, is_new = await context.services.create(
        body.service_spec(call.caller),
        actor=call.caller.name,
        namespace=namespaces.target_namespace(query, body.namespace),
        idempotency_key=call.idempotency_key,
    )
    scope = NamespaceQuery(namespace=service.namespace)
    place = f"/namespace/{service.namespace}/service/{service.name}"
    return await _answer(context, service.name, scope, status=201 if is_new else 200, location=place)


@endpoint(
    "PATCH",
    "/service/{name}",
    summary="Change a service",
    raises=(*_CHANGE_ERRORS, errors.Unprocessable, errors.TooLarge),
    headers=rest_conventions.MATCH_HEADER,
    max_body_bytes=rest_conventions.MAX_SPEC_BODY,
)
async def change(
    context: ServiceContext,
    call: RequestContext,
    path: ServicePath,
    query: NamespaceQuery,
    body: ServiceInput,
) -> ServiceDocument | Response:
    """A merge patch (RFC 7396): fields that are not given stay, null resets one to its default.

    A change of the spec of copies is a new revision, and they are updated as `update` says.
    """
    namespace = namespaces.requested_namespace(query)
    record = await context.services.find(path.name, namespace)
    namespaces.check_namespace_unchanged("a service", query, body.namespace, record.value.namespace)
    service = await context.services.change(
        path.name,
        partial(body.service_spec, call.caller),
        actor=call.caller.name,
        namespace=namespace,
        if_match=rest_conventions.check_if_match(call, lambda: record.revision),
    )
    return await _answer_with(context, service)


@endpoint(
    "DELETE",
    "/service/{name}",
    summary="Delete a service and its copies",
    status=202,
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def delete(
    context: ServiceContext, call: RequestContext, path: ServicePath, query: NamespaceQuery
) -> ServiceDocument | Response:
    """It is `DELETING` until its copies are removed; then its name is free."""
    service = await context.services.delete(
        path.name, actor=call.caller.name, namespace=namespaces.requested_namespace(query)
    )
    return await _answer_with(context, service)


@endpoint(
    "POST",
    "/service/{name}/plan",
    summary="Plan a change of a service",
    raises=(
        errors.Invalid,
        errors.Conflict,
        errors.FailedPrecondition,
        errors.Unprocessable,
        errors.TooLarge,
    ),
    max_body_bytes=rest_conventions.MAX_SPEC_BODY,
    is_read=True,
)
async def plan(
    context: ServiceContext,
    call: RequestContext,
    path: ServicePath,
    query: NamespaceQuery,
    body: ServiceInput,
) -> ServicePlanDocument:
    """The body is that of PATCH, or of PUT if there is no service of that name.

    Answers with what would change, the order in which copies would be replaced, and where each new one would
    be placed; nothing is written.
    """
    if body.name not in (UNSET, path.name):
        raise errors.Invalid(f"the body names {body.name!r}, and the address {path.name!r}", field="name")
    named = replace(body, name=path.name)

    def make(base: ServiceSpec | None) -> ServiceSpec:
        return named.service_spec(call.caller, base)

    preview = await context.services.plan(
        path.name,
        make,
        actor=call.caller.name,
        namespace=namespaces.target_namespace(NamespaceTarget(namespace=query.namespace), body.namespace),
    )
    return documents.plan_document(preview, call.caller)


@endpoint("POST", "/service/{name}/scale", summary="Scale a service", raises=_CHANGE_ERRORS)
async def scale(
    context: ServiceContext,
    call: RequestContext,
    path: ServicePath,
    query: NamespaceQuery,
    body: ScaleRequest,
) -> ServiceDocument | Response:
    """412 while autoscaling is on."""
    service = await context.services.scale(
        path.name,
        body.replicas,
        actor=call.caller.name,
        namespace=namespaces.requested_namespace(query),
    )
    return await _answer_with(context, service)


@endpoint("POST", "/service/{name}/rollback", summary="Roll a service back", raises=_CHANGE_ERRORS)
async def rollback(
    context: ServiceContext,
    call: RequestContext,
    path: ServicePath,
    query: NamespaceQuery,
    body: RollbackRequest | None,
) -> ServiceDocument | Response:
    """To a stored revision, which keeps its number. A paused service is resumed by this."""
    service = await context.services.roll_back(
        path.name,
        None if body is None else body.revision,
        actor=call.caller.name,
        namespace=namespaces.requested_namespace(query),
    )
    return await _answer_with(context, service)


@endpoint("POST", "/service/{name}/promote", summary="Promote canaries", raises=_CHANGE_ERRORS)
async def promote(
    context: ServiceContext, call: RequestContext, path: ServicePath, query: NamespaceQuery
) -> ServiceDocument | Response:
    """All copies are updated to the revision of the canaries."""
    service = await context.services.promote(
        path.name, actor=call.caller.name, namespace=namespaces.requested_namespace(query)
    )
    return await _answer_with(context, service)


@endpoint("POST", "/service/{name}/pause", summary="Pause the updates of a service", raises=_CHANGE_ERRORS)
async def pause(
    context: ServiceContext, call: RequestContext, path: ServicePath, query: NamespaceQuery
) -> ServiceDocument | Response:
    """Copies are not updated; those that fail are still replaced."""
    service = await context.services.pause(
        path.name, actor=call.caller.name, namespace=namespaces.requested_namespace(query)
    )
    return await _answer_with(context, service)


@endpoint("POST", "/service/{name}/resume", summary="Resume the updates of a service", raises=_CHANGE_ERRORS)
async def resume(
    context: ServiceContext, call: RequestContext, path: ServicePath, query: NamespaceQuery
) -> ServiceDocument | Response:
    """Also after it was halted by a failure. Its deadline starts again."""
    service = await context.services.resume(
        path.name, actor=call.caller.name, namespace=namespaces.requested_namespace(query)
    )
    return await _answer_with(context, service)


@endpoint(
    "GET",
    "/service/{name}/revisions",
    summary="List the revisions of a service",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def revisions(
    context: ServiceContext, call: RequestContext, path: ServicePath, query: NamespaceQuery
) -> RevisionList:
    """The present and the last good one, and the ten latest others."""
    kept = await context.services.revisions(path.name, namespaces.requested_namespace(query))
    return RevisionList(len(kept), tuple(map(documents.revision_document, kept)))


@endpoint(
    "GET",
    "/service/{name}/events",
    summary="List the events of a service",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def events(
    context: ServiceContext, call: RequestContext, path: ServicePath, query: ServiceEventsQuery
) -> ServiceEvents:
    """Requests and the progress of updates, as far back as events are stored; copies have events of their
    own."""
    kept = await context.services.events(
        path.name, namespaces.requested_namespace(query), reader=call.caller.scope
    )
    newest = kept[-rest_conventions.page_size(query.limit) :]
    return ServiceEvents(len(kept), tuple(map(event_document, newest)))


async def _answer_with(context: ServiceContext, service: Service) -> Response:
    return await _answer(context, service.name, NamespaceQuery(namespace=service.namespace))


async def _answer(
    context: ServiceContext,
    name: str,
    query: NamespaceQuery,
    *,
    status: int | None = None,
    **headers: str,
) -> Response:
    state = await context.services.get(name, namespaces.requested_namespace(query))
    headers["etag"] = rest_conventions.etag(state.revision)
    return rest_conventions.respond(documents.service_document(state), status, **headers)

"""`/workload/`: Kudo's workloads over HTTP: list, show, create, change, delete.

Translation only: `skerry.control` rolls out versions and deletes instances.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta
from msgspec.structs import replace

from skerry.kit.tasks import map_in_turns
from skerry.model import errors
from skerry.model.ids import Namespace
from skerry.model.workloads import RolloutStrategy, Workload
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire import namespaces, rest_conventions, spec_documents
from skerry.wire.kudo import documents, envelope
from skerry.wire.kudo.context import KudoContext
from skerry.wire.kudo.documents import WorkloadDocument, WorkloadInput
from skerry.wire.kudo.envelope import ENVELOPE, Envelope, Envelopes
from skerry.wire.kudo.rest_instances import DeletingInstance
from skerry.wire.namespaces import NamespaceQuery, NamespaceTarget, PageQuery


class WorkloadPath(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=128, description="Its id, or its name")]


class WorkloadQuery(PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which workloads."""

    type: Annotated[str, Meta(description="`CONTAINER`")] = ""


class RolloutQuery(NamespaceQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rollout of a new version."""

    rollout: Annotated[
        RolloutStrategy,
        Meta(description="`none`: instances of older versions stay; `rolling`: they are replaced one by one"),
    ] = RolloutStrategy.NONE


class CascadeQuery(NamespaceQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whether its instances are deleted."""

    cascade: Annotated[bool, Meta(description="`false`: 409 if there are any")] = True


class WorkloadList(msgspec.Struct, frozen=True):
    """A page of workloads, the oldest first; `count` is how many there are in all."""

    count: int
    workloads: tuple[WorkloadDocument, ...]
    cursor: str | None


@endpoint(
    "GET",
    "/workload/",
    summary="List workloads",
    raises=(errors.Invalid, errors.Unprocessable),
    other_media={ENVELOPE: Envelopes[WorkloadDocument]},
)
async def list_workloads(
    kudo: KudoContext, call: RequestContext, query: WorkloadQuery
) -> WorkloadList | Response:
    """In the order of their creation. The header `X-Total-Count` has the `count`, too."""
    if query.type:
        spec_documents.kind_of(query.type)  # there is only one kind, so all match
    found = kudo.workloads.list(**query.arguments())
    items = await map_in_turns(documents.workload_document, found.items)
    return envelope.page_response(call, WorkloadList(found.total, items, found.cursor), items)


@endpoint(
    "GET",
    "/workload/{id}",
    summary="Show a workload",
    raises=(errors.Invalid, errors.NotFound),
    other_media={ENVELOPE: Envelope[WorkloadDocument]},
)
async def show(
    kudo: KudoContext, call: RequestContext, path: WorkloadPath, query: NamespaceQuery
) -> WorkloadDocument | Response:
    """By its id or its name. `ETag` changes with it."""
    return _answer(kudo, call, kudo.workloads.get(path.id, namespaces.requested_namespace(query)))


@endpoint(
    "PUT",
    "/workload/",
    summary="Create a workload",
    status=201,
    extra_statuses={200: "It exists already: the same id or the same Idempotency-Key, with the same spec."},
    raises=(
        errors.Invalid,
        errors.AlreadyExists,
        errors.Unprocessable,
        errors.Expired,
        errors.TooLarge,
        errors.Unavailable,
    ),
    headers=rest_conventions.RETRY_HEADER,
    other_media={ENVELOPE: Envelope[WorkloadDocument]},
    max_body_bytes=rest_conventions.MAX_SPEC_BODY,
)
async def create(
    kudo: KudoContext, call: RequestContext, query: NamespaceTarget, body: WorkloadInput
) -> WorkloadDocument | Response:
    """Its name is unique in its namespace: 409 if another workload has it. Without a name it gets one.

    With an `id` of your own, or an `Idempotency-Key`, the request can be repeated.
    """
    namespace = namespaces.target_namespace(query, body.namespace)
    id = "" if body.id is UNSET else body.id
    call.caller.scope.check_chosen_id(id, namespace)
    documents.check_unchanged(body, _present(kudo, id, namespace))
    made, is_new = await kudo.workloads.create(
        body.named(rest_conventions.name_seed(call, id, kudo.clock)).spec_from(call.caller),
        actor=call.caller.name,
        namespace=namespace,
        id=id or None,
        idempotency_key=call.idempotency_key,
    )
    return _answer(kudo, call, made, status=201 if is_new else 200, location=f"/workload/{made.id}")


create_by_post = replace(
    create,
    method="POST",
    operation="create_by_post",
    summary="Create a workload; the same as PUT",
    description="For clients that create with POST.",
)


@endpoint(
    "PATCH",
    "/workload/{id}",
    summary="Change a workload",
    raises=(
        errors.Invalid,
        errors.NotFound,
        errors.AlreadyExists,
        errors.FailedPrecondition,
        errors.Unprocessable,
        errors.TooLarge,
        errors.Unavailable,
    ),
    headers=rest_conventions.MATCH_HEADER,
    other_media={ENVELOPE: Envelope[WorkloadDocument]},
    max_body_bytes=rest_conventions.MAX_SPEC_BODY,
)
async def change(
    kudo: KudoContext, call: RequestContext, path: WorkloadPath, query: RolloutQuery, body: WorkloadInput
) -> WorkloadDocument | Response:
    """A merge patch (RFC 7396): fields that are not given stay, null resets one to its default.

    It creates the next version, which new instances get. `id`, `type`, `namespace` and read-only fields
    cannot change; they are accepted as they were read.
    """
    namespace = namespaces.requested_namespace(query)
    present = kudo.workloads.get(path.id, namespace)
    if body.id not in (UNSET, path.id, present.id):
        raise errors.Invalid("the id of a workload cannot change", field="id")
    namespaces.check_namespace_unchanged("a workload", query, body.namespace, present.namespace)
    documents.check_unchanged(body, documents.workload_document(present))
    is_rollout_kept = body.rollout is not UNSET and query.rollout is RolloutStrategy.NONE
    workload = await kudo.workloads.change(
        path.id,
        partial(body.spec_from, call.caller),
        actor=call.caller.name,
        namespace=namespace,
        if_match=rest_conventions.check_if_match(call, lambda: kudo.workloads.revision(path.id, namespace)),
        rollout=present.rollout if is_rollout_kept else query.rollout,
    )
    return _answer(kudo, call, workload)


@endpoint(
    "DELETE",
    "/workload/{id}",
    summary="Delete a workload and its instances",
    raises=(errors.Invalid, errors.NotFound, errors.Conflict, errors.Unavailable),
    other_media={ENVELOPE: Envelope[DeletingInstance]},
)
async def delete(
    kudo: KudoContext, call: RequestContext, path: WorkloadPath, query: CascadeQuery
) -> DeletingInstance | Response:
    """It is deleted at once, and its name is free; its instances are destroyed."""
    workload = await kudo.workloads.delete(
        path.id,
        actor=call.caller.name,
        namespace=namespaces.requested_namespace(query),
        cascade=query.cascade,
    )
    return envelope.document_response(call, DeletingInstance(workload.id))


def _present(kudo: KudoContext, id: str, namespace: Namespace) -> WorkloadDocument | None:
    """The workload of that id in `namespace`, if an id was given and there is one."""
    try:
        found = kudo.workloads.get(id, namespace) if id else None
    except errors.NotFound:
        return None
    return documents.workload_document(found) if found is not None and found.id == id else None


def _answer(
    kudo: KudoContext, call: RequestContext, workload: Workload, *, status: int | None = None, **headers: str
) -> Response:
    try:
        # The tag must match the body, and the record may have changed since it was written.
        workload = kudo.workloads.get(workload.id)
        headers["etag"] = rest_conventions.etag(kudo.workloads.revision(workload.id))
    except errors.NotFound:
        pass  # deleted already, or created by another server a moment ago
    return envelope.document_response(call, documents.workload_document(workload), status=status, **headers)

"""`/workload/`: Kudo's workloads over HTTP: list, one, create, change, delete.

Only translation: what a new version or a deletion means for instances is done by `skerry.control`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from skerry.model import errors
from skerry.model.workloads import Rollout, Workload
from skerry.wire.http.endpoints import Call, Reply, endpoint
from skerry.wire.kudo import documents, rest_answers, rest_namespaces
from skerry.wire.kudo.context import Kudo
from skerry.wire.kudo.documents import WorkloadDocument, WorkloadInput
from skerry.wire.kudo.images import check_image
from skerry.wire.kudo.rest_answers import ENVELOPE, Cursor, Envelope, Envelopes, Limit, Offset
from skerry.wire.kudo.rest_instances import Deleted
from skerry.wire.kudo.rest_namespaces import Place, Scope, Spaces


class WorkloadPath(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=128, description="Its id, or its name")]


class WorkloadQuery(Spaces, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which workloads."""

    limit: Limit = 100
    offset: Offset = 0
    cursor: Cursor = ""
    type: Annotated[str, Meta(description="`CONTAINER`")] = ""


class RolloutQuery(Scope, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a new version means for the instances of older ones."""

    rollout: Annotated[
        Rollout, Meta(description="`none`: they stay; `rolling`: they are replaced one by one")
    ] = Rollout.NONE


class CascadeQuery(Scope, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What becomes of the instances."""

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
    media_too={ENVELOPE: Envelopes[WorkloadDocument]},
)
async def list_workloads(kudo: Kudo, call: Call, query: WorkloadQuery) -> WorkloadList | Reply:
    """In the order of their creation. `X-Total-Count` is the `count`, too."""
    if query.type:
        documents.kind_of(query.type)  # there is one, so it lets all through
    found = kudo.workloads.list(
        limit=rest_answers.page_size(query.limit),
        offset=query.offset,
        cursor=query.cursor or None,
        namespace=rest_namespaces.listed(query),
    )
    items = tuple(map(documents.workload_document, found.items))
    return rest_answers.page(call, WorkloadList(found.total, items, found.cursor), items)


@endpoint(
    "GET",
    "/workload/{id}",
    summary="Show a workload",
    raises=(errors.Invalid, errors.NotFound),
    media_too={ENVELOPE: Envelope[WorkloadDocument]},
)
async def show(kudo: Kudo, call: Call, path: WorkloadPath, query: Scope) -> WorkloadDocument | Reply:
    """By its id or its name. `ETag` changes with it."""
    return _answer(kudo, call, kudo.workloads.get(path.id, rest_namespaces.meant(query)))


_CREATE_RAISES = (
    errors.Invalid,
    errors.AlreadyExists,
    errors.Unprocessable,
    errors.Expired,
    errors.TooLarge,
    errors.Unavailable,
)
_CREATE_ALSO = {200: "It was there already: the same id or the same Idempotency-Key, with the same spec."}


@endpoint(
    "PUT",
    "/workload/",
    summary="Create a workload",
    status=201,
    also=_CREATE_ALSO,
    raises=_CREATE_RAISES,
    headers=rest_answers.RETRY_HEADER,
    media_too={ENVELOPE: Envelope[WorkloadDocument]},
    max_body_bytes=rest_answers.MAX_SPEC_BODY,
)
async def create(kudo: Kudo, call: Call, query: Place, body: WorkloadInput) -> WorkloadDocument | Reply:
    """Its name is its own: 409 if another workload in the namespace has it.

    With an `id` of your own, or an `Idempotency-Key`, the same request can be sent again without harm.
    """
    return await _create(kudo, call, query, body)


@endpoint(
    "POST",
    "/workload/",
    summary="Create a workload; the same as PUT",
    status=201,
    also=_CREATE_ALSO,
    raises=_CREATE_RAISES,
    headers=rest_answers.RETRY_HEADER,
    media_too={ENVELOPE: Envelope[WorkloadDocument]},
    max_body_bytes=rest_answers.MAX_SPEC_BODY,
)
async def create_by_post(
    kudo: Kudo, call: Call, query: Place, body: WorkloadInput
) -> WorkloadDocument | Reply:
    """For clients that create with POST."""
    return await _create(kudo, call, query, body)


@endpoint(
    "PATCH",
    "/workload/{id}",
    summary="Change a workload",
    raises=(
        errors.Invalid,
        errors.NotFound,
        errors.AlreadyExists,
        errors.Refused,
        errors.Unprocessable,
        errors.TooLarge,
        errors.Unavailable,
    ),
    headers=rest_answers.MATCH_HEADER,
    media_too={ENVELOPE: Envelope[WorkloadDocument]},
    max_body_bytes=rest_answers.MAX_SPEC_BODY,
)
async def change(
    kudo: Kudo, call: Call, path: WorkloadPath, query: RolloutQuery, body: WorkloadInput
) -> WorkloadDocument | Reply:
    """A merge patch (RFC 7396): what is not given stays, null goes back to the default.

    It makes the next version, of which instances are made from now on. `id`, `type` and `namespace` cannot
    change.
    """
    namespace = rest_namespaces.meant(query)
    present = kudo.workloads.get(path.id, namespace)
    if body.id not in (UNSET, path.id, present.id):
        raise errors.Invalid("the id of a workload cannot change", field="id")
    rest_namespaces.check_stays("a workload", query, body.namespace, present.namespace)
    _check_given_image(call, body)
    workload = await kudo.workloads.change(
        path.id,
        body.onto,
        actor=call.caller.name,
        namespace=namespace,
        if_match=rest_answers.matched(call, lambda: kudo.workloads.revision(path.id, namespace)),
        rollout=query.rollout,
    )
    return _answer(kudo, call, workload)


@endpoint(
    "DELETE",
    "/workload/{id}",
    summary="Delete a workload and its instances",
    raises=(errors.Invalid, errors.NotFound, errors.Conflict, errors.Unavailable),
    media_too={ENVELOPE: Envelope[Deleted]},
)
async def delete(kudo: Kudo, call: Call, path: WorkloadPath, query: CascadeQuery) -> Deleted | Reply:
    """It is gone at once, and its name free; its instances are destroyed."""
    workload = await kudo.workloads.delete(
        path.id,
        actor=call.caller.name,
        namespace=rest_namespaces.meant(query),
        cascade=query.cascade,
    )
    return rest_answers.one(call, Deleted(workload.id))


async def _create(kudo: Kudo, call: Call, query: Place, body: WorkloadInput) -> Reply:
    namespace = rest_namespaces.chosen(query, body.namespace)
    _check_given_image(call, body)
    made, is_new = await kudo.workloads.create(
        body.onto(),
        actor=call.caller.name,
        namespace=namespace,
        id=None if body.id is UNSET else body.id or None,
        idempotency_key=rest_answers.idempotency_key(call),
    )
    return _answer(kudo, call, made, status=201 if is_new else 200, location=f"/workload/{made.id}")


def _check_given_image(call: Call, given: WorkloadInput) -> None:
    if isinstance(given.uri, str):
        check_image(given.uri, call.caller)


def _answer(
    kudo: Kudo, call: Call, workload: Workload, *, status: int | None = None, **headers: str
) -> Reply:
    try:
        # The tag must be of what is shown, and what was written may have moved on since.
        workload = kudo.workloads.get(workload.id)
        headers["etag"] = rest_answers.etag(kudo.workloads.revision(workload.id))
    except errors.NotFound:
        pass  # deleted already, or made by another server a moment ago
    return rest_answers.one(call, documents.workload_document(workload), status=status, **headers)

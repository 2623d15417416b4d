"""`/instance/`: Kudo's instances over HTTP: list, show, create, change, delete.

Translation only: `skerry.control` decides what follows from a request. A response has the state at the time
it is sent, not the final one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta
from msgspec.structs import replace

from skerry.control.instances.registry import InstanceFilter
from skerry.kit.tasks import map_in_turns
from skerry.model import errors
from skerry.model.callers import Role
from skerry.model.ids import Namespace, NodeId, WorkloadId
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire import namespaces, rest_conventions, spec_documents
from skerry.wire.kudo import documents, envelope
from skerry.wire.kudo.context import KudoContext
from skerry.wire.kudo.documents import InstanceDocument, InstanceInput
from skerry.wire.kudo.envelope import ENVELOPE, Envelope, Envelopes
from skerry.wire.namespaces import NamespaceQuery, NamespaceTarget, PageQuery

_DESIRED_CALLS = {
    InstanceStatus.RUNNING: DesiredStatus.RUNNING,
    InstanceStatus.STOPPED: DesiredStatus.STOPPED,
}
_ONE_OF = "give a workload (`workload_id`, `workload_name`, `?workloadId=`) or a spec (`name`, `uri`, ...)"


class InstancePath(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=128)]


class InstanceQuery(PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which instances; filters that are not given match all."""

    type: Annotated[str, Meta(description="`CONTAINER`")] = ""
    state: Annotated[str, Meta(description="Statuses, separated by commas, in any case")] = ""
    status: Annotated[str, Meta(description="The same as `state`")] = ""
    node: Annotated[str, Meta(description="Id of the node they are on")] = ""
    workload: Annotated[str, Meta(description="Id of their workload")] = ""
    name: Annotated[str, Meta(description="Their name; several may have the same")] = ""


class CreateInstanceQuery(
    NamespaceTarget, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"workload": "workloadId"}
):
    """The workload of a new instance, if the body does not name it."""

    workload: Annotated[str, Meta(description="Id of a workload")] = ""


class InstanceList(msgspec.Struct, frozen=True):
    """A page of instances, the oldest first; `count` is how many there are in all."""

    count: int
    instances: tuple[InstanceDocument, ...]
    cursor: str | None


class EncodedInstanceList(msgspec.Struct, frozen=True):
    """An `InstanceList` whose documents are encoded."""

    count: int
    instances: tuple[msgspec.Raw, ...]
    cursor: str | None


class DeletingInstance(msgspec.Struct, frozen=True):
    """An instance that is being deleted; when that is done it is 404."""

    id: str
    status: InstanceStatus = InstanceStatus.DESTROYING


@endpoint(
    "GET",
    "/instance/",
    summary="List instances",
    raises=(errors.Invalid, errors.Unprocessable),
    other_media={ENVELOPE: Envelopes[InstanceDocument]},
)
async def list_instances(
    kudo: KudoContext, call: RequestContext, query: InstanceQuery
) -> InstanceList | Response:
    """In the order of their creation. The header `X-Total-Count` has the `count`, too."""
    wanted = InstanceFilter(
        kind=spec_documents.kind_of(query.type) if query.type else None,
        states=_states(query),
        node=NodeId(query.node) if query.node else None,
        workload=WorkloadId(query.workload) if query.workload else None,
        name=query.name or None,
    )
    found = kudo.instances.list(wanted, **query.arguments())
    items = await map_in_turns(partial(_encoded_document, kudo), found.items)
    return envelope.page_response(call, EncodedInstanceList(found.total, items, found.cursor), items)


@endpoint(
    "GET",
    "/instance/{id}",
    summary="Show an instance",
    raises=(errors.Invalid, errors.NotFound),
    other_media={ENVELOPE: Envelope[InstanceDocument]},
)
async def show(
    kudo: KudoContext, call: RequestContext, path: InstancePath, query: NamespaceQuery
) -> InstanceDocument | Response:
    """Its present state. `ETag` changes whenever its record is written, not with its `usage`."""
    await kudo.check_in_namespace(path.id, query)
    return _answer(kudo, call, kudo.instances.get(path.id))


@endpoint(
    "PUT",
    "/instance/",
    summary="Create an instance",
    status=201,
    extra_statuses={
        200: "It exists already: the same id or the same Idempotency-Key, with the same request."
    },
    raises=(
        errors.Invalid,
        errors.NotFound,
        errors.AlreadyExists,
        errors.Unprocessable,
        errors.Expired,
        errors.TooLarge,
        errors.QuotaExceeded,
        errors.Unavailable,
    ),
    headers=rest_conventions.RETRY_HEADER,
    other_media={ENVELOPE: Envelope[InstanceDocument]},
    max_body_bytes=rest_conventions.MAX_SPEC_BODY,
)
async def create(
    kudo: KudoContext, call: RequestContext, query: CreateInstanceQuery, body: InstanceInput | None
) -> InstanceDocument | Response:
    """Of a workload in the same namespace, by its id or name, or with a spec of its own; without a name it
    gets one.

    It is durable when the response is sent, and then waits for a node. With an `id` of your own, or an
    `Idempotency-Key`, the same request can be sent again without creating a second one; the same id with
    another request is 409.
    """
    given = body or InstanceInput()
    namespace = namespaces.target_namespace(query, given.namespace)
    id = "" if given.id is UNSET else given.id
    call.caller.scope.check_chosen_id(id, namespace)
    present = _present(kudo, id, namespace)
    documents.check_unchanged(given, None if present is None else _document(kudo, present))
    made, is_new = await kudo.instances.create(
        await _requested_spec(kudo, call, query, given, namespace, present),
        actor=call.caller.name,
        namespace=namespace,
        id=id or None,
        idempotency_key=call.idempotency_key,
    )
    return _answer(kudo, call, made, status=201 if is_new else 200, location=f"/instance/{made.id}")


create_by_post = replace(
    create,
    method="POST",
    operation="create_by_post",
    summary="Create an instance; the same as PUT",
    description="For clients that create with POST.",
)


@endpoint(
    "PATCH",
    "/instance/{id}",
    summary="Start, stop or change an instance",
    raises=(
        errors.Invalid,
        errors.NotFound,
        errors.Conflict,
        errors.FailedPrecondition,
        errors.Unprocessable,
        errors.TooLarge,
        errors.QuotaExceeded,
        errors.Unavailable,
    ),
    headers=rest_conventions.MATCH_HEADER,
    other_media={ENVELOPE: Envelope[InstanceDocument]},
    max_body_bytes=rest_conventions.MAX_SPEC_BODY,
)
async def change(
    kudo: KudoContext, call: RequestContext, path: InstancePath, query: NamespaceQuery, body: InstanceInput
) -> InstanceDocument | Response:
    """A merge patch (RFC 7396): fields that are not given stay, null resets one to its default.

    `{"status": "STOPPED"}` stops it, and it keeps its node; `{"status": "RUNNING"}` starts it. Any change of
    the spec, or another `workload_id`, replaces the running copy. `id`, `type`, `namespace` and read-only
    fields cannot change; they are accepted as they were read.
    """
    await kudo.check_in_namespace(path.id, query)
    if body.id not in (UNSET, path.id):
        raise errors.Invalid("the id of an instance cannot change", field="id")
    present = await kudo.instances.read(path.id)
    namespaces.check_namespace_unchanged("an instance", query, body.namespace, present.namespace)
    documents.check_unchanged(body, _document(kudo, present))
    if body.workload_id is None and present.workload is not None:
        raise errors.Invalid(
            "an instance cannot be taken from its workload; name another, or create one of its own",
            field="workload_id",
        )
    workload = None if _has_same_workload(body, present) else _workload(kudo, body, lambda: present.namespace)
    if workload is not None:
        await kudo.check_workload_visible(call.caller, workload, present.namespace)
    instance = await kudo.instances.change(
        path.id,
        actor=call.caller.name,
        desired=_desired(present, body),
        merge=partial(body.spec_from, call.caller) if body.is_given else None,
        workload=workload,
        if_match=rest_conventions.check_if_match(call, lambda: kudo.instances.revision(path.id)),
        namespace=namespaces.requested_namespace(query),
    )
    return _answer(kudo, call, instance)


@endpoint(
    "DELETE",
    "/instance/{id}",
    summary="Delete an instance",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
    other_media={ENVELOPE: Envelope[DeletingInstance]},
)
async def delete(
    kudo: KudoContext, call: RequestContext, path: InstancePath, query: NamespaceQuery
) -> DeletingInstance | Response:
    """Its desired status is DESTROYED from now on; it is 404 when its node has removed it."""
    await kudo.check_in_namespace(path.id, query)
    instance = await kudo.instances.destroy(
        path.id,
        actor=call.caller.name,
        namespace=namespaces.requested_namespace(query),
        by_admin=call.caller.role is Role.ADMIN,
    )
    return envelope.document_response(call, DeletingInstance(instance.id))


async def _requested_spec(
    kudo: KudoContext,
    call: RequestContext,
    query: CreateInstanceQuery,
    given: InstanceInput,
    namespace: Namespace,
    present: Instance | None,
) -> InstanceSpec | str:
    named = _workload(kudo, given, lambda: namespace)
    if named is not None and query.workload not in ("", named):
        raise errors.Invalid(
            f"the query and the body name different workloads; {_ONE_OF}", field="workloadId"
        )
    workload = named or query.workload
    if not workload:
        if not given.is_given:
            raise errors.Invalid(f"this says nothing of what to run; {_ONE_OF}", field="uri")
        id = "" if given.id is UNSET else given.id
        return given.named(rest_conventions.name_seed(call, id, kudo.clock)).spec_from(call.caller)
    if given.is_given:
        if present is None or not _has_same_workload(given, present):
            raise errors.Invalid(f"{_ONE_OF}, not both", field="workload_id")
        # The whole document of an existing instance has both.
        if given.spec_from(call.caller, present.spec) != present.spec:
            raise errors.AlreadyExists(f"instance {present.id} exists with another spec; change it (PATCH)")
    await kudo.check_workload_visible(call.caller, workload, namespace)
    return workload


def _present(kudo: KudoContext, id: str, namespace: Namespace) -> Instance | None:
    """The instance of that id in `namespace`, if an id was given and there is one."""
    try:
        found = kudo.instances.get(id) if id else None
    except errors.NotFound:
        return None
    return found if found is not None and found.namespace == namespace else None


def _has_same_workload(given: InstanceInput, present: Instance) -> bool:
    """True if the document names the workload that the instance has."""
    is_whole = given.workload_version is not UNSET  # then it is unchanged
    return is_whole and given.workload_name is UNSET and given.workload_id == present.workload


def _workload(kudo: KudoContext, given: InstanceInput, namespace: Callable[[], Namespace]) -> str | None:
    """The workload that is named, if one is; a name is looked up in `namespace`."""
    by_id, by_name = given.workload_id, given.workload_name
    if isinstance(by_id, str) and isinstance(by_name, str):
        raise errors.Invalid("give `workload_id` or `workload_name`, not both", field="workload_name")
    if isinstance(by_name, str):
        _check_no_other_has(kudo, by_name, namespace())
        return by_name
    return by_id if isinstance(by_id, str) else None


def _check_no_other_has(kudo: KudoContext, name: str, namespace: Namespace) -> None:
    """Ids go before names, so a name that is also the id of another workload is refused."""
    try:
        found = kudo.workloads.get(name, namespace)
    except errors.NotFound:
        return  # another server may have just created it; the control plane reads the store
    if found.spec.name != name:
        raise errors.Invalid(
            f"{name!r} is the id of a workload of another name; name the workload by its id",
            field="workload_name",
        )


def _desired(present: Instance, given: InstanceInput) -> DesiredStatus | None:
    if given.status is UNSET:
        return None
    wanted = documents.status_of(given.status, "status")
    # A status that was read and is sent back unchanged is no request.
    is_unchanged = wanted is present.observed.status
    if is_unchanged and given.desired is not UNSET:
        return None
    if wanted not in _DESIRED_CALLS and not is_unchanged:
        raise errors.Invalid(
            f"status can be set to RUNNING or STOPPED, not to {wanted}; DELETE destroys an instance",
            field="status",
        )
    return _DESIRED_CALLS.get(wanted)


def _states(query: InstanceQuery) -> frozenset[InstanceStatus]:
    if query.state and query.status and query.state != query.status:
        raise errors.Invalid("`state` and `status` mean the same and differ; give one of them", field="state")
    field = "state" if query.state else "status"
    text = query.state or query.status
    return frozenset(documents.status_of(name, field) for name in text.split(",")) if text else frozenset()


def _answer(
    kudo: KudoContext, call: RequestContext, instance: Instance, *, status: int | None = None, **headers: str
) -> Response:
    try:
        # The tag must match the body, and the record may have changed since it was written.
        instance = kudo.instances.get(instance.id)
        headers["etag"] = rest_conventions.etag(kudo.instances.revision(instance.id))
    except errors.NotFound:
        pass  # deleted already, or created by another server a moment ago
    return envelope.document_response(call, _document(kudo, instance), status=status, **headers)


def _document(kudo: KudoContext, instance: Instance) -> InstanceDocument:
    return documents.instance_document(instance, kudo.instances.usage(instance.id))


def _encoded_document(kudo: KudoContext, instance: Instance) -> msgspec.Raw:
    return kudo.documents.encode(instance, kudo.instances.usage(instance.id))

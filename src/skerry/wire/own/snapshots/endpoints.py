"""`/volume/{name}/snapshot`, `/restore`, `/move`, `/snapshot/` and `/volume-operation/` over HTTP.

Translation only: `skerry.control.snapshots` executes the requests. Each request that copies or removes data
is answered with its operation, which can be read until a day after its end.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.kit.tasks import map_in_turns
from skerry.model import errors
from skerry.model.volume_operations import VolumeOperation
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire import namespaces, rest_conventions
from skerry.wire.namespaces import NamespaceQuery, PageQuery
from skerry.wire.own.snapshots import documents
from skerry.wire.own.snapshots.context import SnapshotContext
from skerry.wire.own.snapshots.documents import (
    MoveInput,
    OperationDocument,
    RestoreInput,
    SnapshotDocument,
    SnapshotInput,
)

_ERRORS = (
    errors.Invalid,
    errors.NotFound,
    errors.AlreadyExists,
    errors.FailedPrecondition,
    errors.Conflict,
    errors.Unprocessable,
    errors.TooLarge,
    errors.ResourcesExhausted,
    errors.Unavailable,
)


class SnapshotPath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128, description="Its name, or its id")]


class OperationPath(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=128)]


class SnapshotQuery(PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which snapshots, and which part of the list."""

    volume: Annotated[str, Meta(max_length=128, description="Only those of this volume, by name or id")] = ""


class SnapshotList(msgspec.Struct, frozen=True):
    """A page of snapshots, the oldest first; `count` is how many there are in all."""

    count: int
    snapshots: tuple[SnapshotDocument, ...]
    cursor: str | None


class OperationList(msgspec.Struct, frozen=True):
    """A page of operations, the oldest first; `count` is how many there are in all."""

    count: int
    operations: tuple[OperationDocument, ...]
    cursor: str | None


@endpoint(
    "POST", "/volume/{name}/snapshot", summary="Take a snapshot of a volume", status=202, raises=_ERRORS
)
async def take(
    context: SnapshotContext,
    call: RequestContext,
    path: SnapshotPath,
    query: NamespaceQuery,
    body: SnapshotInput,
) -> OperationDocument | Response:
    """What uses the volume keeps running; its writes wait while the volume is copied on its node."""
    operation = await context.snapshots.take(
        path.name,
        body.request(),
        actor=call.caller.name,
        namespace=namespaces.requested_namespace(query),
    )
    return _accepted(operation)


@endpoint(
    "GET",
    "/volume/{name}/snapshots",
    summary="List the snapshots of a volume",
    raises=(errors.Invalid, errors.Unprocessable),
)
async def list_of_volume(
    context: SnapshotContext, call: RequestContext, path: SnapshotPath, query: PageQuery
) -> SnapshotList:
    """By the name that the volume had, or its id; it need not exist any more."""
    page = context.snapshots.list_snapshots(volume=path.name, **query.arguments())
    items = await map_in_turns(documents.snapshot_document, page.items)
    return SnapshotList(page.total, items, page.cursor)


@endpoint("POST", "/volume/{name}/restore", summary="Restore a snapshot", status=202, raises=_ERRORS)
async def restore(
    context: SnapshotContext,
    call: RequestContext,
    path: SnapshotPath,
    query: NamespaceQuery,
    body: RestoreInput,
) -> OperationDocument | Response:
    """Into the volume of the path, whose data are replaced when the copy is verified; or with `new_name` into
    a new one. A volume that is in use is 412, unless `stop` is set."""
    operation = await context.snapshots.restore(
        path.name,
        body.request(),
        actor=call.caller.name,
        namespace=namespaces.requested_namespace(query),
    )
    return _accepted(operation)


@endpoint("POST", "/volume/{name}/move", summary="Move a volume to another node", status=202, raises=_ERRORS)
async def move(
    context: SnapshotContext,
    call: RequestContext,
    path: SnapshotPath,
    query: NamespaceQuery,
    body: MoveInput,
) -> OperationDocument | Response:
    """What uses it is stopped, and started there. The data are removed here when the copy is verified and in
    use."""
    operation = await context.snapshots.move(
        path.name,
        body.request(),
        actor=call.caller.name,
        namespace=namespaces.requested_namespace(query),
    )
    return _accepted(operation)


@endpoint("GET", "/snapshot/", summary="List snapshots", raises=(errors.Invalid, errors.Unprocessable))
async def list_snapshots(
    context: SnapshotContext, call: RequestContext, query: SnapshotQuery
) -> SnapshotList:
    """In the order of their creation."""
    page = context.snapshots.list_snapshots(volume=query.volume or None, **query.arguments())
    items = await map_in_turns(documents.snapshot_document, page.items)
    return SnapshotList(page.total, items, page.cursor)


@endpoint("GET", "/snapshot/{name}", summary="Show a snapshot", raises=(errors.Invalid, errors.NotFound))
async def show(
    context: SnapshotContext, call: RequestContext, path: SnapshotPath, query: NamespaceQuery
) -> SnapshotDocument | Response:
    """By its name or its id."""
    record = await context.snapshots.read_snapshot(path.name, namespaces.requested_namespace(query))
    document = documents.snapshot_document(record.value)
    return rest_conventions.respond(document, etag=rest_conventions.etag(record.revision))


@endpoint("DELETE", "/snapshot/{name}", summary="Delete a snapshot with its data", status=202, raises=_ERRORS)
async def delete(
    context: SnapshotContext, call: RequestContext, path: SnapshotPath, query: NamespaceQuery
) -> OperationDocument | Response:
    """It is `DELETING` until its data are removed."""
    operation = await context.snapshots.delete(
        path.name, actor=call.caller.name, namespace=namespaces.requested_namespace(query)
    )
    return _accepted(operation)


@endpoint(
    "GET",
    "/volume-operation/",
    summary="List operations on volumes",
    raises=(errors.Invalid, errors.Unprocessable),
)
async def list_operations(context: SnapshotContext, call: RequestContext, query: PageQuery) -> OperationList:
    """Those that run, and those of the last day."""
    page = context.snapshots.list_operations(**query.arguments())
    items = await map_in_turns(documents.operation_document, page.items)
    return OperationList(page.total, items, page.cursor)


@endpoint(
    "GET",
    "/volume-operation/{id}",
    summary="Show an operation on a volume",
    raises=(errors.Invalid, errors.NotFound),
)
async def show_operation(
    context: SnapshotContext, call: RequestContext, path: OperationPath, query: NamespaceQuery
) -> OperationDocument | Response:
    """With its step and progress."""
    record = await context.snapshots.read_operation(path.id, namespaces.requested_namespace(query))
    document = documents.operation_document(record.value)
    return rest_conventions.respond(document, etag=rest_conventions.etag(record.revision))


@endpoint(
    "POST",
    "/volume-operation/{id}/cancel",
    summary="Cancel an operation on a volume",
    status=202,
    raises=_ERRORS,
)
async def cancel(
    context: SnapshotContext, call: RequestContext, path: OperationPath, query: NamespaceQuery
) -> OperationDocument | Response:
    """The volume stays as it is, and what was copied is removed. 412 if the copy has taken its place."""
    operation = await context.snapshots.cancel(
        path.id, actor=call.caller.name, namespace=namespaces.requested_namespace(query)
    )
    return _accepted(operation)


def _accepted(operation: VolumeOperation) -> Response:
    place = f"/namespace/{operation.namespace}/volume-operation/{operation.id}"
    return rest_conventions.respond(documents.operation_document(operation), 202, location=place)

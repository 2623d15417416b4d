"""`/volume/`: volumes over HTTP: list, show, create, delete.

Translation only: volumes are controlled by `skerry.control.volumes`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.kit.tasks import map_in_turns
from skerry.model import errors
from skerry.model.volumes import Volume
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire import namespaces, rest_conventions
from skerry.wire.namespaces import NamespaceQuery, NamespaceTarget, PageQuery
from skerry.wire.own.volumes import documents
from skerry.wire.own.volumes.context import VolumeContext
from skerry.wire.own.volumes.documents import VolumeDetails, VolumeDocument, VolumeInput


class VolumePath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128, description="Its name, or its id")]


class VolumeList(msgspec.Struct, frozen=True):
    """A page of volumes, the oldest first; `count` is how many there are in all."""

    count: int
    volumes: tuple[VolumeDocument, ...]
    cursor: str | None


@endpoint("GET", "/volume/", summary="List volumes", raises=(errors.Invalid, errors.Unprocessable))
async def list_volumes(context: VolumeContext, call: RequestContext, query: PageQuery) -> VolumeList:
    """In the order of their creation."""
    page = context.volumes.list(**query.arguments())
    items = await map_in_turns(
        lambda one: documents.volume_document(one, context.volumes.usage(one)), page.items
    )
    return VolumeList(page.total, items, page.cursor)


@endpoint("GET", "/volume/{name}", summary="Show a volume", raises=(errors.Invalid, errors.NotFound))
async def show(
    context: VolumeContext, call: RequestContext, path: VolumePath, query: NamespaceQuery
) -> VolumeDetails | Response:
    """By its name or its id, with what uses it."""
    record = await context.volumes.read(path.name, namespaces.requested_namespace(query))
    return _answer(context, record.value, etag=rest_conventions.etag(record.revision))


@endpoint(
    "PUT",
    "/volume/",
    summary="Create a volume",
    status=201,
    extra_statuses={200: "It exists already, with the same spec or the same Idempotency-Key."},
    raises=rest_conventions.CREATE_ERRORS,
    headers=rest_conventions.RETRY_HEADER,
)
async def create(
    context: VolumeContext, call: RequestContext, query: NamespaceTarget, body: VolumeInput
) -> VolumeDetails | Response:
    """It is `UNBOUND` until an instance uses it, and from then on on the node of that instance.

    Its name is unique in its namespace: 409 if there is a volume of that name with another size.
    """
    name, spec = body.volume()
    volume, is_new = await context.volumes.create(
        name,
        spec,
        actor=call.caller.name,
        namespace=namespaces.target_namespace(query, body.namespace),
        idempotency_key=call.idempotency_key,
    )
    place = f"/namespace/{volume.namespace}/volume/{volume.name}"
    return _answer(context, volume, status=201 if is_new else 200, location=place)


@endpoint(
    "DELETE",
    "/volume/{name}",
    summary="Delete a volume with its data",
    status=202,
    raises=(errors.Invalid, errors.NotFound, errors.FailedPrecondition, errors.Unavailable),
)
async def delete(
    context: VolumeContext, call: RequestContext, path: VolumePath, query: NamespaceQuery
) -> VolumeDetails | Response:
    """It is `DELETING` until its node has removed the data. Refused while an instance, a service, a job or a
    schedule uses it."""
    namespace = namespaces.requested_namespace(query)
    deleted = await context.volumes.delete(path.name, actor=call.caller.name, namespace=namespace)
    return _answer(context, deleted)


def _answer(context: VolumeContext, volume: Volume, *, status: int | None = None, **headers: str) -> Response:
    volumes = context.volumes
    document = documents.volume_details(volume, volumes.usage(volume), volumes.users(volume))
    return rest_conventions.respond(document, status, **headers)

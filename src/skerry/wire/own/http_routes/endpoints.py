"""`/route/`: routes over HTTP: list, show, create, change, delete.

Translation only: routes are controlled by `skerry.control.routes`.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from skerry.kit.tasks import map_in_turns
from skerry.model import errors
from skerry.model.routes import MAX_NAME, Route
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire import namespaces, rest_conventions
from skerry.wire.namespaces import NamespaceQuery, NamespaceTarget, PageQuery
from skerry.wire.own.http_routes import documents
from skerry.wire.own.http_routes.context import RouteContext
from skerry.wire.own.http_routes.documents import RouteDocument, RouteInput


class RoutePath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME, description="Its name, or its id")]


class RouteList(msgspec.Struct, frozen=True):
    """A page of routes, the oldest first; `count` is how many there are in all."""

    count: int
    routes: tuple[RouteDocument, ...]
    cursor: str | None


@endpoint("GET", "/route/", summary="List routes", raises=(errors.Invalid, errors.Unprocessable))
async def list_routes(context: RouteContext, call: RequestContext, query: PageQuery) -> RouteList:
    """In the order of their creation."""
    page = context.routes.list(**query.arguments())
    items = await map_in_turns(partial(_document, context), page.items)
    return RouteList(page.total, items, page.cursor)


@endpoint("GET", "/route/{name}", summary="Show a route", raises=(errors.Invalid, errors.NotFound))
async def show(
    context: RouteContext, call: RequestContext, path: RoutePath, query: NamespaceQuery
) -> RouteDocument | Response:
    """By its name or its id."""
    record = await context.routes.read(path.name, namespaces.requested_namespace(query))
    return rest_conventions.respond(
        _document(context, record.value), etag=rest_conventions.etag(record.revision)
    )


@endpoint(
    "PUT",
    "/route/",
    summary="Create a route",
    status=201,
    extra_statuses={200: "It exists already, with the same spec or the same Idempotency-Key."},
    raises=(*rest_conventions.CREATE_ERRORS, errors.FailedPrecondition),
    headers=rest_conventions.RETRY_HEADER,
)
async def create(
    context: RouteContext, call: RequestContext, query: NamespaceTarget, body: RouteInput
) -> RouteDocument | Response:
    """Edge nodes serve it as soon as they know it.

    409 if a route of that name has another spec, if the same host, path and headers have another route, or if
    the host belongs to another namespace.
    """
    name, spec = body.route()
    route, is_new = await context.routes.create(
        name,
        spec,
        actor=call.caller.name,
        namespace=namespaces.target_namespace(query, body.namespace),
        idempotency_key=call.idempotency_key,
    )
    place = f"/namespace/{route.namespace}/route/{route.name}"
    document = _document(context, route)
    return rest_conventions.respond(document, 201 if is_new else 200, location=place)


@endpoint(
    "PATCH",
    "/route/{name}",
    summary="Change a route",
    raises=(
        errors.Invalid,
        errors.NotFound,
        errors.AlreadyExists,
        errors.FailedPrecondition,
        errors.TooLarge,
        errors.Unavailable,
    ),
    headers=rest_conventions.MATCH_HEADER,
)
async def change(
    context: RouteContext, call: RequestContext, path: RoutePath, query: NamespaceQuery, body: RouteInput
) -> RouteDocument | Response:
    """A merge patch (RFC 7396): fields that are not given stay, null resets one to its default.

    Open connections, such as WebSockets, stay as they are.
    """
    namespace = namespaces.requested_namespace(query)
    record = await context.routes.read(path.name, namespace)
    namespaces.check_namespace_unchanged("a route", query, body.namespace, record.value.namespace)
    if body.name not in (UNSET, record.value.name):
        raise errors.Invalid("the name of a route cannot change; create another", field="name")
    route = await context.routes.change(
        path.name,
        body.changed,
        actor=call.caller.name,
        namespace=namespace,
        if_match=rest_conventions.check_if_match(call, lambda: record.revision),
    )
    return rest_conventions.respond(_document(context, route))


@endpoint(
    "DELETE",
    "/route/{name}",
    summary="Delete a route",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def delete(
    context: RouteContext, call: RequestContext, path: RoutePath, query: NamespaceQuery
) -> RouteDocument | Response:
    """Its host and path are free at once, and edge nodes answer 404."""
    namespace = namespaces.requested_namespace(query)
    route = await context.routes.delete(path.name, actor=call.caller.name, namespace=namespace)
    return rest_conventions.respond(documents.route_document(route))


def _document(context: RouteContext, route: Route) -> RouteDocument:
    return documents.route_document(route, context.problem_of(route))

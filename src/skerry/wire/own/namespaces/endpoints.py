"""`/namespace/`: namespaces over HTTP: list, show with use, create, change, delete; and connections.

Translation only. What is in a namespace is served below `/namespace/{namespace}/` by the dialects that have
it (`skerry.wire.namespaces`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.control.namespaces.registry import NamespaceRegistry, NamespaceState
from skerry.control.network.explanations import ConnectionExplainer
from skerry.kit.tasks import map_in_turns
from skerry.model import errors, ids
from skerry.model.connectivity import ConnectionRule
from skerry.model.ports import Protocol
from skerry.transport.http.endpoints import Endpoint, RequestContext, Response, endpoint
from skerry.wire import rest_conventions
from skerry.wire.namespaces import NamespacePath
from skerry.wire.own.namespaces.documents import (
    NamespaceChange,
    NamespaceDocument,
    NamespaceInput,
    namespace_document,
)


class NamespaceContext(msgspec.Struct, frozen=True):
    """The first argument of these endpoints."""

    namespaces: NamespaceRegistry
    connections: ConnectionExplainer


class NamespaceList(msgspec.Struct, frozen=True):
    """All namespaces, by name."""

    count: int
    namespaces: tuple[NamespaceDocument, ...]


@endpoint("GET", "/namespace/", summary="List namespaces")
async def list_namespaces(context: NamespaceContext, call: RequestContext) -> NamespaceList:
    """Those with a record, and those that have an object; a bound caller gets its own."""
    own = call.caller.scope.namespaces or ()
    states = [one for one in context.namespaces.list(own) if call.caller.scope.admits(one.name)]
    found = await map_in_turns(namespace_document, states)
    return NamespaceList(len(found), found)


@endpoint(
    "GET",
    "/namespace/{namespace}",
    summary="Show a namespace",
    raises=(errors.Invalid, errors.NotFound),
)
async def show(
    context: NamespaceContext, call: RequestContext, path: NamespacePath
) -> NamespaceDocument | Response:
    """With its quota, what is used of it, and its network policy."""
    name = ids.check_namespace(path.namespace)
    return _answer(await context.namespaces.read(name, exists=call.caller.scope.is_bound))


@endpoint(
    "PUT",
    "/namespace/",
    summary="Create a namespace",
    status=201,
    extra_statuses={200: "It exists already, with the same quota."},
    raises=(errors.Invalid, errors.AlreadyExists, errors.TooLarge, errors.Unavailable),
)
async def create(
    context: NamespaceContext, call: RequestContext, body: NamespaceInput
) -> NamespaceDocument | Response:
    """Only a quota or a policy needs it: a namespace also exists by being used."""
    name = ids.check_namespace(body.name)
    state, is_new = await context.namespaces.create(name, body.first_quota(), actor=call.caller.name)
    return _answer(state, status=201 if is_new else 200, location=f"/namespace/{name}")


@endpoint(
    "PATCH",
    "/namespace/{namespace}",
    summary="Change the quota or the network policy of a namespace",
    raises=(errors.Invalid, errors.FailedPrecondition, errors.Unavailable),
    headers=rest_conventions.MATCH_HEADER,
)
async def change(
    context: NamespaceContext, call: RequestContext, path: NamespacePath, body: NamespaceChange
) -> NamespaceDocument | Response:
    """A merge patch (RFC 7396). A namespace without a record gets one. A quota below what is used stops
    nothing: nothing more is admitted until less is used. A policy applies to running instances too, without a
    restart.
    """
    name = ids.check_namespace(path.namespace)
    before = await context.namespaces.revision(name)
    state = await context.namespaces.change(
        name,
        body.merge,
        actor=call.caller.name,
        if_match=rest_conventions.check_if_match(call, lambda: before),
    )
    return _answer(state)


@endpoint(
    "DELETE",
    "/namespace/{namespace}",
    summary="Delete a namespace",
    status=204,
    raises=(errors.Invalid, errors.NotFound, errors.FailedPrecondition, errors.Unavailable),
)
async def delete(context: NamespaceContext, call: RequestContext, path: NamespacePath) -> None:
    """Its record, with quota and policy; 412 while there is something in it."""
    await context.namespaces.delete(ids.check_namespace(path.namespace), actor=call.caller.name)


class ConnectionQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A connection; both ends are `[NAMESPACE/]NAME` of an instance or a service, `instance/NAME`,
    `service/NAME`, `node/NAME`, an IP address, or `internet`."""

    source: Annotated[str, Meta(description="Who connects", max_length=256)] = msgspec.field(name="from")
    destination: Annotated[str, Meta(description="To whom", max_length=256)] = msgspec.field(name="to")
    port: Annotated[
        int, Meta(ge=1, le=65535, description="Of the container; of a node, if that is the destination")
    ]
    protocol: Protocol = Protocol.TCP


class ConnectionDocument(msgspec.Struct, frozen=True):
    """Whether one container, or what else it is, may connect to another."""

    source: str = msgspec.field(name="from")
    destination: str = msgspec.field(name="to")
    allowed: bool
    rule: ConnectionRule
    node: Annotated[str, Meta(description="Where the rule holds; empty: on none")]
    reason: Annotated[str, Meta(description="For people")]


class ConnectionExplanation(msgspec.Struct, frozen=True):
    """Every connection between the copies of both ends."""

    allowed: Annotated[bool, Meta(description="All of them are")]
    connections: tuple[ConnectionDocument, ...]


@endpoint(
    "GET",
    "/namespace/{namespace}/explain",
    summary="Explain whether a connection is allowed",
    raises=(errors.Invalid, errors.NotFound, errors.FailedPrecondition),
)
async def explain_connection(
    context: NamespaceContext, call: RequestContext, path: NamespacePath, query: ConnectionQuery
) -> ConnectionExplanation:
    """By which rule, and on which node. Names are of this namespace, unless they name another that the caller
    may see.
    """
    found = context.connections.explain(
        (query.source, query.destination),
        query.port,
        query.protocol,
        namespace=ids.check_namespace(path.namespace),
        scope=call.caller.scope,
    )
    connections = tuple(
        ConnectionDocument(
            each.source.name,
            each.destination.name,
            each.verdict.is_allowed,
            each.verdict.rule,
            each.verdict.node,
            each.verdict.reason,
        )
        for each in found
    )
    return ConnectionExplanation(all(each.allowed for each in connections), connections)


def _answer(state: NamespaceState, *, status: int | None = None, **headers: str) -> Response:
    tag = {"etag": rest_conventions.etag(state.revision)} if state.revision else {}
    return rest_conventions.respond(namespace_document(state), status, **tag, **headers)


ENDPOINTS: tuple[Endpoint, ...] = (list_namespaces, show, create, change, delete, explain_connection)

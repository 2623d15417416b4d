"""`/instance/{id}/events` and `/instance/{id}/explain`: the events of an instance, and why it is not
placed."""

from __future__ import annotations

import msgspec

from skerry.model import errors
from skerry.model.statuses import InstanceStatus
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire import rest_conventions
from skerry.wire.diagnostic_documents import EventDocument, NodeVerdict, event_document, node_verdicts
from skerry.wire.kudo.context import KudoContext
from skerry.wire.kudo.rest_instances import InstancePath
from skerry.wire.namespaces import NamespaceQuery
from skerry.wire.rest_conventions import Limit, Offset


class InstanceEventsQuery(NamespaceQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many of the newest events."""

    limit: Limit = 100


class InstanceEvents(msgspec.Struct, frozen=True):
    """Events, the oldest first; `count` is how many are stored."""

    count: int
    events: tuple[EventDocument, ...]


class ExplainQuery(NamespaceQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which nodes."""

    limit: Limit = 100
    offset: Offset = 0


class Explanation(msgspec.Struct, frozen=True):
    """The feasibility of every node for an instance; `count` is the number of nodes, `fit` of those that are
    feasible."""

    id: str
    status: InstanceStatus
    reason: str
    count: int
    fit: int
    nodes: tuple[NodeVerdict, ...]


@endpoint(
    "GET",
    "/instance/{id}/events",
    summary="List the events of an instance",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def events(
    kudo: KudoContext, call: RequestContext, path: InstancePath, query: InstanceEventsQuery
) -> InstanceEvents | Response:
    """Every status it had, with the reason and the actor, as far back as events are stored.

    Without a namespace also those of a deleted instance, whose namespace is not known any more.
    """
    await kudo.check_in_namespace(path.id, query)
    found = await kudo.instances.events(path.id, reader=call.caller.scope)
    newest = found[-rest_conventions.page_size(query.limit) :]
    return InstanceEvents(
        len(found),
        tuple(map(event_document, newest)),
    )


@endpoint(
    "GET",
    "/instance/{id}/explain",
    summary="Explain the placement of an instance",
    raises=(errors.Invalid, errors.NotFound),
)
async def explain(
    kudo: KudoContext, call: RequestContext, path: InstancePath, query: ExplainQuery
) -> Explanation | Response:
    """For every node, as the scheduler decides: which filters reject it, and by how much."""
    await kudo.check_in_namespace(path.id, query)
    instance = kudo.instances.get(path.id)
    verdicts = kudo.instances.explain(path.id)
    shown = verdicts[query.offset : query.offset + rest_conventions.page_size(query.limit)]
    return Explanation(
        instance.id,
        instance.observed.status,
        instance.observed.reason,
        len(verdicts),
        sum(verdict.fits for verdict in verdicts),
        node_verdicts(shown, call.caller),
    )

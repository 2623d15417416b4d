"""`/instance/{id}/events` and `/instance/{id}/explain`: what happened to an instance, and why it waits."""

from __future__ import annotations

import msgspec

from skerry.model import errors
from skerry.model.statuses import InstanceStatus
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire import rest_conventions
from skerry.wire.diagnostic_documents import EventDocument, NodeVerdict, event_document, node_verdict
from skerry.wire.kudo.context import KudoContext
from skerry.wire.kudo.rest_instances import InstancePath
from skerry.wire.namespaces import NamespaceQuery
from skerry.wire.rest_conventions import Limit, Offset


class InstanceEventsQuery(NamespaceQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many, of the newest."""

    limit: Limit = 100


class InstanceEvents(msgspec.Struct, frozen=True):
    """The oldest first; `count` is how many are kept."""

    count: int
    events: tuple[EventDocument, ...]


class ExplainQuery(NamespaceQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which nodes."""

    limit: Limit = 100
    offset: Offset = 0


class Explanation(msgspec.Struct, frozen=True):
    """What every node says to an instance; `count` is how many nodes there are, `fit` how many could."""

    id: str
    status: InstanceStatus
    reason: str
    count: int
    fit: int
    nodes: tuple[NodeVerdict, ...]


@endpoint(
    "GET",
    "/instance/{id}/events",
    summary="What happened to an instance",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def events(
    kudo: KudoContext, call: RequestContext, path: InstancePath, query: InstanceEventsQuery
) -> InstanceEvents | Response:
    """Every status it had, with the reason and who it came from, as far back as events are kept.

    Without a namespace also of one that is gone, of which it is no longer known where it was.
    """
    await kudo.check_in_namespace(path.id, query)
    found = await kudo.instances.events(path.id)
    newest = found[-rest_conventions.page_size(query.limit) :]
    return InstanceEvents(
        len(found),
        tuple(map(event_document, newest)),
    )


@endpoint(
    "GET",
    "/instance/{id}/explain",
    summary="Why an instance is placed where it is, or nowhere",
    raises=(errors.Invalid, errors.NotFound),
)
async def explain(
    kudo: KudoContext, call: RequestContext, path: InstancePath, query: ExplainQuery
) -> Explanation | Response:
    """Asks every node as the scheduler does: which filter said no, and by how much."""
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
        tuple(map(node_verdict, shown)),
    )

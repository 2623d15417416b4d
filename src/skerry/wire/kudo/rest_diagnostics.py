"""`/instance/{id}/events` and `/instance/{id}/explain`: what happened to an instance, and why it waits."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.model import errors
from skerry.model.events import Event
from skerry.model.statuses import InstanceStatus
from skerry.schedule import explanations
from skerry.schedule.results import NodeFeasibility, Rejection
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire import spec_documents
from skerry.wire.kudo import envelope, rest_namespaces
from skerry.wire.kudo.context import KudoContext
from skerry.wire.kudo.envelope import Limit, Offset
from skerry.wire.kudo.rest_instances import InstancePath
from skerry.wire.kudo.rest_namespaces import NamespaceQuery
from skerry.wire.spec_documents import ResourceDocument


class InstanceEventsQuery(NamespaceQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many, of the newest."""

    limit: Limit = 100


class EventDocument(msgspec.Struct, frozen=True):
    """One thing that happened; `id` is its place in the stream of `/events`."""

    id: str
    kind: str
    at: Annotated[float, Meta(description="Seconds since the epoch")]
    actor: str
    reason: str
    data: dict[str, str]
    request_id: Annotated[str, Meta(description="Of the request that last changed what is desired")] = ""


class InstanceEvents(msgspec.Struct, frozen=True):
    """The oldest first; `count` is how many are kept."""

    count: int
    events: tuple[EventDocument, ...]


class ExplainQuery(NamespaceQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which nodes."""

    limit: Limit = 100
    offset: Offset = 0


class NodeVerdict(msgspec.Struct, frozen=True):
    """What one node says: every reason against it, in words and in numbers."""

    node_id: str
    fits: bool
    text: str
    free: ResourceDocument
    refusals: tuple[Rejection, ...]


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
    await rest_namespaces.check_in_namespace(kudo, path.id, query)
    told = await kudo.instances.events(path.id)
    newest = told[-envelope.page_size(query.limit) :]
    return InstanceEvents(
        len(told),
        tuple(_document(one.id, one.event) for one in newest),
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
    await rest_namespaces.check_in_namespace(kudo, path.id, query)
    instance = kudo.instances.get(path.id)
    verdicts = kudo.instances.explain(path.id)
    shown = verdicts[query.offset : query.offset + envelope.page_size(query.limit)]
    return Explanation(
        instance.id,
        instance.observed.status,
        instance.observed.reason,
        len(verdicts),
        sum(verdict.fits for verdict in verdicts),
        tuple(map(_verdict, shown)),
    )


def _document(id: str, event: Event) -> EventDocument:
    return EventDocument(
        id, event.kind, event.at, event.actor, event.reason, event.data, request_id=event.request_id
    )


def _verdict(verdict: NodeFeasibility) -> NodeVerdict:
    return NodeVerdict(
        verdict.node,
        verdict.fits,
        explanations.describe_feasibility(verdict),
        spec_documents.resource_document(verdict.free),
        verdict.refusals,
    )

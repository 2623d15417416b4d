"""Events of one object, and the feasibility of every node for an instance: documents of several dialects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.control.events.log import StoredEvent
from skerry.model.callers import Caller
from skerry.schedule import explanations
from skerry.schedule.results import NodeFeasibility, Rejection
from skerry.wire.spec_documents import ResourceDocument, resource_document


class EventDocument(msgspec.Struct, frozen=True):
    """One event; `id` is its position in the stream of `/events`."""

    id: str
    kind: str
    at: Annotated[float, Meta(description="Seconds since the epoch")]
    actor: str
    reason: str
    data: dict[str, str]
    request_id: Annotated[str, Meta(description="Of the request that last changed the desired state")] = ""


class NodeVerdict(msgspec.Struct, frozen=True):
    """Whether one node is feasible: every reason against it, as text and in numbers."""

    node_id: str
    fits: bool
    text: str
    free: ResourceDocument
    rejections: tuple[Rejection, ...] = msgspec.field(name="refusals")


def event_document(stored: StoredEvent) -> EventDocument:
    event = stored.event
    return EventDocument(
        stored.id, event.kind, event.at, event.actor, event.reason, event.data, request_id=event.request_id
    )


def node_verdicts(verdicts: Iterable[NodeFeasibility], caller: Caller) -> tuple[NodeVerdict, ...]:
    """The feasibility of nodes as `caller` may know it: one that is bound to namespaces is not told which
    instance has a port, as that may be of another namespace."""
    if caller.scope.is_bound:
        verdicts = map(explanations.without_instances, verdicts)
    return tuple(map(_node_verdict, verdicts))


def _node_verdict(verdict: NodeFeasibility) -> NodeVerdict:
    return NodeVerdict(
        verdict.node,
        verdict.fits,
        explanations.describe_feasibility(verdict),
        resource_document(verdict.free),
        verdict.rejections,
    )

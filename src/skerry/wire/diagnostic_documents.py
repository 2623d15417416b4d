"""Events of one object, and what every node says to an instance: documents that several dialects have."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.control.events.log import StoredEvent
from skerry.schedule import explanations
from skerry.schedule.results import NodeFeasibility, Rejection
from skerry.wire.spec_documents import ResourceDocument, resource_document


class EventDocument(msgspec.Struct, frozen=True):
    """One thing that happened; `id` is its place in the stream of `/events`."""

    id: str
    kind: str
    at: Annotated[float, Meta(description="Seconds since the epoch")]
    actor: str
    reason: str
    data: dict[str, str]
    request_id: Annotated[str, Meta(description="Of the request that last changed what is desired")] = ""


class NodeVerdict(msgspec.Struct, frozen=True):
    """What one node says: every reason against it, in words and in numbers."""

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


def node_verdict(verdict: NodeFeasibility) -> NodeVerdict:
    return NodeVerdict(
        verdict.node,
        verdict.fits,
        explanations.describe_feasibility(verdict),
        resource_document(verdict.free),
        verdict.rejections,
    )

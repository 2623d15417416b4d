"""`/node/`: the nodes of this cloud, for operators."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from skerry.control import paging
from skerry.kit.field_copy import copy_fields
from skerry.kit.tasks import map_in_turns
from skerry.model import errors
from skerry.model.cell_reports import CellReport
from skerry.model.nodes import Liveness, Node, NodeFacts, ReportedInstance
from skerry.model.statuses import InstanceStatus, NodeStatus
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire import rest_conventions, spec_documents
from skerry.wire.kudo import envelope
from skerry.wire.kudo.context import KudoContext
from skerry.wire.kudo.envelope import ENVELOPE, Envelope, Envelopes
from skerry.wire.rest_conventions import Cursor, Limit, Offset
from skerry.wire.spec_documents import ResourceDocument

_MAX_DRAIN_S = 30 * 86400

_RAISES = (errors.Invalid, errors.NotFound, errors.FailedPrecondition, errors.Unavailable)


class NodePath(msgspec.Struct, frozen=True):
    id: Annotated[
        str, Meta(min_length=1, max_length=256, description="Its id, or its name if that is unique")
    ]


class NodeQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which nodes."""

    limit: Limit = 100
    offset: Offset = 0
    cursor: Cursor = ""


class ReportedInstanceDocument(msgspec.Struct, frozen=True):
    """An instance that a foreign node reports; it need not be one of this cloud."""

    id: str
    name: str
    status: InstanceStatus
    uri: str
    limit: ResourceDocument
    usage: ResourceDocument


class NodeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A node of this cloud. Times are seconds since the epoch."""

    id: str
    name: str
    status: NodeStatus
    reason: Annotated[str, Meta(description="Reason of `status`, for people")]
    liveness: Annotated[Liveness, Meta(description="By its last heartbeat")]
    is_cordoned: Annotated[bool, Meta(description="Cordoned by an operator: it gets no new instances")]
    drain_by: Annotated[float | None, Meta(description="Drain deadline: its instances are evicted then")]
    is_foreign: Annotated[bool, Meta(description="It uses only Kudo's calls, and takes no orders")]
    resources: Annotated[ResourceDocument, Meta(description="Allocatable resources, used or not")]
    labels: dict[str, str]
    facts: NodeFacts
    subnet: str
    registered_at: float
    reported_at: Annotated[float, Meta(description="Time of the last stored change")]
    last_report_at: Annotated[
        float | None, Meta(description="When a foreign node last reported to this server; null: never")
    ]
    usage: Annotated[
        ResourceDocument | None, Meta(description="Usage that a foreign node reported; null: none")
    ]
    instances: (
        Annotated[
            tuple[ReportedInstanceDocument, ...] | None,
            Meta(description="Instances that a foreign node reported; null: none. Not in lists"),
        ]
        | UnsetType
    ) = UNSET


class NodeList(msgspec.Struct, frozen=True):
    """A page of nodes, by id; `count` is how many there are in all."""

    count: int
    nodes: tuple[NodeDocument, ...]
    cursor: str | None


class CellDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A cell of a node, with everything in it."""

    name: Annotated[str, Meta(description="Its parents and its own, divided by `/`")]
    owner: Annotated[str | None, Meta(description="`container`, `contract` or `functions`; null: a client's")]
    instance_id: Annotated[str | None, Meta(description="Of the instance that runs in it; null: none")]
    function: Annotated[
        str | None, Meta(description="That it is a worker of, with its namespace; null: none")
    ]
    cpu: Annotated[int, Meta(description="Thousandths of a core that it uses now")]
    cpu_limit: Annotated[int | None, Meta(description="Thousandths of a core; null: none of its own")]
    memory_bytes: Annotated[int, Meta(description="That it uses now")]
    memory_limit: Annotated[int | None, Meta(description="MB; null: none of its own")]
    pids: int
    executables: Annotated[
        tuple[str, ...], Meta(description="Names of those that run, the first 16; `running` counts all")
    ]
    running: int


class CellList(msgspec.Struct, frozen=True):
    """All cells of a node, by name."""

    count: int
    cells: tuple[CellDocument, ...]


class CordonRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reason."""

    reason: Annotated[str, Meta(max_length=256, description="For people")] = ""


class DrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The drain deadline."""

    within_s: Annotated[
        float | None,
        Meta(description="Seconds; remaining instances are evicted then. Without it: `fleet.drain_s`"),
    ] = None


class LabelsPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A merge patch: labels that are not named stay, those that are null are removed."""

    labels: dict[str, str | None]


class UnregisterQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options."""

    force: Annotated[bool, Meta(description="Also with instances, which are then placed on other nodes")] = (
        False
    )


@endpoint(
    "GET",
    "/node/",
    summary="List nodes",
    raises=(errors.Invalid,),
    other_media={ENVELOPE: Envelopes[NodeDocument]},
)
async def list_nodes(kudo: KudoContext, call: RequestContext, query: NodeQuery) -> NodeList | Response:
    """By id. The header `X-Total-Count` has the `count`, too."""
    found = paging.paginate_sorted(
        kudo.nodes.list(),
        _place,
        limit=rest_conventions.page_size(query.limit),
        offset=query.offset,
        cursor=query.cursor or None,
    )
    items = await map_in_turns(partial(_document, kudo), found.items)
    return envelope.page_response(call, NodeList(found.total, items, found.cursor), items)


@endpoint(
    "GET",
    "/node/{id}",
    summary="Show a node",
    raises=(errors.Invalid, errors.NotFound, errors.FailedPrecondition),
    other_media={ENVELOPE: Envelope[NodeDocument]},
)
async def show(kudo: KudoContext, call: RequestContext, path: NodePath) -> NodeDocument | Response:
    """By its id, or by its name if no other node has the same."""
    return _answer(kudo, call, kudo.nodes.get(path.id))


@endpoint("GET", "/node/{id}/cells", summary="List the cells of a node", raises=(*_RAISES, errors.TimedOut))
async def list_cells(kudo: KudoContext, call: RequestContext, path: NodePath) -> CellList:
    """With what each uses, measured now by the node: instances, workers of functions, cells of clients and of
    contracts. 412 from a node that does not list its cells."""
    found = await map_in_turns(_cell_document, await kudo.cells.list(path.id))
    return CellList(len(found), found)


@endpoint(
    "POST",
    "/node/{id}/cordon",
    summary="Cordon a node",
    raises=_RAISES,
    other_media={ENVELOPE: Envelope[NodeDocument]},
)
async def cordon(
    kudo: KudoContext, call: RequestContext, path: NodePath, body: CordonRequest | None
) -> NodeDocument | Response:
    """It gets no new instances, and keeps those that it has."""
    options = body or CordonRequest()
    return _answer(
        kudo, call, await kudo.nodes.cordon(path.id, actor=call.caller.name, reason=options.reason)
    )


@endpoint(
    "POST",
    "/node/{id}/uncordon",
    summary="Uncordon a node",
    raises=_RAISES,
    other_media={ENVELOPE: Envelope[NodeDocument]},
)
async def uncordon(kudo: KudoContext, call: RequestContext, path: NodePath) -> NodeDocument | Response:
    """It gets instances again. Ends a drain, too."""
    return _answer(kudo, call, await kudo.nodes.uncordon(path.id, actor=call.caller.name))


@endpoint(
    "POST",
    "/node/{id}/drain",
    summary="Drain a node",
    raises=_RAISES,
    other_media={ENVELOPE: Envelope[NodeDocument]},
)
async def drain(
    kudo: KudoContext, call: RequestContext, path: NodePath, body: DrainRequest | None
) -> NodeDocument | Response:
    """Its instances are stopped and placed on other nodes, and it gets no new ones."""
    within_s = body.within_s if body else None
    if within_s is not None and not 0 <= within_s <= _MAX_DRAIN_S:
        raise errors.Invalid(f"within_s must be 0 to {_MAX_DRAIN_S} seconds", field="within_s")
    by = None if within_s is None else kudo.clock.now() + within_s
    return _answer(kudo, call, await kudo.nodes.drain(path.id, actor=call.caller.name, by=by))


@endpoint(
    "PATCH",
    "/node/{id}",
    summary="Change the labels of a node",
    raises=_RAISES,
    other_media={ENVELOPE: Envelope[NodeDocument]},
)
async def relabel(
    kudo: KudoContext, call: RequestContext, path: NodePath, body: LabelsPatch
) -> NodeDocument | Response:
    """Constraints of workloads match these. Running instances stay where they are."""
    node = kudo.nodes.get(path.id)
    merged = {**node.labels, **body.labels}
    labels = {key: value for key, value in merged.items() if value is not None}
    return _answer(kudo, call, await kudo.nodes.relabel(node.id, labels, actor=call.caller.name))


@endpoint("DELETE", "/node/{id}", summary="Unregister a node", status=204, raises=_RAISES)
async def unregister(kudo: KudoContext, call: RequestContext, path: NodePath, query: UnregisterQuery) -> None:
    """Refused while it has instances; drain it first. A machine that still runs Skerry registers again."""
    await kudo.nodes.unregister(path.id, actor=call.caller.name, force=query.force)


def _answer(kudo: KudoContext, call: RequestContext, node: Node) -> Response:
    report = kudo.nodes.foreign_report(node.id)
    there = None if report is None else report.instances
    shown = None if there is None else tuple(map(_reported_document, there))
    return envelope.document_response(call, replace(_document(kudo, node), instances=shown))


def _document(kudo: KudoContext, node: Node) -> NodeDocument:
    report = kudo.nodes.foreign_report(node.id)
    usage = None if report is None else report.usage
    return copy_fields(
        NodeDocument,
        node,
        liveness=kudo.nodes.liveness(node.id),
        resources=spec_documents.resource_document(node.resources),
        last_report_at=None if report is None else report.at,
        usage=None if usage is None else spec_documents.resource_document(usage),
        instances=UNSET,
    )


def _reported_document(instance: ReportedInstance) -> ReportedInstanceDocument:
    return ReportedInstanceDocument(
        instance.id,
        instance.name,
        instance.status,
        instance.uri,
        spec_documents.resource_document(instance.limit),
        spec_documents.resource_document(instance.usage),
    )


def _cell_document(report: CellReport) -> CellDocument:
    return copy_fields(
        CellDocument,
        report,
        instance_id=report.instance or None,
        function=report.function or None,
        cpu_limit=report.limits.cpu_quota,
        memory_limit=report.limits.memory,
    )


def _place(node: Node) -> str:
    return f"node/{node.id}"

"""`/mesh/`: how nodes reach each other, over HTTP.

Translation only: the mesh is decided by `skerry.control.mesh`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from itertools import combinations, pairwise

import msgspec

from skerry.control.mesh import decisions
from skerry.control.mesh.peers import MeshPeers, MeshView
from skerry.control.mesh.tables import MeshTables
from skerry.kit.clock import Clock
from skerry.kit.tasks import map_in_turns
from skerry.model.ids import NodeId
from skerry.model.mesh import MeshLink
from skerry.transport.http.endpoints import Endpoint, RequestContext, endpoint


class MeshContext(msgspec.Struct, frozen=True):
    """The first argument of these endpoints."""

    peers: MeshPeers
    tables: MeshTables
    clock: Clock


class MeshPath(enum.StrEnum):
    """How packets go between two nodes."""

    DIRECT = "direct"
    RELAYED = "relayed"
    TRYING = "trying"  # nobody knows yet
    NONE = "none"  # they cannot reach each other, and no node can relay
    LOCAL = "local"  # they share a machine


class MeshNodeDocument(msgspec.Struct, frozen=True):
    """A node of the mesh. `behind_nat`: it is not reached at its own address. `borrowed`: it belongs to
    another cloud, and is part of this one by a contract."""

    id: str
    name: str
    subnets: tuple[str, ...]
    public_key: str
    port: int
    observed_address: str
    behind_nat: bool
    relays: bool
    borrowed: bool


class MeshPairDocument(msgspec.Struct, frozen=True):
    """Two nodes. Bytes are those of the direct link, as `from` sees them. The round trip of a relayed pair is
    the sum of its links."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    path: MeshPath
    relays: tuple[str, ...]
    round_trip_ms: float | None
    handshake_age_s: float | None
    bytes_sent: int
    bytes_received: int
    endpoint: str


class MeshDocument(msgspec.Struct, frozen=True):
    """The mesh; `nodes` and `pairs` by name. `absent`: nodes with containers that have not reported
    themselves, by name: their warnings say why."""

    encryption: str
    nodes: tuple[MeshNodeDocument, ...]
    pairs: tuple[MeshPairDocument, ...]
    absent: tuple[str, ...]


@endpoint("GET", "/mesh/", summary="Show the mesh")
async def show(context: MeshContext, call: RequestContext) -> MeshDocument:
    """Every pair of nodes: direct or relayed by whom, round trip, last handshake, and bytes."""
    return await mesh_document(context)


async def mesh_document(context: MeshContext) -> MeshDocument:
    """The mesh as it is now."""
    view, tables = context.peers.view, context.tables
    links = {NodeId(id): record.value.links.by_node for id, record in tables.links.items()}
    view = view._replace(graph=view.graph._replace(links=links))  # with the latest measurements
    names = {id: node.name for id, node in view.nodes.items()}
    ordered = sorted(view.nodes, key=lambda id: (names[id], id))
    nodes = []
    for id in ordered:
        record = tables.nodes.value(id)
        if record is None:
            continue
        nodes.append(
            MeshNodeDocument(
                id,
                names[id],
                (view.nodes[id].subnet,),
                record.node.public_key,
                record.node.port,
                record.observed,
                id not in view.graph.public,
                record.node.relays,
                view.nodes[id].is_borrowed,
            )
        )
    now = context.clock.now()
    pairs = await map_in_turns(lambda pair: _pair(view, names, *pair, now), combinations(ordered, 2))
    absent = tuple(sorted(node.name for node in context.peers.absent()))
    return MeshDocument(context.peers.encryption.value, tuple(nodes), pairs, absent)


def _pair(
    view: MeshView, names: dict[NodeId, str], one: NodeId, other: NodeId, now: float
) -> MeshPairDocument:
    link = view.graph.links.get(one, {}).get(other)
    back = view.graph.links.get(other, {}).get(one)
    path, between = _path(view, one, other)
    hops = [one, *between, other]
    round_trip = _sum(_round_trip(view, near, far) for near, far in pairwise(hops))
    shown = link or back or MeshLink(other)
    handshake = max((each.handshake_at for each in (link, back) if each is not None), default=0.0)
    return MeshPairDocument(
        names[one],
        names[other],
        path,
        tuple(names[node] for node in between),
        round_trip if path in (MeshPath.DIRECT, MeshPath.RELAYED) else None,
        round(max(0.0, now - handshake), 1) if handshake else None,
        shown.sent if link is not None else shown.received,
        shown.received if link is not None else shown.sent,
        link.endpoint if link is not None else "",
    )


def _path(view: MeshView, one: NodeId, other: NodeId) -> tuple[MeshPath, list[NodeId]]:
    if other not in view.peers.get(one, {}):
        return MeshPath.LOCAL, []
    if other in view.hops.get(one, {}):
        between = decisions.path(view.hops, one, other)
        return (MeshPath.RELAYED if between else MeshPath.DIRECT), between
    is_unknown = decisions.link_state(view.graph, one, other) is None
    return (MeshPath.TRYING if is_unknown else MeshPath.NONE), []


def _round_trip(view: MeshView, one: NodeId, other: NodeId) -> float | None:
    ends = (view.graph.links.get(one, {}).get(other), view.graph.links.get(other, {}).get(one))
    measured = [each.round_trip_ms for each in ends if each is not None and each.round_trip_ms is not None]
    return min(measured, default=None)


def _sum(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return round(total, 2)


ENDPOINTS: tuple[Endpoint, ...] = (show,)

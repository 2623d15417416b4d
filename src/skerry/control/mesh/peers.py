"""The peers of every node of the mesh: a source of `skerry.control.network.feed`.

Takes reports of nodes, keeps them (`skerry.control.mesh.tables`), and derives from them what each node is
told. Decides nothing itself (`skerry.control.mesh.decisions`), and takes no claim of a node about its
subnets: those are the registry's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from skerry.control.mesh import decisions
from skerry.control.mesh.decisions import MeshGraph
from skerry.control.mesh.tables import MeshLinksRecord, MeshTables, lasting_links
from skerry.control.nodes.registry import NodeRegistry
from skerry.kit.callbacks import CallbackList
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.mesh import MeshEncryption, MeshLink, MeshLinks, MeshNode, MeshPeer
from skerry.model.network_objects import NetworkKey, NetworkObject, ObjectChange
from skerry.model.nodes import Liveness, Node
from skerry.store.tables.table import RecordChange

_PAUSE_S: Final = 0.05  # changes within this time are one
# Of a borrowed node, whatever it reports. It dials: what its provider names as its addresses, our nodes would
# send packets to. It relays for nobody, and so is sent, and accepted from, its own subnet only.
_BORROWED: Final = {"addresses": (), "endpoints": (), "relays": False, "machine": ""}


class MeshView(NamedTuple):
    """The mesh at one moment."""

    nodes: Mapping[NodeId, Node]
    graph: MeshGraph
    hops: Mapping[NodeId, Mapping[NodeId, NodeId]]
    peers: Mapping[NodeId, Mapping[NodeId, MeshPeer]]  # of each node


class MeshPeers:
    """What nodes are told of the mesh."""

    def __init__(
        self,
        nodes: NodeRegistry,
        tables: MeshTables,
        encryption: MeshEncryption,
        observed: Callable[[NodeId], str] = lambda node: "",
        pause_s: float = _PAUSE_S,
    ) -> None:
        """`observed`: the address that the session of a node comes from; empty if it is not known."""
        self._nodes = nodes
        self._tables = tables
        self._encryption = encryption
        self.observed = observed
        self._pause_s = pause_s
        self._changed = asyncio.Event()
        self._sent: Mapping[NodeId, Mapping[NodeId, MeshPeer]] = {}
        self._listeners: CallbackList[[NodeId | None, NetworkKey, NetworkObject | None]] = CallbackList()
        self.view = MeshView({}, MeshGraph((), {}, (), (), ()), {}, {})
        self._links_revision = 0  # without those that differ in measurements only
        self._inputs: object = None  # that `view` was derived from
        tables.nodes.subscribe(lambda changes: self._changed.set())
        tables.links.subscribe(self._links_changed)
        nodes.listen(lambda node: self._changed.set())

    @property
    def encryption(self) -> MeshEncryption:
        return self._encryption

    def absent(self) -> Sequence[Node]:
        """Nodes with containers that have not reported themselves."""
        if self._encryption is MeshEncryption.NONE:
            return []
        return [
            node
            for node in self._nodes.list()
            if node.subnet and node.has_network and self._tables.nodes.get(node.id) is None
        ]

    def objects(self, node: NodeId) -> Iterable[NetworkObject]:
        self._refresh()
        return list(self._sent.get(node, {}).values())

    def listen(self, changed: ObjectChange) -> None:
        self._listeners.add(changed)

    async def ready(self) -> None:
        await self._nodes.ready()
        await self._tables.ready()

    async def node_reported(self, node: NodeId, objects: Sequence[NetworkObject]) -> None:
        """Handle `MeshNode`s; a node reports itself only."""
        for each in objects:
            if isinstance(each, MeshNode) and self._is_own(node, each.node):
                own = replace(each, **_BORROWED) if self._nodes.get(node).is_borrowed else each
                await self._tables.put_node(own, self.observed(node))

    async def links_reported(self, node: NodeId, objects: Sequence[NetworkObject]) -> None:
        """Handle `MeshLinks`."""
        for each in objects:
            if isinstance(each, MeshLinks) and self._is_own(node, each.node):
                links = each
                if self._nodes.get(node).is_borrowed:  # as with its own addresses
                    links = replace(each, links=tuple(replace(link, endpoint="") for link in each.links))
                await self._tables.put_links(links)

    def _is_own(self, node: NodeId, reported: NodeId) -> bool:
        if node != reported:
            raise errors.Forbidden("a node reports itself only, and no other node of the mesh")
        found = None if self._nodes.condition(node) is None else self._nodes.get(node)
        return found is not None and found.has_network

    async def run(self) -> None:
        """Tell nodes what changes, for ever."""
        await self._nodes.ready()
        await self._tables.ready()
        while True:
            self._changed.clear()
            for node in self._tables.nodes.ids():
                id = NodeId(node)
                if self._nodes.condition(id) is None or not self._nodes.get(id).has_network:
                    await self._tables.remove(id)
            self._refresh()
            await self._changed.wait()
            await asyncio.sleep(self._pause_s)

    def _links_changed(self, changes: Sequence[RecordChange[MeshLinksRecord]]) -> None:
        if any(lasting_links(change.before) != lasting_links(change.after) for change in changes):
            self._links_revision += 1
            self._changed.set()

    def _refresh(self) -> None:
        present = [node for node in self._nodes.list() if self._tables.nodes.get(node.id) is not None]
        inputs = (
            self._links_revision,
            [(key, record.revision) for key, record in self._tables.nodes.items()],
            [
                (node.id, node.name, self._subnets(node), self._nodes.liveness(node.id), node.has_network)
                for node in present
            ],
        )
        if inputs == self._inputs:
            return
        self._inputs = inputs
        self.view = self._derive()
        before, self._sent = self._sent, self.view.peers
        for node in before.keys() | self._sent.keys():
            was, now = before.get(node, {}), self._sent.get(node, {})
            for peer in was.keys() | now.keys():
                if was.get(peer) != now.get(peer):
                    self._listeners.notify(node, NetworkKey(MeshPeer.kind, peer), now.get(peer))

    def _derive(self) -> MeshView:
        records = {NodeId(key): record.value for key, record in self._tables.nodes.items()}
        nodes = {
            id: node
            for id in records
            if self._nodes.condition(id) is not None
            and (node := self._nodes.get(id)).subnet
            and node.has_network
        }
        links = {NodeId(key): record.value.links.by_node for key, record in self._tables.links.items()}
        graph = MeshGraph(
            nodes=nodes.keys(),
            links=links,
            live={id for id in nodes if self._nodes.liveness(id) is Liveness.LIVE},
            relays={id for id in nodes if records[id].node.relays},
            public={id for id in nodes if decisions.is_public(records[id].node, records[id].observed)},
        )
        if self._encryption is MeshEncryption.NONE:
            return MeshView({}, MeshGraph((), {}, (), (), ()), {}, {})
        hops = decisions.decide_next_hops(graph)
        seen = _seen_endpoints(links)
        peers: dict[NodeId, dict[NodeId, MeshPeer]] = {}
        for id in nodes:
            mine = records[id].node
            peers[id] = {}
            for other, node in nodes.items():
                theirs, observed = records[other].node, records[other].observed
                if other == id or (mine.machine and mine.machine == theirs.machine):
                    continue
                hop = hops[id].get(other)
                peers[id][other] = MeshPeer(
                    other,
                    node.name,
                    theirs.public_key,
                    self._subnets(node),
                    decisions.candidate_endpoints(theirs, observed, seen.get(other, ()), mine.addresses),
                    theirs.next_key,
                    None if hop in (None, other) else hop,
                    _known_key(mine, links.get(other, {}).get(id)),
                    self._encryption,
                )
        return MeshView(nodes, graph, hops, peers)

    def _subnets(self, node: Node) -> tuple[str, ...]:
        return (node.subnet, *sorted(self._nodes.former_subnets(node.id)))


def _seen_endpoints(links: Mapping[NodeId, Mapping[NodeId, MeshLink]]) -> dict[NodeId, set[str]]:
    """Where neighbours see the packets of each node come from."""
    seen: dict[NodeId, set[str]] = {}
    for ends in links.values():
        for link in ends.values():
            if link.is_up and link.endpoint:
                seen.setdefault(link.node, set()).add(link.endpoint)
    return seen


def _known_key(node: MeshNode, link: MeshLink | None) -> str:
    """The newest key of `node` that the other end accepts."""
    if link is None:
        return ""
    return node.next_key if node.next_key and link.next_key == node.next_key else link.public_key

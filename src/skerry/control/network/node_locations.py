"""Locations of nodes, for all nodes: names, areas and subnets. A source of `skerry.control.network.feed`."""

from __future__ import annotations

from collections.abc import Iterable

from skerry.control.nodes.registry import NodeRegistry
from skerry.kit.callbacks import CallbackList
from skerry.model.ids import NodeId
from skerry.model.network_objects import NetworkKey, NetworkObject, NodeLocation, ObjectChange
from skerry.model.nodes import Node


class NodeLocations:
    """The locations of all nodes with containers."""

    def __init__(self, nodes: NodeRegistry) -> None:
        self._nodes = nodes
        self._sent: dict[NodeId, NodeLocation] = {}
        self._listeners: CallbackList[[NodeId | None, NetworkKey, NetworkObject | None]] = CallbackList()
        nodes.listen(self._changed)

    def objects(self, node: NodeId) -> Iterable[NetworkObject]:
        return [location for each in self._nodes.list() if (location := location_of(each)) is not None]

    def listen(self, changed: ObjectChange) -> None:
        self._listeners.add(changed)

    async def ready(self) -> None:
        await self._nodes.ready()

    def _changed(self, node: NodeId) -> None:
        known = self._nodes.condition(node) is not None
        location = location_of(self._nodes.get(node)) if known else None
        if location == self._sent.get(node):
            return
        if location is None:
            del self._sent[node]
        else:
            self._sent[node] = location
        self._listeners.notify(None, NetworkKey(NodeLocation.kind, node), location)


def location_of(node: Node) -> NodeLocation | None:
    """None: it runs no containers of this cloud's network."""
    if node.is_foreign or not node.subnet:
        return None
    area = "" if node.member is None else node.member.area
    return NodeLocation(node.id, node.name, area, (node.subnet,))

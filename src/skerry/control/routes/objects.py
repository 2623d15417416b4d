"""Routes for edge nodes: a source of `skerry.control.network.feed`. Other nodes get none."""

from __future__ import annotations

from collections.abc import Iterable

from skerry.control.network.feed import ObjectChange
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.routes.table import RouteRecord, RouteTable
from skerry.kit.callbacks import CallbackList
from skerry.model.container_options import NodeFeature
from skerry.model.ids import NodeId
from skerry.model.network_objects import NetworkKey, NetworkObject
from skerry.model.routes import Route, RouteObject


class RouteObjects:
    """All routes, for each edge node."""

    def __init__(self, table: RouteTable, nodes: NodeRegistry) -> None:
        self._table = table
        self._nodes = nodes
        self._listeners: CallbackList[[NodeId | None, NetworkKey, NetworkObject | None]] = CallbackList()
        table.listen(self._changed)

    def objects(self, node: NodeId) -> Iterable[NetworkObject]:
        if not self._is_edge(node):
            return ()
        return [route_object(route) for route in self._table.values()]

    def listen(self, changed: ObjectChange) -> None:
        self._listeners.add(changed)

    async def sync(self) -> None:
        await self._table.sync()

    def _is_edge(self, node: NodeId) -> bool:
        known = self._nodes.condition(node) is not None
        return known and NodeFeature.EDGE in self._nodes.get(node).facts.features

    def _changed(self, before: RouteRecord | None, after: RouteRecord | None) -> None:
        value = None if after is None else route_object(after.value)
        old = None if before is None else route_object(before.value)
        if value == old:
            return
        gone = [] if old is None or (value is not None and value.id == old.id) else [old]
        for node in [each.id for each in self._nodes.list() if NodeFeature.EDGE in each.facts.features]:
            for one in gone:
                self._listeners.notify(node, one.network_key, None)
            if value is not None:
                self._listeners.notify(node, value.network_key, value)


def route_object(route: Route) -> RouteObject:
    return RouteObject(route.id, route.name, route.namespace, route.spec)

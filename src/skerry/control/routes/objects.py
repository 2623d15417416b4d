"""Routes for edge nodes: a source of `skerry.control.network.feed`. Other nodes get none."""

from __future__ import annotations

from collections.abc import Iterable

from skerry.control.named_table import NamedTable
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.routes.table import RouteRecord, RouteTable
from skerry.kit.callbacks import CallbackList
from skerry.model.container_options import NodeFeature
from skerry.model.ids import NodeId
from skerry.model.network_objects import NetworkKey, NetworkObject, ObjectChange
from skerry.model.routes import Route, RouteObject, TargetKind
from skerry.model.services import Service
from skerry.store.tables.table import Record


class RouteObjects:
    """All routes, for each edge node."""

    def __init__(self, table: RouteTable, services: NamedTable[Service], nodes: NodeRegistry) -> None:
        self._table = table
        self._services = services
        self._nodes = nodes
        self._listeners: CallbackList[[NodeId | None, NetworkKey, NetworkObject | None]] = CallbackList()
        table.listen(self._changed)
        services.listen(self._service_changed)

    def objects(self, node: NodeId) -> Iterable[NetworkObject]:
        if not self._is_edge(node):
            return ()
        return [self._object(route) for route in self._table.values()]

    def listen(self, changed: ObjectChange) -> None:
        self._listeners.add(changed)

    async def ready(self) -> None:
        await self._table.ready()
        await self._services.ready()

    def _is_edge(self, node: NodeId) -> bool:
        known = self._nodes.condition(node) is not None
        return known and NodeFeature.EDGE in self._nodes.get(node).facts.features

    def _changed(self, before: RouteRecord | None, after: RouteRecord | None) -> None:
        value = None if after is None else self._object(after.value)
        old = None if before is None else self._object(before.value)
        if value == old:
            return
        if old is not None and (value is None or value.id != old.id):
            self._notify(old.network_key, None)
        if value is not None:
            self._notify(value.network_key, value)

    def _service_changed(self, before: Record[Service] | None, after: Record[Service] | None) -> None:
        """Routes to a service whose autoscaling begins or ends to reach zero have changed."""
        was, now = (one is not None and can_sleep(one.value) for one in (before, after))
        known = after or before
        if was == now or known is None:
            return
        for route in self._table.values():
            if is_target(route, known.value):
                value = self._object(route)
                self._notify(value.network_key, value)

    def _notify(self, key: NetworkKey, value: NetworkObject | None) -> None:
        for each in self._nodes.list():
            if NodeFeature.EDGE in each.facts.features:
                self._listeners.notify(each.id, key, value)

    def _object(self, route: Route) -> RouteObject:
        target = route.spec.target
        wakes = False
        if target is not None and target.kind is TargetKind.SERVICE:
            record = self._services.by_name(target.name, route.namespace)
            wakes = record is not None and can_sleep(record.value)
        return RouteObject(route.id, route.name, route.namespace, route.spec, wakes)


def can_sleep(service: Service) -> bool:
    """True if autoscaling may leave it without copies."""
    return service.autoscale is not None and service.autoscale.min == 0 and not service.is_deleting


def is_target(route: Route, service: Service) -> bool:
    target = route.spec.target
    return (
        target is not None
        and target.kind is TargetKind.SERVICE
        and (target.name, route.namespace) == (service.name, service.namespace)
    )

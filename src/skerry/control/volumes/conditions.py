"""Conditions of nodes without the disk that volumes have there: for whoever sells what is left.

Placement accounts for volumes itself (`skerry.control.placement.volume_bindings`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from skerry.control.nodes.conditions import NodeCondition, NodeConditions
from skerry.control.volumes.table import VolumeRecord, VolumeTable
from skerry.model.ids import NodeId
from skerry.model.resources import Gigabytes


class ConditionsWithoutVolumes:
    """All registered nodes, as `NodeConditions`."""

    def __init__(self, conditions: NodeConditions, volumes: VolumeTable) -> None:
        self._conditions = conditions
        self._volumes = volumes

    async def ready(self) -> None:
        await self._conditions.ready()
        await self._volumes.ready()

    def condition(self, node: NodeId) -> NodeCondition | None:
        found = self._conditions.condition(node)
        return None if found is None else self._without(found)

    def conditions(self) -> Iterable[NodeCondition]:
        return map(self._without, self._conditions.conditions())

    def listen(self, changed: Callable[[NodeId], None]) -> Callable[[], None]:
        """Also whenever a volume is bound to a node or removed from it."""

        def volume_changed(before: VolumeRecord | None, after: VolumeRecord | None) -> None:
            was = None if before is None else before.value.node
            now = None if after is None else after.value.node
            if was != now:
                for node in (was, now):
                    if node is not None:
                        changed(node)

        stops = (self._conditions.listen(changed), self._volumes.listen(volume_changed))

        def stop() -> None:
            for one in stops:
                one()

        return stop

    def _without(self, condition: NodeCondition) -> NodeCondition:
        view = condition.view
        used = sum(record.value.size for record in self._volumes.on_node(view.id))
        if not used:
            return condition
        resources = replace(view.resources, disk=Gigabytes(max(0, view.resources.disk - used)))
        return replace(condition, view=replace(view, resources=resources))

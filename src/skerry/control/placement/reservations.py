"""Room that is promised: of a node, to instances that may not exist yet, and to nobody else meanwhile.

It is kept in the books of the fleet as if somebody were there, for exactly as long as who is to have it has
no place: so it is never given away, and never counted twice. It ends by being taken back, and by nothing
else. Part of `skerry.control.placement.planner`, which says who has a place; what is promised the market
knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeVar

from skerry.model.ids import InstanceId, NodeId
from skerry.model.resources import Resources
from skerry.schedule.requests import PlacementRequest
from skerry.schedule.scheduler import Scheduler

T = TypeVar("T")


class CapacityReservation(NamedTuple):
    """Room of a node that nobody else gets."""

    node: NodeId
    resources: Resources


class ReservedCapacity:
    """What is promised, and kept in `scheduler`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._to: dict[InstanceId, CapacityReservation] = {}
        self._of: dict[NodeId, Mapping[InstanceId, Resources]] = {}

    def set(self, node: NodeId, reserved: Mapping[InstanceId, Resources]) -> list[InstanceId]:
        """So much of `node` is promised, instead of what was before; gives to whom something has changed."""
        before = self._of.pop(node, {})
        if reserved:
            self._of[node] = reserved
        changed = [id for id in before.keys() - reserved.keys() if self.node_of(id) == node]
        for id in changed:
            del self._to[id]
        for id, resources in reserved.items():
            reservation = CapacityReservation(node, resources)
            if self._to.get(id) != reservation:
                self._to[id] = reservation
                changed.append(id)
        return changed

    def node_of(self, id: InstanceId) -> NodeId | None:
        """The node of which something is promised to an instance."""
        reservation = self._to.get(id)
        return None if reservation is None else reservation.node

    def amounts(self, node: NodeId) -> Collection[Resources]:
        """The parts of a node that are promised, whether or not they are taken already."""
        return self._of.get(node, {}).values()

    def update(self, id: InstanceId, *, has_place: bool) -> NodeId | None:
        """Keep what is promised to an instance, unless it has a place; the node on which that was changed."""
        reservation, name = None if has_place else self._to.get(id), _placeholder(id)
        before, request = self._scheduler.node_of(name), self._scheduler.request_of(name)
        if reservation is None:
            self._scheduler.unbind(name)
        elif (before, request) == (reservation.node, PlacementRequest(name, reservation.resources)):
            return None
        else:
            self._scheduler.bind(reservation.node, PlacementRequest(name, reservation.resources))
        return before

    def without(self, id: InstanceId, answer: Callable[[], T]) -> T:
        """The answer of a fleet in which nothing is kept for this instance: that is not in its own way."""
        name = _placeholder(id)
        node, request = self._scheduler.node_of(name), self._scheduler.request_of(name)
        self._scheduler.unbind(name)
        try:
            return answer()
        finally:
            if node is not None and request is not None:
                self._scheduler.bind(node, request)


def _placeholder(id: InstanceId) -> InstanceId:
    """What room is kept under; no instance can be called that."""
    return InstanceId(f"{id}++")

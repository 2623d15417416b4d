"""Reserved capacity: resources of a node that are kept for instances which may not exist yet.

A reservation is bound in the scheduler like a request, for exactly as long as its instance is not placed: so
its resources are never given away, and never counted twice. It ends only when it is withdrawn. Part of
`skerry.control.placement.planner`, which knows which instances are placed; the market decides on
reservations.
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
    """Resources of a node, reserved for one instance."""

    node: NodeId
    resources: Resources


class ReservedCapacity:
    """All reservations, bound in `scheduler`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._to: dict[InstanceId, CapacityReservation] = {}
        self._of: dict[NodeId, Mapping[InstanceId, Resources]] = {}

    def set(self, node: NodeId, reserved: Mapping[InstanceId, Resources]) -> list[InstanceId]:
        """Replace the reservations on `node`; the instances whose reservation changed."""
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
        """The node on which resources are reserved for an instance."""
        reservation = self._to.get(id)
        return None if reservation is None else reservation.node

    def amounts(self, node: NodeId) -> Collection[Resources]:
        """The reserved resources of a node, whether or not their instances are placed."""
        return self._of.get(node, {}).values()

    def update(self, id: InstanceId, *, has_place: bool) -> NodeId | None:
        """Bind the reservation of an instance, unless that is placed; the node on which the binding
        changed."""
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
        """The answer without the reservation of this instance, which must not hinder the instance itself."""
        name = _placeholder(id)
        node, request = self._scheduler.node_of(name), self._scheduler.request_of(name)
        self._scheduler.unbind(name)
        try:
            return answer()
        finally:
            if node is not None and request is not None:
                self._scheduler.bind(node, request)


def _placeholder(id: InstanceId) -> InstanceId:
    """The id under which a reservation is bound; no instance can have it."""
    return InstanceId(f"{id}++")

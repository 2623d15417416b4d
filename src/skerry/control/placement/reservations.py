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
    room: Resources


class ReservedCapacity:
    """What is promised, and kept in `fleet`."""

    def __init__(self, fleet: Scheduler) -> None:
        self._fleet = fleet
        self._to: dict[InstanceId, CapacityReservation] = {}
        self._of: dict[NodeId, Mapping[InstanceId, Resources]] = {}

    def set(self, node: NodeId, promised: Mapping[InstanceId, Resources]) -> list[InstanceId]:
        """So much of `node` is promised, instead of what was before; gives to whom something has changed."""
        before = self._of.pop(node, {})
        if promised:
            self._of[node] = promised
        changed = [id for id in before.keys() - promised.keys() if self.home(id) == node]
        for id in changed:
            del self._to[id]
        for id, room in promised.items():
            promise = CapacityReservation(node, room)
            if self._to.get(id) != promise:
                self._to[id] = promise
                changed.append(id)
        return changed

    def home(self, id: InstanceId) -> NodeId | None:
        """The node of which something is promised to an instance."""
        promise = self._to.get(id)
        return None if promise is None else promise.node

    def rooms(self, node: NodeId) -> Collection[Resources]:
        """The parts of a node that are promised, whether or not they are taken already."""
        return self._of.get(node, {}).values()

    def mind(self, id: InstanceId, *, has_place: bool) -> NodeId | None:
        """Keep what is promised to an instance, unless it has a place; the node on which that was changed."""
        promise, name = None if has_place else self._to.get(id), _kept(id)
        before, ask = self._fleet.bound(name), self._fleet.ask(name)
        if promise is None:
            self._fleet.unbind(name)
        elif (before, ask) == (promise.node, PlacementRequest(name, promise.room)):
            return None
        else:
            self._fleet.bind(promise.node, PlacementRequest(name, promise.room))
        return before

    def without(self, id: InstanceId, answer: Callable[[], T]) -> T:
        """The answer of a fleet in which nothing is kept for this instance: that is not in its own way."""
        name = _kept(id)
        node, ask = self._fleet.bound(name), self._fleet.ask(name)
        self._fleet.unbind(name)
        try:
            return answer()
        finally:
            if node is not None and ask is not None:
                self._fleet.bind(node, ask)


def _kept(id: InstanceId) -> InstanceId:
    """What room is kept under; no instance can be called that."""
    return InstanceId(f"{id}++")

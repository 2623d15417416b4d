"""The placement queue: pending instances, the oldest first, each tried only when it may fit.

If one instance fits on no node, no other with the same request does. So a request that was refused is parked
with all its instances, and tried again only when there is new capacity that could fit it. An attempt costs
one search, however many wait; parked instances get the reason. Pure bookkeeping:
`skerry.control.placement.planner` searches.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

from skerry.model.ids import InstanceId, NodeId
from skerry.model.resources import Resources
from skerry.schedule.requests import PlacementRequest

# The reason of the oldest waiting instance is updated at most this often: each time is a write.
REPORT_AGAIN_S = 10.0
# Dead entries of a queue are cleared away when they are more than the living and this many.
_SLACK = 64


QueueKey = tuple[tuple[Any, ...], NodeId | None]


class _Shape:
    """All instances with the same request."""

    __slots__ = ("count", "key", "number", "queue", "reason", "reported_at", "resources", "unreported")

    def __init__(self, key: QueueKey, number: int, resources: Resources) -> None:
        self.key = key
        self.number = number
        self.resources = resources
        self.count = 0
        self.queue: list[tuple[str, InstanceId]] = []  # a heap; removed ones are skipped
        self.unreported: dict[InstanceId, None] = {}
        self.reason: str | None = None  # while it is parked
        self.reported_at = float("-inf")


class _QueuedInstance(NamedTuple):
    position: str  # by age
    request: PlacementRequest
    shape: _Shape


class PlacementQueue:
    """The queue."""

    def __init__(self) -> None:
        self._waiting: dict[InstanceId, _QueuedInstance] = {}
        self._shapes: dict[QueueKey, _Shape] = {}
        self._numbers = count()
        self._ready: list[tuple[str, int, _Shape]] = []  # a heap of shapes to be tried, by their eldest
        self._reported: dict[InstanceId, str] = {}
        self._to_report: deque[tuple[InstanceId, str]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self, request: PlacementRequest, position: str, reason: str, reserved_node: NodeId | None = None
    ) -> None:
        """Add an instance at `position` in the order of age; `reason` is why it waits, if known.

        `reserved_node` is a node with a reservation for it, which is not for others of its shape.
        """
        key = (request.shape, reserved_node)
        before = self._waiting.get(request.instance)
        if before is not None:
            if before.request == request and before.shape.key == key:
                if self._reported.get(request.instance, reason) != reason and before.shape.reason is not None:
                    self._to_report.append(
                        (request.instance, before.shape.reason)
                    )  # that did not get through
                return
            self.discard(request.instance)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = _Shape(key, next(self._numbers), request.resources)
        self._waiting[request.instance] = _QueuedInstance(position, request, shape)
        shape.count += 1
        heapq.heappush(shape.queue, (position, request.instance))
        if shape.reason is not None:
            self._to_report.append((request.instance, shape.reason))
            return
        shape.unreported[request.instance] = None
        if shape.queue[0][0] == position:
            heapq.heappush(self._ready, (position, shape.number, shape))

    def discard(self, instance: InstanceId) -> None:
        """Who waited does not any more."""
        waiting = self._waiting.pop(instance, None)
        if waiting is None:
            return
        shape = waiting.shape
        shape.count -= 1
        self._reported.pop(instance, None)
        shape.unreported.pop(instance, None)
        if not shape.count:
            del self._shapes[shape.key]
        elif len(shape.queue) > 2 * shape.count + _SLACK:
            shape.queue = [entry for entry in shape.queue if self._is_of(shape, *entry)]
            heapq.heapify(shape.queue)

    def oldest(self) -> PlacementRequest | None:
        """The instance to try next, None if there is none."""
        while self._ready:
            position, number, shape = self._ready[0]
            head = None if shape.reason is not None else self._head(shape)
            if head is None:
                heapq.heappop(self._ready)
            elif head.position == position:
                return head.request
            else:
                heapq.heapreplace(self._ready, (head.position, number, shape))
        return None

    def park(self, request: PlacementRequest, reason: str, now: float) -> None:
        """There is no place for what `request` is the shape of."""
        shape = self._waiting[request.instance].shape
        shape.reason = reason
        if now - shape.reported_at >= REPORT_AGAIN_S:
            shape.reported_at = now
            shape.unreported[request.instance] = None
        self._to_report.extend((instance, reason) for instance in shape.unreported)
        shape.unreported.clear()

    def wake(self, could_hold: Callable[[Resources], bool]) -> None:
        """Capacity came: shapes that it could hold are worth a try again."""
        for shape in [shape for shape in self._shapes.values() if shape.reason is not None]:
            if could_hold(shape.resources):
                shape.reason = None
                if (head := self._head(shape)) is not None:
                    heapq.heappush(self._ready, (head.position, shape.number, shape))

    def take_reports(self, limit: int) -> Iterator[tuple[InstanceId, str]]:
        """At most `limit` of the instances that need a new reason, with the reason."""
        while self._to_report and limit > 0:
            instance, reason = self._to_report.popleft()
            if instance in self._waiting:
                limit -= 1
                self._reported[instance] = reason
                yield instance, reason

    @property
    def is_idle(self) -> bool:
        """True if there is no instance to try, and none that needs a new reason."""
        return not self._to_report and self.oldest() is None

    def _head(self, shape: _Shape) -> _QueuedInstance | None:
        """Its eldest."""
        while shape.queue:
            if self._is_of(shape, *shape.queue[0]):
                return self._waiting[shape.queue[0][1]]
            heapq.heappop(shape.queue)
        return None

    def _is_of(self, shape: _Shape, position: str, instance: InstanceId) -> bool:
        waiting = self._waiting.get(instance)
        return waiting is not None and waiting.shape is shape and waiting.position == position

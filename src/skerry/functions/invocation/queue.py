"""The queue of calls that wait for a worker, and their order.

Classes share workers by their weights (weighted fair queueing): a class that got less than its share comes
first, and an idle one saves nothing up. Within a class the earliest deadline comes first, and among equals
the first in. Each function has its own queue, because a free worker helps only its own function; the shares
are those of the node. It decides only the order; the dispatcher decides which calls can be served.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Sequence
from itertools import count

from skerry.functions.invocation.worker_pool import FunctionWorkers, WorkerSlot
from skerry.model import errors

_MOMENTS = 64


class QueuedCall:
    """One call that waits. A subclass has what follows: `grant` or `abort`, once, from the event loop."""

    __slots__ = ("arrived", "group", "is_queued", "limit", "number", "qos_class")

    def __init__(self, group: FunctionWorkers, qos_class: int, arrived: float, limit: float) -> None:
        self.group = group
        self.qos_class = qos_class
        self.arrived = arrived
        self.limit = limit  # it waits no longer than this
        self.number = 0
        self.is_queued = False

    @property
    def has_left(self) -> bool:
        """True if its caller has left, and it was not removed yet."""
        return False

    def grant(self, slot: WorkerSlot) -> None:
        """It has a worker, with the call already counted in it."""
        raise NotImplementedError

    def abort(self, reason: Exception) -> None:
        """It gets none."""
        raise NotImplementedError


class AwaitedCall(QueuedCall):
    """A call whose task waits for its worker."""

    __slots__ = ("granted",)

    def __init__(
        self,
        group: FunctionWorkers,
        qos_class: int,
        arrived: float,
        limit: float,
        granted: asyncio.Future[WorkerSlot],
    ) -> None:
        super().__init__(group, qos_class, arrived, limit)
        self.granted = granted

    @property
    def has_left(self) -> bool:
        return self.granted.done()

    def grant(self, slot: WorkerSlot) -> None:
        self.granted.set_result(slot)

    def abort(self, reason: Exception) -> None:
        if not self.granted.done():
            self.granted.set_exception(reason)


class CallQueue:
    """All waiting calls."""

    def __init__(self, weights: Sequence[int]) -> None:
        if not weights or min(weights) < 1:
            raise errors.Invalid("weights of classes must be whole numbers above 0", field="classes")
        self.count = 0
        self._weights = tuple(weights)
        self._class_clocks = [0.0] * len(weights)  # of each class: how much of its share it has had
        self._waiting = [0] * len(weights)
        self._clock = 0.0  # of the call that was served last
        self._heaps: dict[FunctionWorkers, list[list[tuple[float, int, QueuedCall]]]] = {}
        self._numbers = count()
        self._moments: deque[float] = deque(
            maxlen=_MOMENTS
        )  # when calls got a worker, since the queue was empty

    def add(self, waiter: QueuedCall) -> None:
        """Classes beyond the last weight count as the last."""
        group = waiter.group
        if not self.count:
            self._moments.clear()
            self._moments.append(waiter.arrived)
        qos_class = waiter.qos_class = min(waiter.qos_class, len(self._weights) - 1)
        if not self._waiting[qos_class]:
            self._class_clocks[qos_class] = max(self._class_clocks[qos_class], self._clock)
        heaps = self._heaps.get(group)
        if heaps is None:
            heaps = self._heaps[group] = [[] for _ in self._weights]
        waiter.number = next(self._numbers)
        waiter.is_queued = True
        heapq.heappush(heaps[qos_class], (waiter.limit, waiter.number, waiter))
        self._waiting[qos_class] += 1
        self.count += 1
        group.waiting += 1

    def remove(self, waiter: QueuedCall) -> None:
        """Remove a call that is cancelled or served; nothing if it is removed already."""
        if not waiter.is_queued:
            return
        group = waiter.group
        waiter.is_queued = False  # its entry in the heap is removed when it comes to the top
        self._waiting[waiter.qos_class] -= 1
        self.count -= 1
        group.waiting -= 1
        if not group.waiting:
            del self._heaps[group]

    def serve(self, waiter: QueuedCall, now: float) -> None:
        """Remove a call that has got a worker, and charge its class."""
        self.remove(waiter)
        qos_class = waiter.qos_class
        self._clock = self._class_clocks[qos_class]
        self._class_clocks[qos_class] += 1.0 / self._weights[qos_class]
        self._moments.append(now)

    def pace_s(self, now: float) -> float | None:
        """How long it took of late until the next call got a worker; None if that is not known."""
        served = len(self._moments) - 1
        return (now - self._moments[0]) / served if served > 0 else None

    def first(self, group: FunctionWorkers) -> QueuedCall | None:
        """The next call of this function."""
        heaps = self._heaps.get(group)
        if heaps is None:
            return None
        best: QueuedCall | None = None
        for qos_class, heap in enumerate(heaps):
            while heap and not heap[0][2].is_queued:
                heapq.heappop(heap)
            if heap and (best is None or self._class_clocks[qos_class] < self._class_clocks[best.qos_class]):
                best = heap[0][2]
        return best

    def groups(self, *, undecided: bool = False) -> list[FunctionWorkers]:
        """The functions with waiting calls, in the order of their next calls; with `undecided`, without those
        whose calls all have a place in a worker that starts."""
        groups = [each for each in self._heaps if not each.has_places] if undecided else list(self._heaps)
        if len(groups) <= 1:
            return groups
        ranked = []
        for group in groups:
            head = self.first(group)
            assert head is not None, "a group is dropped when its last waiter leaves"
            ranked.append((self._class_clocks[head.qos_class], head.limit, head.number, group))
        ranked.sort(key=lambda entry: entry[:3])
        return [group for _, _, _, group in ranked]

    def all_waiting(self) -> list[QueuedCall]:
        """All waiting calls, in no order."""
        return [waiter for group in list(self._heaps) for waiter in self.of(group)]

    def of(self, group: FunctionWorkers) -> list[QueuedCall]:
        """All waiting calls of this function, in no order."""
        heaps = self._heaps.get(group, [])
        return [waiter for heap in heaps for _, _, waiter in heap if waiter.is_queued]

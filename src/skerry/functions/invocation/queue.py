"""Calls that wait for a worker, and in which order they get one.

Classes share the turns by their weights: a class that gave others more than its share comes first, and one
that was away saves nothing up. Within a class the earliest deadline comes first, and among equals whoever
came first. Each function has its own line, since a free worker helps only its own function; the shares are
those of the node. Decides order only: who can be served at all is the dispatcher's business.
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
    """One call that waits; `granted` gets the worker's slot with the call already counted in it."""

    __slots__ = ("arrived", "granted", "is_in_line", "limit", "line", "number", "qos_class")

    def __init__(
        self,
        line: FunctionWorkers,
        qos_class: int,
        arrived: float,
        limit: float,
        granted: asyncio.Future[WorkerSlot],
    ) -> None:
        self.line = line
        self.qos_class = qos_class
        self.arrived = arrived
        self.limit = limit  # it waits no longer than this
        self.granted = granted
        self.number = 0
        self.is_in_line = False


class CallQueue:
    """Everybody who waits."""

    def __init__(self, weights: Sequence[int]) -> None:
        if not weights or min(weights) < 1:
            raise errors.Invalid("weights of classes must be whole numbers above 0", field="classes")
        self.count = 0
        self._weights = tuple(weights)
        self._turns = [0.0] * len(weights)  # of each class: how much of its share it has had
        self._waiting = [0] * len(weights)
        self._turn = 0.0  # of whoever was served last
        self._heaps: dict[FunctionWorkers, list[list[tuple[float, int, QueuedCall]]]] = {}
        self._numbers = count()
        self._moments: deque[float] = deque(maxlen=_MOMENTS)  # when calls got a worker, since nobody waited

    def add(self, waiter: QueuedCall) -> None:
        """Classes beyond the last weight count as the last."""
        line = waiter.line
        if not self.count:
            self._moments.clear()
            self._moments.append(waiter.arrived)
        qos_class = waiter.qos_class = min(waiter.qos_class, len(self._weights) - 1)
        if not self._waiting[qos_class]:
            self._turns[qos_class] = max(self._turns[qos_class], self._turn)
        heaps = self._heaps.get(line)
        if heaps is None:
            heaps = self._heaps[line] = [[] for _ in self._weights]
        waiter.number = next(self._numbers)
        waiter.is_in_line = True
        heapq.heappush(heaps[qos_class], (waiter.limit, waiter.number, waiter))
        self._waiting[qos_class] += 1
        self.count += 1
        line.waiting += 1

    def remove(self, waiter: QueuedCall) -> None:
        """Take out one who gives up or is served; nothing if it is out already."""
        if not waiter.is_in_line:
            return
        line = waiter.line
        waiter.is_in_line = False  # its place in the heap is cleared when it comes to the top
        self._waiting[waiter.qos_class] -= 1
        self.count -= 1
        line.waiting -= 1
        if not line.waiting:
            del self._heaps[line]

    def serve(self, waiter: QueuedCall, now: float) -> None:
        """Take out one who has got a worker; its class pays with its turn."""
        self.remove(waiter)
        qos_class = waiter.qos_class
        self._turn = self._turns[qos_class]
        self._turns[qos_class] += 1.0 / self._weights[qos_class]
        self._moments.append(now)

    def pace_s(self, now: float) -> float | None:
        """How long it took of late until the next call got a worker; None if that is not known."""
        served = len(self._moments) - 1
        return (now - self._moments[0]) / served if served > 0 else None

    def first(self, line: FunctionWorkers) -> QueuedCall | None:
        """Whose turn it is among those who wait for this function."""
        heaps = self._heaps.get(line)
        if heaps is None:
            return None
        best: QueuedCall | None = None
        for qos_class, heap in enumerate(heaps):
            while heap and not heap[0][2].is_in_line:
                heapq.heappop(heap)
            if heap and (best is None or self._turns[qos_class] < self._turns[best.qos_class]):
                best = heap[0][2]
        return best

    def lines(self) -> list[FunctionWorkers]:
        """The functions that are waited for, in the order of whose turn it is."""
        if len(self._heaps) == 1:
            return list(self._heaps)
        ranked = []
        for line in self._heaps:
            head = self.first(line)
            assert head is not None, "a line is dropped when its last waiter leaves"
            ranked.append((self._turns[head.qos_class], head.limit, head.number, line))
        ranked.sort(key=lambda entry: entry[:3])
        return [line for _, _, _, line in ranked]

    def everyone(self) -> list[QueuedCall]:
        """All who wait, in no order."""
        return [waiter for line in list(self._heaps) for waiter in self.of(line)]

    def of(self, line: FunctionWorkers) -> list[QueuedCall]:
        """All who wait for this function, in no order."""
        heaps = self._heaps.get(line, [])
        return [waiter for heap in heaps for _, _, waiter in heap if waiter.is_in_line]

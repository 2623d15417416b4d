"""Deadlines of the ledger: on a clock that does not step, and in the order in which they come.

Deadlines are wall times, because records and signed contracts have them. While a process runs they are
compared with the wall time of its start plus the monotonic clock: setting the machine's clock neither ends a
hold early nor gives it more time. Nothing here is durable: the records are, and a new process arms every
deadline again.
"""

from __future__ import annotations

import heapq
import math

from skerry.kit.clock import Clock
from skerry.model.ids import OfferId


class SteadyClock:
    """Wall time that only goes on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.now() - clock.monotonic()

    def now(self) -> float:
        """In whole milliseconds, as contracts write times."""
        return round(self._offset + self._clock.monotonic(), 3)


class OfferDeadlines:
    """When to check which flavor; one that is armed twice is checked at the earlier time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, OfferId]] = []
        self._armed: dict[OfferId, float] = {}

    def arm(self, flavor: OfferId, at: float) -> bool:
        """Look at it then, if not before; True if that is now the first of all."""
        if at >= self._armed.get(flavor, math.inf):
            return False
        self._armed[flavor] = at
        heapq.heappush(self._heap, (at, flavor))
        return self._heap[0] == (at, flavor)

    def first(self) -> float | None:
        """When the next one comes."""
        while self._heap and self._armed.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # it was armed for an earlier time, and checked then
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> list[OfferId]:
        """The flavors that are due now; they are no longer armed."""
        due = []
        while (at := self.first()) is not None and at <= now:
            _, flavor = heapq.heappop(self._heap)
            del self._armed[flavor]
            due.append(flavor)
        return due

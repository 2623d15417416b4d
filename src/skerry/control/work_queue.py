"""What a controller has to look at: keys, each once, at once or at a time, and none while it is worked on.

Used by the loops of services and jobs. Holds no clock and wakes nobody: who uses it says what time it is, and
rests until `next_at`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=str)


class WorkQueue(Generic[K]):
    """Keys in the order in which they were added."""

    def __init__(self) -> None:
        self._due: OrderedDict[K, None] = (
            OrderedDict()
        )  # whose first is found at once, also after many others
        self._later: dict[K, float] = {}
        self._times: list[tuple[float, K]] = []  # a heap; entries that `_later` does not confirm are old
        self._under_way: set[K] = set()

    def clear(self) -> None:
        """Forget everything, also what is worked on."""
        self._due.clear()
        self._later.clear()
        self._times.clear()
        self._under_way.clear()

    def add(self, key: K) -> None:
        """Look at it as soon as nobody works on it."""
        self._due[key] = None

    def add_all(self, keys: Iterable[K]) -> None:
        self._due.update((key, None) for key in keys)

    def add_at(self, key: K, at: float | None) -> None:
        """Look at it at `at`, if it is not looked at before; None: no longer at a time."""
        if at is None:
            self._later.pop(key, None)
        elif self._later.get(key) != at:
            self._later[key] = at
            heapq.heappush(self._times, (at, key))

    def discard(self, key: K) -> None:
        """It is not there any more."""
        self._due.pop(key, None)
        self._later.pop(key, None)

    def take(self, now: float) -> K | None:
        """The next one that is due, which is worked on from now until `done`; None: there is none."""
        while self._times and self._times[0][0] <= now:
            at, key = heapq.heappop(self._times)
            if self._later.get(key) == at:
                del self._later[key]
                self._due[key] = None
        for key in self._due:
            if key not in self._under_way:
                del self._due[key]
                self._later.pop(key, None)
                self._under_way.add(key)
                return key
        return None

    def done(self, key: K) -> None:
        """Nobody works on it any more."""
        self._under_way.discard(key)

    def next_at(self) -> float | None:
        """When the next one is due that is not due yet."""
        while self._times and self._later.get(self._times[0][1]) != self._times[0][0]:
            heapq.heappop(self._times)
        return self._times[0][0] if self._times else None

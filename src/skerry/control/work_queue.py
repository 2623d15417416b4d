"""The work queue of a controller: keys, each at most once, due now or at a time, and not while worked on.

Used by `skerry.control.controller_loop`. It has no clock and wakes nobody: its user passes the time, and
waits until `next_at`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict


class WorkQueue:
    """Keys in the order in which they were added."""

    def __init__(self) -> None:
        # Ordered, because its first key is found at once also after many were removed.
        self._due: OrderedDict[str, None] = OrderedDict()
        self._later: dict[str, float] = {}
        self._times: list[tuple[float, str]] = []  # a heap; entries that are not in `_later` are old
        self._in_progress: set[str] = set()

    def clear(self) -> None:
        """Remove all keys, also those that are worked on."""
        self._due.clear()
        self._later.clear()
        self._times.clear()
        self._in_progress.clear()

    def add(self, key: str) -> None:
        """The key is due now, or when it is no longer worked on."""
        self._due[key] = None

    def add_at(self, key: str, at: float | None) -> None:
        """The key is due at `at`, unless it is before; None: at no time."""
        if at is None:
            self._later.pop(key, None)
        elif self._later.get(key) != at:
            self._later[key] = at
            heapq.heappush(self._times, (at, key))

    def take(self, now: float, most: int) -> list[str]:
        """The next keys that are due, which are worked on from now until `done`."""
        while self._times and self._times[0][0] <= now:
            at, key = heapq.heappop(self._times)
            if self._later.get(key) == at:
                del self._later[key]
                self._due[key] = None
        taken: list[str] = []
        for key in self._due:
            if len(taken) == most:
                break
            if key not in self._in_progress:
                taken.append(key)
        for key in taken:
            del self._due[key]
            self._later.pop(key, None)
        self._in_progress.update(taken)
        return taken

    def done(self, key: str) -> None:
        """The key is no longer worked on."""
        self._in_progress.discard(key)

    def next_at(self) -> float | None:
        """The time at which the next key becomes due, None if there is none."""
        while self._times and self._later.get(self._times[0][1]) != self._times[0][0]:
            heapq.heappop(self._times)
        return self._times[0][0] if self._times else None

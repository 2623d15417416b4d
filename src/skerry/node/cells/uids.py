"""Allocates uids of cells: each cell has one that no other on the node has, the lowest that is free.

`Cells` allocates one for each cell, releases it when the cell is gone, and claims those of adopted cells. No
accounts are created: a user is a number.
"""

from __future__ import annotations

import heapq

from skerry.model import errors


class UidAllocator:
    """`count` uids from `first` on."""

    def __init__(self, first: int, count: int) -> None:
        self._first = first
        self._count = count
        self._next = first  # no uid from here on was ever allocated, unless it was claimed
        self._free: list[int] = []  # a heap of released ones below
        self._used: set[int] = set()

    def claim(self, uid: int) -> bool:
        """Allocate exactly `uid`, inside the range or not; False if it is in use."""
        if uid in self._used:
            return False
        self._used.add(uid)
        return True

    def allocate(self) -> int:
        """The lowest free one."""
        while self._free:
            if (uid := heapq.heappop(self._free)) not in self._used:
                self._used.add(uid)
                return uid
        while self._next < self._first + self._count:
            uid, self._next = self._next, self._next + 1
            if uid not in self._used:
                self._used.add(uid)
                return uid
        raise errors.ResourcesExhausted(
            f"this node has its limit of {self._count} cells; free one, or raise the setting node.max_cells"
        )

    def release(self, uid: int) -> None:
        self._used.discard(uid)
        if self._first <= uid < self._next:
            heapq.heappush(self._free, uid)

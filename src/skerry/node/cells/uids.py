"""Users for cells: each cell has one that nobody else on the node has, the lowest that is free.

`Cells` takes one for each cell, gives it back when the cell is gone, and claims those of adopted cells.
Nothing here makes an account: a user is a number.
"""

from __future__ import annotations

import heapq

from skerry.model import errors


class UidAllocator:
    """`count` users from `first` on."""

    def __init__(self, first: int, count: int) -> None:
        self._first = first
        self._count = count
        self._next = first  # every user from here on was never taken, unless it was claimed
        self._free: list[int] = []  # a heap of those below
        self._taken: set[int] = set()

    def claim(self, uid: int) -> bool:
        """Take exactly `uid`, inside the range or not; False if it is taken."""
        if uid in self._taken:
            return False
        self._taken.add(uid)
        return True

    def take(self) -> int:
        """The lowest free one."""
        while self._free:
            if (uid := heapq.heappop(self._free)) not in self._taken:
                self._taken.add(uid)
                return uid
        while self._next < self._first + self._count:
            uid, self._next = self._next, self._next + 1
            if uid not in self._taken:
                self._taken.add(uid)
                return uid
        raise errors.ResourcesExhausted(
            f"this node has its {self._count} cells; free one, or raise the setting node.max_cells"
        )

    def give_back(self, uid: int) -> None:
        self._taken.discard(uid)
        if self._first <= uid < self._next:
            heapq.heappush(self._free, uid)

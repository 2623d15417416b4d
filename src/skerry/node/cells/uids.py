"""Allocates uids of cells: each cell has one that no other on the node has, the lowest that is free.

`Cells` allocates one for each cell, releases it when the cell is gone, and claims those of adopted cells. No
accounts are created: a user is a number.
"""

from __future__ import annotations

import heapq

from skerry.model import errors


class SharedUid:
    """The same uid for `count` cells, where a node has no other."""

    def __init__(self, uid: int, count: int) -> None:
        self._uid = uid
        self._count = count
        self._used = 0

    def claim(self, uid: int) -> bool:
        self._used += 1
        return True

    def allocate(self) -> int:
        if self._used >= self._count:
            raise _too_many(self._count)
        self._used += 1
        return self._uid

    def release(self, uid: int) -> None:
        self._used -= 1


def allocator(first: int, count: int, users: int, own: int) -> UidAllocator | SharedUid:
    """Of a node of user `own` in which the ids below `users` exist: `count` from `first` on, or from the
    lowest on if `first` is too high."""
    if users <= 1:
        return SharedUid(own, count)
    if first + count <= users:
        return UidAllocator(first, count)
    return UidAllocator(1, min(count, users - 1))


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
        raise _too_many(self._count)

    def release(self, uid: int) -> None:
        self._used.discard(uid)
        if self._first <= uid < self._next:
            heapq.heappush(self._free, uid)


def _too_many(count: int) -> errors.ResourcesExhausted:
    return errors.ResourcesExhausted(
        f"this node has its limit of {count} cells; free one, or raise the setting node.max_cells"
    )

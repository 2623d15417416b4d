"""Searching a large fleet: numpy columns over the accounts, one row per node.

Imported only when a fleet has grown large. A search compares whole columns and takes the least of what is
left, with the same whole numbers as `skerry.schedule.linear_search` and so with the same answers. Rows are in
the order of node ids, so that the first of equals is the one to take.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from skerry.model.ids import NodeId
from skerry.model.resources import Resources
from skerry.schedule import filters
from skerry.schedule.allocations import UNSCHEDULABLE, NodeAllocation
from skerry.schedule.linear_search import ReplicaCounts
from skerry.schedule.mask_cache import MAX_MASKS, MaskCache
from skerry.schedule.rejections import RejectionTally
from skerry.schedule.requests import HostPort, PlacementRequest
from skerry.schedule.results import PlacementFailure, PortConflict, Rejection

RequirementKey = tuple[
    str, tuple[str, ...], bool
]  # architecture, constraints, and whether it must be one's own

_ANY: RequirementKey = ("", (), False)
_NEVER = np.iinfo(np.int64).max  # no volume, nor its negative, comes near

# So many nodes are asked for their ports one by one, before a column is made of who has them.
_TRIES = 8


class ColumnarSearch:
    """Free room and volume of every node as columns of numbers."""

    def __init__(self, accounts: Iterable[NodeAllocation]) -> None:
        self._accounts = sorted(accounts, key=lambda account: account.node)
        self._ids = [account.node for account in self._accounts]
        self._table = (
            np.array([_row(account) for account in self._accounts], np.int64).reshape(-1, 5).T.copy()
        )
        self._kinds: MaskCache[RequirementKey] = MaskCache(self._accounts, _is_of_kind)
        self._doors: MaskCache[HostPort] = MaskCache(self._accounts, _is_free)
        self._refused: dict[RequirementKey, Counter[Rejection]] = {}

    def put(self, account: NodeAllocation) -> None:
        row = bisect_left(self._ids, account.node)
        self._refused.clear()
        if row < len(self._ids) and self._ids[row] == account.node:
            self._table[:, row] = _row(account)
            self._kinds.update(row)
            return
        self._ids.insert(row, account.node)
        self._accounts.insert(row, account)
        self._table = np.insert(self._table, row, _row(account), axis=1)
        self._kinds.insert(row)
        self._doors.insert(row)

    def drop(self, node: NodeId) -> None:
        row = bisect_left(self._ids, node)
        self._refused.clear()
        del self._ids[row], self._accounts[row]
        self._table = np.delete(self._table, row, axis=1)
        self._kinds.delete(row)
        self._doors.delete(row)

    def touch(self, account: NodeAllocation, doors: tuple[HostPort, ...]) -> None:
        row = bisect_left(self._ids, account.node)
        self._table[:, row] = _row(account)
        if doors:
            self._doors.update(row, doors)

    def best(self, ask: PlacementRequest, copies: ReplicaCounts, *, fullest: bool) -> NodeAllocation | None:
        cpu, memory, disk, volume, emptiness = self._table
        room, kind, doors = ask.room, (ask.architecture, ask.constraints, ask.needs_own), ask.doors
        fits = cpu >= room.cpu
        if room.memory:
            fits &= memory >= room.memory
        if room.disk:
            fits &= disk >= room.disk
        if kind != _ANY:
            fits &= self._kinds.get(kind)
        costs = np.where(fits, volume if fullest else emptiness, _NEVER)
        if not copies:
            return self._cheapest(costs, doors)
        levels = (self._cheapest(level, doors) for level in self._levels(costs, copies))
        return next((account for account in levels if account is not None), None)

    def _levels(self, costs: NDArray[np.int64], copies: ReplicaCounts) -> Iterator[NDArray[np.int64]]:
        """`costs` of the nodes without a copy alone, then of those with one, and so on."""
        rows: dict[int, list[int]] = {}
        for account, count in copies.items():
            if account.view is not None:
                rows.setdefault(count, []).append(bisect_left(self._ids, account.node))
        level = costs.copy()
        for some in rows.values():
            level[some] = _NEVER
        yield level
        for count in sorted(rows):
            level.fill(_NEVER)
            level[rows[count]] = costs[rows[count]]
            yield level

    def _cheapest(self, costs: NDArray[np.int64], doors: tuple[HostPort, ...]) -> NodeAllocation | None:
        """The node of the least cost that has `doors` free; `costs` is used up."""
        for tried in itertools.count(1):
            row = int(costs.argmin())
            if costs[row] == _NEVER:
                break
            if filters.are_ports_free(self._accounts[row], doors):
                return self._accounts[row]
            costs[row] = _NEVER
            if tried == _TRIES:
                for door in doors:
                    costs[~self._doors.get(door)] = _NEVER
        return None

    def count_refusals(self, ask: PlacementRequest) -> PlacementFailure:
        """Counts by columns where there may be many nodes, and one by one those that are shut."""
        tally = RejectionTally(ask.room)
        kind = (ask.architecture, ask.constraints, ask.needs_own)
        is_left = np.ones(len(self._accounts), np.bool_)
        if kind != _ANY:
            is_left = self._kinds.get(kind).copy()
            for refusal, nodes in self._refusals_of_kind(kind).items():
                tally.refuse(refusal, nodes)
        is_shut = is_left & (self._table[0] == UNSCHEDULABLE)
        for row in np.flatnonzero(is_shut):
            tally.refuse(next(filters.rejections(self._accounts[row], ask)))
        is_left &= ~is_shut
        self._count_lacks(ask.room, is_left, tally)
        for door in ask.doors:
            is_free = self._doors.get(door)
            if nodes := int(np.count_nonzero(is_left & ~is_free)):
                tally.refuse(PortConflict(*door, None), nodes)
            is_left &= is_free
        return tally.unplaced()

    def _refusals_of_kind(self, kind: RequirementKey) -> Counter[Rejection]:
        """What keeps the nodes that are not of a kind, counted; kept until a node changes."""
        if kind not in self._refused:
            if len(self._refused) >= MAX_MASKS:
                self._refused.clear()
            wanted = filters.requirement(*kind)
            rows = np.flatnonzero(~self._kinds.get(kind))
            self._refused[kind] = Counter(next(wanted.refusals(self._accounts[row].known)) for row in rows)
        return self._refused[kind]

    def _count_lacks(self, room: Resources, is_left: NDArray[np.bool_], tally: RejectionTally) -> None:
        """Count those of `is_left` that have too little room, and take them out of it."""
        cpu, memory, disk, _, _ = self._table
        parts = (cpu < room.cpu).view(np.int8) | (memory < room.memory) << 1 | (disk < room.disk) << 2
        counts = np.bincount(parts[is_left], minlength=8).tolist()
        for lacking, nodes in enumerate(counts[1:], start=1):
            if nodes:
                group = is_left & (parts == lacking)
                tally.lack(int(cpu[group].max()), int(memory[group].max()), int(disk[group].max()), nodes)
        is_left &= parts == 0


def _row(account: NodeAllocation) -> tuple[int, int, int, int, int]:
    return account.cpu, account.memory, account.disk, account.volume, -account.volume


def _is_of_kind(kind: RequirementKey, account: NodeAllocation) -> bool:
    return filters.requirement(*kind).holds(account.known)


def _is_free(door: HostPort, account: NodeAllocation) -> bool:
    return door not in account.doors

"""Search over many nodes: numpy columns over the allocations, one row per node.

Imported only when there are many nodes. A search compares whole columns and takes the row of the least cost,
with the same whole numbers as `skerry.schedule.linear_search` and so with the same answers. Rows are in the
order of node ids, so that the first of equals is chosen.
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
from skerry.schedule.requests import ANY_NODE, HostPort, PlacementRequest, RequirementKey
from skerry.schedule.results import PlacementFailure, PortConflict, Rejection, ReplicaLimit

_NEVER = np.iinfo(np.int64).max  # no volume, nor its negative, comes near

# The ports of so many nodes are checked one by one, before a column is made for each port.
_TRIES = 8


class ColumnarSearch:
    """Free resources and volume of every node as columns of numbers."""

    def __init__(self, allocations: Iterable[NodeAllocation]) -> None:
        self._allocations = sorted(allocations, key=lambda allocation: allocation.node)
        self._ids = [allocation.node for allocation in self._allocations]
        self._table = (
            np.array([_row(allocation) for allocation in self._allocations], np.int64).reshape(-1, 5).T.copy()
        )
        self._kinds: MaskCache[RequirementKey] = MaskCache(self._allocations, _is_of_kind)
        self._ports: MaskCache[HostPort] = MaskCache(self._allocations, _is_free)
        self._rejected: dict[RequirementKey, Counter[Rejection]] = {}

    def put(self, allocation: NodeAllocation) -> None:
        row = bisect_left(self._ids, allocation.node)
        self._rejected.clear()
        if row < len(self._ids) and self._ids[row] == allocation.node:
            self._table[:, row] = _row(allocation)
            self._kinds.update(row)
            return
        self._ids.insert(row, allocation.node)
        self._allocations.insert(row, allocation)
        self._table = np.insert(self._table, row, _row(allocation), axis=1)
        self._kinds.insert(row)
        self._ports.insert(row)

    def drop(self, node: NodeId) -> None:
        row = bisect_left(self._ids, node)
        self._rejected.clear()
        del self._ids[row], self._allocations[row]
        self._table = np.delete(self._table, row, axis=1)
        self._kinds.delete(row)
        self._ports.delete(row)

    def touch(self, allocation: NodeAllocation, host_ports: tuple[HostPort, ...]) -> None:
        row = bisect_left(self._ids, allocation.node)
        self._table[:, row] = _row(allocation)
        if host_ports:
            self._ports.update(row, host_ports)

    def best(
        self, request: PlacementRequest, replicas: ReplicaCounts, *, fullest: bool
    ) -> NodeAllocation | None:
        cpu, memory, disk, volume, emptiness = self._table
        resources, kind, host_ports = (
            request.resources,
            request.requirement_key,
            request.host_ports,
        )
        fits = cpu >= resources.cpu
        if resources.memory:
            fits &= memory >= resources.memory
        if resources.disk:
            fits &= disk >= resources.disk
        if kind != ANY_NODE:
            fits &= self._kinds.get(kind)
        if request.devices:  # by the few that have them, one by one
            for row in np.flatnonzero(fits):
                fits[row] = filters.has_devices(self._allocations[row], request)
        costs = np.where(fits, volume if fullest else emptiness, _NEVER)
        if request.max_per_node:
            costs[self._full_rows(request, replicas)] = _NEVER
        if not replicas:
            return self._cheapest(costs, host_ports)
        levels = (self._cheapest(level, host_ports) for level in self._levels(costs, replicas))
        return next((allocation for allocation in levels if allocation is not None), None)

    def _levels(self, costs: NDArray[np.int64], replicas: ReplicaCounts) -> Iterator[NDArray[np.int64]]:
        """`costs` of the nodes without a replica alone, then of those with one, and so on."""
        rows: dict[int, list[int]] = {}
        for allocation, count in replicas.items():
            if allocation.view is not None:
                rows.setdefault(count, []).append(bisect_left(self._ids, allocation.node))
        level = costs.copy()
        for some in rows.values():
            level[some] = _NEVER
        yield level
        for count in sorted(rows):
            level.fill(_NEVER)
            level[rows[count]] = costs[rows[count]]
            yield level

    def _cheapest(self, costs: NDArray[np.int64], host_ports: tuple[HostPort, ...]) -> NodeAllocation | None:
        """The node of the least cost that has `host_ports` free; `costs` is used up."""
        for tried in itertools.count(1):
            row = int(costs.argmin())
            if costs[row] == _NEVER:
                break
            if filters.are_ports_free(self._allocations[row], host_ports):
                return self._allocations[row]
            costs[row] = _NEVER
            if tried == _TRIES:
                for host_port in host_ports:
                    costs[~self._ports.get(host_port)] = _NEVER
        return None

    def count_rejections(self, request: PlacementRequest) -> PlacementFailure:
        """Count by columns where there may be many nodes, and unschedulable nodes one by one."""
        tally = RejectionTally(request.resources)
        kind = request.requirement_key
        is_left = np.ones(len(self._allocations), np.bool_)
        if kind != ANY_NODE:
            is_left = self._kinds.get(kind).copy()
            for rejection, nodes in self._rejections_of_kind(kind).items():
                tally.add(rejection, nodes)
        is_unschedulable = is_left & (self._table[0] == UNSCHEDULABLE)
        for row in np.flatnonzero(is_unschedulable):
            tally.add(next(filters.rejections(self._allocations[row], request)))
        is_left &= ~is_unschedulable
        self._count_lacks(request.resources, is_left, tally)
        for host_port in request.host_ports:
            is_free = self._ports.get(host_port)
            if nodes := int(np.count_nonzero(is_left & ~is_free)):
                tally.add(PortConflict(*host_port, None), nodes)
            is_left &= is_free
        if request.devices:
            for row in np.flatnonzero(is_left):
                if (missing := filters.choose_devices(self._allocations[row], request).lack) is not None:
                    tally.add(missing)
                    is_left[row] = False
        if nodes := int(np.count_nonzero(is_left)):
            tally.add(ReplicaLimit(request.max_per_node), nodes)
        return tally.failure()

    def _full_rows(self, request: PlacementRequest, replicas: ReplicaCounts) -> list[int]:
        """Of the nodes with replicas of the request's group, those that have as many as one node may have."""
        return [
            bisect_left(self._ids, allocation.node)
            for allocation in replicas
            if allocation.view is not None and filters.has_most_replicas(allocation, request)
        ]

    def _rejections_of_kind(self, kind: RequirementKey) -> Counter[Rejection]:
        """First rejections of the nodes that do not meet a requirement, counted; cached until a node
        changes."""
        if kind not in self._rejected:
            if len(self._rejected) >= MAX_MASKS:
                self._rejected.clear()
            wanted = filters.requirement(kind)
            rows = np.flatnonzero(~self._kinds.get(kind))
            self._rejected[kind] = Counter(
                next(wanted.rejections(self._allocations[row].current_view)) for row in rows
            )
        return self._rejected[kind]

    def _count_lacks(self, resources: Resources, is_left: NDArray[np.bool_], tally: RejectionTally) -> None:
        """Count the nodes of `is_left` with too few free resources, and clear them there."""
        cpu, memory, disk, _, _ = self._table
        parts = (
            (cpu < resources.cpu).view(np.int8)
            | (memory < resources.memory) << 1
            | (disk < resources.disk) << 2
        )
        counts = np.bincount(parts[is_left], minlength=8).tolist()
        for lacking, nodes in enumerate(counts[1:], start=1):
            if nodes:
                group = is_left & (parts == lacking)
                tally.add_lack(int(cpu[group].max()), int(memory[group].max()), int(disk[group].max()), nodes)
        is_left &= parts == 0


def _row(allocation: NodeAllocation) -> tuple[int, int, int, int, int]:
    return allocation.cpu, allocation.memory, allocation.disk, allocation.volume, -allocation.volume


def _is_of_kind(kind: RequirementKey, allocation: NodeAllocation) -> bool:
    return filters.requirement(kind).holds(allocation.current_view)


def _is_free(host_port: HostPort, allocation: NodeAllocation) -> bool:
    return host_port not in allocation.host_ports

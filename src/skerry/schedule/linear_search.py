"""Search over few nodes: a check of every node, in plain Python.

This is the reference of a search; `skerry.schedule.columnar_search` does the same faster for many nodes, and
tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from skerry.model.ids import NodeId
from skerry.schedule import filters
from skerry.schedule.allocations import NodeAllocation
from skerry.schedule.rejections import RejectionTally
from skerry.schedule.requests import ANY_NODE, HostPort, PlacementRequest
from skerry.schedule.results import PlacementFailure, PortConflict, ReplicaLimit

ReplicaCounts = Mapping[NodeAllocation, int]  # how crowded a node is with replicas; no entry: not at all


class NodeSearch(Protocol):
    """A search over the allocations of registered nodes, which is notified of every change of them."""

    def put(self, allocation: NodeAllocation) -> None:
        """A node was registered, or its view changed."""

    def drop(self, node: NodeId) -> None:
        """A node was removed."""

    def touch(self, allocation: NodeAllocation, host_ports: tuple[HostPort, ...]) -> None:
        """A request with `host_ports` was bound to a node or unbound."""

    def best(
        self, request: PlacementRequest, replicas: ReplicaCounts, *, fullest: bool
    ) -> NodeAllocation | None:
        """Of the nodes that can take `request` those that are the least crowded by `replicas`; of these the
        fullest, or the emptiest; of equals the first by id."""

    def count_rejections(self, request: PlacementRequest) -> PlacementFailure:
        """The first rejection of each node, counted, given that none can take `request`."""


class LinearSearch:
    """Checks every node for every request."""

    def __init__(self, allocations: Iterable[NodeAllocation]) -> None:
        self._allocations: dict[NodeId, NodeAllocation] = {
            allocation.node: allocation for allocation in allocations
        }

    def put(self, allocation: NodeAllocation) -> None:
        self._allocations[allocation.node] = allocation

    def drop(self, node: NodeId) -> None:
        del self._allocations[node]

    def touch(self, allocation: NodeAllocation, host_ports: tuple[HostPort, ...]) -> None:
        pass  # the allocations themselves are searched

    def best(
        self, request: PlacementRequest, replicas: ReplicaCounts, *, fullest: bool
    ) -> NodeAllocation | None:
        resources = request.resources
        cpu, memory, disk = (
            resources.cpu,
            resources.memory,
            resources.disk,
        )  # `fits` written out: a call for each node is slow
        found = [
            allocation
            for allocation in self._allocations.values()
            if cpu <= allocation.cpu and memory <= allocation.memory and disk <= allocation.disk
        ]
        if (key := request.requirement_key) != ANY_NODE:
            wanted = filters.requirement(key)
            found = [allocation for allocation in found if wanted.holds(allocation.current_view)]
        if host_ports := request.host_ports:
            found = [allocation for allocation in found if filters.are_ports_free(allocation, host_ports)]
        if request.devices:
            found = [allocation for allocation in found if filters.has_devices(allocation, request)]
        if request.max_per_node:
            found = [allocation for allocation in found if not filters.has_most_replicas(allocation, request)]
        if not found:
            return None
        if replicas:
            counts = [replicas.get(allocation, 0) for allocation in found]
            fewest = min(counts)
            found = [allocation for allocation, count in zip(found, counts, strict=True) if count == fewest]
        volumes = [allocation.volume for allocation in found]
        volume = min(volumes) if fullest else max(volumes)
        return min(
            (allocation for allocation in found if allocation.volume == volume),
            key=lambda allocation: allocation.node,
        )

    def count_rejections(self, request: PlacementRequest) -> PlacementFailure:
        tally = RejectionTally(request.resources)
        wanted = filters.requirement(request.requirement_key)
        host_ports = request.host_ports
        for allocation in self._allocations.values():
            if allocation.is_unschedulable or not wanted.holds(allocation.current_view):
                tally.add(next(filters.rejections(allocation, request)))
            elif not allocation.fits(request.resources):
                tally.add_lack(allocation.cpu, allocation.memory, allocation.disk)
            elif taken := [port for port in host_ports if port in allocation.host_ports]:
                tally.add(PortConflict(*taken[0], None))
            elif (missing := filters.choose_devices(allocation, request).lack) is not None:
                tally.add(missing)
            else:
                tally.add(ReplicaLimit(request.max_per_node))
        return tally.failure()

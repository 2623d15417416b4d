"""The scheduler: every node with what is bound to it, and the choice of a node for a request.

The control plane reports every change of nodes and bindings, in any order, and asks for placements. `bind`
records and never rejects: a binding is a fact, even if its node is not registered yet or has fewer resources
than was thought. Only `place` decides, and it never exceeds a node's resources. Nothing here is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.schedule import filters
from skerry.schedule.allocations import ALL_FREE, NodeAllocation
from skerry.schedule.linear_search import LinearSearch, NodeSearch, ReplicaCounts
from skerry.schedule.requests import NodeView, PlacementPolicy, PlacementRequest
from skerry.schedule.results import NodeFeasibility, Placement, PlacementFailure

T = TypeVar("T")

# From `COLUMNAR_FROM` nodes on columns are searched, until only `LINEAR_BELOW` are left: the answers are the
# same. The two differ, so that one node that comes and goes does not rebuild the columns each time.
COLUMNAR_FROM = 300
LINEAR_BELOW = 200


class Scheduler:
    """Nodes, bindings and the search over them; every change is O(1) except adding or removing a node."""

    def __init__(self, *, columnar_from: int = COLUMNAR_FROM, linear_below: int = LINEAR_BELOW) -> None:
        assert linear_below < columnar_from
        self._columnar_from, self._linear_below = columnar_from, linear_below
        self._allocations: dict[NodeId, NodeAllocation] = {}
        self._bound: dict[InstanceId, NodeAllocation] = {}
        self._replicas: dict[str, dict[NodeAllocation, int]] = {}  # by node, for each group
        self._size = 0  # registered nodes
        self._search: NodeSearch = LinearSearch(())
        self._has_columns = False

    def __len__(self) -> int:
        """The number of registered nodes."""
        return self._size

    @property
    def has_columns(self) -> bool:
        """True if columns are searched."""
        return self._has_columns

    def set_node(self, view: NodeView) -> None:
        """Add a node, or update its view."""
        allocation = self._allocation(view.id)
        if allocation.view == view:
            return
        self._size += allocation.view is None
        allocation.set_view(view)
        self._search.put(allocation)
        self._resize()

    def remove_node(self, node: NodeId) -> None:
        """Remove a node; what is bound to it stays bound until `unbind`."""
        allocation = self._allocations.get(node)
        if allocation is None or allocation.view is None:
            return
        self._size -= 1
        allocation.set_view(None)
        self._search.drop(node)
        self._forget_if_empty(allocation)
        self._resize()

    def bind(self, node: NodeId, request: PlacementRequest) -> None:
        """Bind a request to a node, in place of an earlier binding of the same instance."""
        self.unbind(request.instance)
        allocation = self._allocation(node)
        allocation.add(request)
        self._bound[request.instance] = allocation
        if request.group is not None:
            replicas = self._replicas.setdefault(request.group, {})
            replicas[allocation] = replicas.get(allocation, 0) + 1
        if allocation.view is not None:
            self._search.touch(allocation, request.host_ports)

    def unbind(self, instance: InstanceId) -> None:
        """Remove the binding of an instance, if there is one."""
        allocation = self._bound.pop(instance, None)
        if allocation is None:
            return
        request = allocation.remove(instance)
        if request.group is not None:
            self._count_removed(request.group, allocation)
        if allocation.view is not None:
            self._search.touch(allocation, request.host_ports)
        else:
            self._forget_if_empty(allocation)

    def node_of(self, instance: InstanceId) -> NodeId | None:
        """The node that an instance is bound to."""
        allocation = self._bound.get(instance)
        return None if allocation is None else allocation.node

    def request_of(self, instance: InstanceId) -> PlacementRequest | None:
        """The request with which an instance is bound."""
        allocation = self._bound.get(instance)
        return None if allocation is None else allocation.requests[instance]

    def free(self, node: NodeId) -> Resources:
        """The free resources of a node, whether or not it is schedulable."""
        allocation = self._allocations.get(node)
        if allocation is None or allocation.view is None:
            raise errors.NotFound(f"there is no node {node}")
        return allocation.free()

    def place(self, request: PlacementRequest, policy: PlacementPolicy) -> Placement | PlacementFailure:
        """The node for `request`, or why none fits; it depends on the present nodes and bindings alone.

        Nodes with fewer replicas of its group come first, whatever the policy; before that, values of the
        labels of its spread with fewer of them. The present binding of the
        instance is ignored. An instance without a resource request may use anything, so it goes where most is
        free, also with binpack.
        """
        if request.instance in self._bound:
            return self._without(request.instance, lambda: self.place(request, policy))
        fullest = policy == PlacementPolicy.BINPACK and request.resources != NO_RESOURCES
        allocation = self._search.best(request, self._crowding(request), fullest=fullest)
        if allocation is None:
            return self._search.count_rejections(request)
        free = allocation.volume / ALL_FREE
        return Placement(
            allocation.node,
            1 - free if fullest else free,
            filters.choose_devices(allocation, request).devices if request.devices else (),
        )

    def explain(self, request: PlacementRequest) -> list[NodeFeasibility]:
        """The feasibility of `request` on every node, by id; `place` finds a node exactly if one of them
        fits."""
        if request.instance in self._bound:
            return self._without(request.instance, lambda: self.explain(request))
        allocations = sorted(self._present(), key=lambda allocation: allocation.node)
        return [filters.check_feasibility(allocation, request) for allocation in allocations]

    def fits(self, node: NodeId, request: PlacementRequest) -> bool:
        """True if `node` is registered and `request` fits there."""
        if request.instance in self._bound:
            return self._without(request.instance, lambda: self.fits(node, request))
        allocation = self._allocations.get(node)
        return (
            allocation is not None
            and allocation.view is not None
            and filters.check_feasibility(allocation, request).fits
        )

    def choose_devices(self, node: NodeId, request: PlacementRequest) -> tuple[str, ...]:
        """The devices of `node` that `request`, which fits there, gets."""
        if not request.devices:
            return ()
        return filters.choose_devices(self._allocations[node], request).devices

    def _without(self, instance: InstanceId, answer: Callable[[], T]) -> T:
        """The answer while `instance` is not bound."""
        allocation = self._bound[instance]
        request = allocation.requests[instance]
        self.unbind(instance)
        try:
            return answer()
        finally:
            self.bind(allocation.node, request)

    def _crowding(self, request: PlacementRequest) -> ReplicaCounts:
        """How crowded nodes are with replicas of the request's group: by the labels of its spread, the first
        counting most, and then by themselves."""
        replicas = self._replicas.get(request.group, {}) if request.group is not None else {}
        if not (request.spread and replicas):
            return replicas
        base = sum(replicas.values()) + 1
        by_value: list[dict[str, int]] = []
        for label in request.spread:
            counts: dict[str, int] = {}
            for allocation, count in replicas.items():
                value = _label(allocation, label)
                counts[value] = counts.get(value, 0) + count
            by_value.append(counts)
        crowding = {}
        for allocation in self._present():
            level = 0
            for label, counts in zip(request.spread, by_value, strict=True):
                level = level * base + counts.get(_label(allocation, label), 0)
            crowding[allocation] = level * base + replicas.get(allocation, 0)
        return crowding

    def _count_removed(self, group: str, allocation: NodeAllocation) -> None:
        replicas = self._replicas[group]
        replicas[allocation] -= 1
        if not replicas[allocation]:
            del replicas[allocation]
            if not replicas:
                del self._replicas[group]

    def _allocation(self, node: NodeId) -> NodeAllocation:
        allocation = self._allocations.get(node)
        if allocation is None:
            allocation = self._allocations[node] = NodeAllocation(node)
        return allocation

    def _forget_if_empty(self, allocation: NodeAllocation) -> None:
        if not allocation.requests:
            del self._allocations[allocation.node]

    def _resize(self) -> None:
        """Change the search if the number of nodes asks for the other."""
        if self._size >= self._columnar_from and not self._has_columns:
            from skerry.schedule.columnar_search import ColumnarSearch  # numpy costs time and memory

            self._search, self._has_columns = ColumnarSearch(self._present()), True
        elif self._size <= self._linear_below and self._has_columns:
            self._search, self._has_columns = LinearSearch(self._present()), False

    def _present(self) -> Iterator[NodeAllocation]:
        return (allocation for allocation in self._allocations.values() if allocation.view is not None)


def _label(allocation: NodeAllocation, label: str) -> str:
    return allocation.view.labels.get(label, "") if allocation.view is not None else ""

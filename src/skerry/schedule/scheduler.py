"""The fleet: every node with what is bound to it, and the search for a place.

The control plane tells it of every change of its nodes and bindings, in any order, and asks where an instance
could go. It records and never refuses: a binding is a fact, even if its node is not known yet or has less
room than was thought; only `place` decides, and it never goes over a node's room. Nothing here is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId, WorkloadId
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.schedule import filters
from skerry.schedule.allocations import ALL_FREE, NodeAllocation
from skerry.schedule.linear_search import LinearSearch, NodeSearch
from skerry.schedule.requests import NodeView, PlacementPolicy, PlacementRequest
from skerry.schedule.results import NodeFeasibility, Placement, PlacementFailure

T = TypeVar("T")

# From `COLUMNAR_FROM` nodes on, columns are searched instead of nodes, until there are only `LINEAR_BELOW`:
# the answers are the same. The two lie apart so that one node that comes and goes does not have the columns
# built each time.
COLUMNAR_FROM = 300
LINEAR_BELOW = 200


class Scheduler:
    """Nodes, bindings and the search over them; a change is O(1) but for the coming and going of nodes."""

    def __init__(self, *, many: int = COLUMNAR_FROM, few: int = LINEAR_BELOW) -> None:
        assert few < many
        self._many, self._few = many, few
        self._accounts: dict[NodeId, NodeAllocation] = {}
        self._bound: dict[InstanceId, NodeAllocation] = {}
        self._copies: dict[WorkloadId, dict[NodeAllocation, int]] = {}  # where each workload has how many
        self._size = 0  # nodes that are there
        self._search: NodeSearch = LinearSearch(())
        self._has_columns = False

    def __len__(self) -> int:
        """How many nodes there are."""
        return self._size

    @property
    def has_columns(self) -> bool:
        """True if it is searched as large fleets are."""
        return self._has_columns

    def set_node(self, view: NodeView) -> None:
        """A node is there and as `view` says."""
        account = self._account(view.id)
        if account.view == view:
            return
        self._size += account.view is None
        account.see(view)
        self._search.put(account)
        self._resize()

    def remove_node(self, node: NodeId) -> None:
        """A node is not there any more; what is bound to it stays bound until it is unbound."""
        account = self._accounts.get(node)
        if account is None or account.view is None:
            return
        self._size -= 1
        account.see(None)
        self._search.drop(node)
        self._forget_if_empty(account)
        self._resize()

    def bind(self, node: NodeId, ask: PlacementRequest) -> None:
        """An instance is on a node, with what it asks for; whatever was bound under its id before is not."""
        self.unbind(ask.instance)
        account = self._account(node)
        account.take(ask)
        self._bound[ask.instance] = account
        if ask.workload is not None:
            copies = self._copies.setdefault(ask.workload, {})
            copies[account] = copies.get(account, 0) + 1
        if account.view is not None:
            self._search.touch(account, ask.doors)

    def unbind(self, instance: InstanceId) -> None:
        """An instance is nowhere any more."""
        account = self._bound.pop(instance, None)
        if account is None:
            return
        ask = account.give_back(instance)
        if ask.workload is not None:
            self._count_out(ask.workload, account)
        if account.view is not None:
            self._search.touch(account, ask.doors)
        else:
            self._forget_if_empty(account)

    def bound(self, instance: InstanceId) -> NodeId | None:
        """Where an instance is."""
        account = self._bound.get(instance)
        return None if account is None else account.node

    def ask(self, instance: InstanceId) -> PlacementRequest | None:
        """What an instance asks for where it is."""
        account = self._bound.get(instance)
        return None if account is None else account.asks[instance]

    def free(self, node: NodeId) -> Resources:
        """What a node has left, whether or not it takes work."""
        account = self._accounts.get(node)
        if account is None or account.view is None:
            raise errors.NotFound(f"there is no node {node}")
        return account.free()

    def place(self, ask: PlacementRequest, policy: PlacementPolicy) -> Placement | PlacementFailure:
        """Where `ask` should go; the same for the same fleet, however it came about.

        Nodes with fewer copies of its workload come first, whatever the policy. What the instance itself is
        bound to does not stand in its way. Asking for no room at all is no reason
        to be packed tight: such an instance may use anything, so it goes where most is free.
        """
        if ask.instance in self._bound:
            return self._without(ask.instance, lambda: self.place(ask, policy))
        fullest = policy == PlacementPolicy.BINPACK and ask.room != NO_RESOURCES
        copies = self._copies.get(ask.workload, {}) if ask.workload is not None else {}
        account = self._search.best(ask, copies, fullest=fullest)
        if account is None:
            return self._search.count_refusals(ask)
        free = account.volume / ALL_FREE
        return Placement(account.node, 1 - free if fullest else free)

    def explain(self, ask: PlacementRequest) -> list[NodeFeasibility]:
        """What every node says to `ask`, by id; `place` finds a node exactly if one of them fits."""
        if ask.instance in self._bound:
            return self._without(ask.instance, lambda: self.explain(ask))
        accounts = sorted(self._there(), key=lambda account: account.node)
        return [filters.check_feasibility(account, ask) for account in accounts]

    def fits(self, node: NodeId, ask: PlacementRequest) -> bool:
        """True if `node` is there and could take `ask`."""
        if ask.instance in self._bound:
            return self._without(ask.instance, lambda: self.fits(node, ask))
        account = self._accounts.get(node)
        return (
            account is not None and account.view is not None and filters.check_feasibility(account, ask).fits
        )

    def _without(self, instance: InstanceId, answer: Callable[[], T]) -> T:
        """The answer of a fleet in which `instance` is nowhere."""
        account = self._bound[instance]
        ask = account.asks[instance]
        self.unbind(instance)
        try:
            return answer()
        finally:
            self.bind(account.node, ask)

    def _count_out(self, workload: WorkloadId, account: NodeAllocation) -> None:
        copies = self._copies[workload]
        copies[account] -= 1
        if not copies[account]:
            del copies[account]
            if not copies:
                del self._copies[workload]

    def _account(self, node: NodeId) -> NodeAllocation:
        account = self._accounts.get(node)
        if account is None:
            account = self._accounts[node] = NodeAllocation(node)
        return account

    def _forget_if_empty(self, account: NodeAllocation) -> None:
        if not account.asks:
            del self._accounts[account.node]

    def _resize(self) -> None:
        """Take up the way of searching that suits the size."""
        if self._size >= self._many and not self._has_columns:
            from skerry.schedule.columnar_search import ColumnarSearch  # numpy takes its time and its memory

            self._search, self._has_columns = ColumnarSearch(self._there()), True
        elif self._size <= self._few and self._has_columns:
            self._search, self._has_columns = LinearSearch(self._there()), False

    def _there(self) -> Iterator[NodeAllocation]:
        return (account for account in self._accounts.values() if account.view is not None)

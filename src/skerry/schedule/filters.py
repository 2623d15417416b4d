"""The filters: what keeps a node from taking an ask, asked in a fixed order.

Three of them look only at what a node is, which seldom changes: they are one `NodeRequirement`, whose answers
are kept per set of constraints. The others look at its account. Every no carries its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from skerry.model.resources import NO_RESOURCES
from skerry.model.workloads import Constraint
from skerry.schedule.allocations import NodeAllocation
from skerry.schedule.requests import HostPort, NodeView, PlacementRequest
from skerry.schedule.results import (
    AddressesExhausted,
    ArchitectureMismatch,
    ConstraintMismatch,
    InsufficientResources,
    NodeFeasibility,
    OwnNodeRequired,
    PortConflict,
    Rejection,
    Unschedulable,
)


class NodeRequirement:
    """What kind of node is wanted: an architecture, constraints on labels, a machine of one's own."""

    def __init__(self, architecture: str, constraints: tuple[str, ...], needs_own: bool) -> None:
        self._architecture = architecture
        self._needs_own = needs_own
        self._constraints = tuple(Constraint.parse(text) for text in constraints)

    def holds(self, view: NodeView) -> bool:
        if self._architecture and view.architecture != self._architecture:
            return False
        if self._needs_own and view.is_borrowed:
            return False
        for wanted in self._constraints:  # noqa: SIM110  (half the time of `all`, once per node and ask)
            if not wanted.holds(view.labels):
                return False
        return True

    def refusals(self, view: NodeView) -> Iterator[Rejection]:
        if self._architecture and view.architecture != self._architecture:
            yield ArchitectureMismatch(view.architecture, self._architecture)
        for wanted in self._constraints:
            if not wanted.holds(view.labels):
                has = view.labels.get(wanted.label, "")
                yield ConstraintMismatch(wanted.label, has, wanted.value, wanted.is_equal)
        if self._needs_own and view.is_borrowed:
            yield OwnNodeRequired()


@lru_cache(maxsize=256)
def requirement(architecture: str, constraints: tuple[str, ...], needs_own: bool) -> NodeRequirement:
    """The requirement of an ask; asks come in few kinds, and reading one takes longer than checking it."""
    return NodeRequirement(architecture, constraints, needs_own)


def rejections(account: NodeAllocation, ask: PlacementRequest) -> Iterator[Rejection]:
    """Every no of a node to an ask, in the order of the filters; none if it can take it."""
    view = account.known
    yield from requirement(ask.architecture, ask.constraints, ask.needs_own).refusals(view)
    if not view.takes_work:
        yield Unschedulable(view.why_not)
    if not account.has_address:
        yield AddressesExhausted(view.addresses)
    free = account.free()
    lack = free.lack(ask.room)
    if lack != NO_RESOURCES:
        yield InsufficientResources(lack, free)
    for door in ask.doors:
        if holders := account.doors.get(door):
            yield PortConflict(*door, min(holders))


def check_feasibility(account: NodeAllocation, ask: PlacementRequest) -> NodeFeasibility:
    """What a node says to an ask."""
    return NodeFeasibility(account.node, account.free(), tuple(rejections(account, ask)))


def are_ports_free(account: NodeAllocation, doors: tuple[HostPort, ...]) -> bool:
    """True if nobody has any of those ports."""
    return account.doors.keys().isdisjoint(doors)

"""Searching a small fleet: one look at every node, in plain Python.

This is the meaning of a search; `skerry.schedule.columnar_search` does the same faster for large fleets, and
tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from skerry.model.ids import NodeId
from skerry.schedule import filters
from skerry.schedule.allocations import NodeAllocation
from skerry.schedule.rejections import RejectionTally
from skerry.schedule.requests import HostPort, PlacementRequest
from skerry.schedule.results import PlacementFailure, PortConflict

ReplicaCounts = Mapping[
    NodeAllocation, int
]  # of one workload: how many a node has; none where there is no entry


class NodeSearch(Protocol):
    """A way to search the accounts of the nodes that are there; told of every change of them."""

    def put(self, account: NodeAllocation) -> None:
        """A node came, or its view changed."""

    def drop(self, node: NodeId) -> None:
        """A node left."""

    def touch(self, account: NodeAllocation, doors: tuple[HostPort, ...]) -> None:
        """Something that holds `doors` was bound to a node or unbound."""

    def best(self, ask: PlacementRequest, copies: ReplicaCounts, *, fullest: bool) -> NodeAllocation | None:
        """Of the nodes that can take `ask` those with the fewest `copies`; of these the fullest, or the
        emptiest; of equals the first by id."""

    def count_refusals(self, ask: PlacementRequest) -> PlacementFailure:
        """What keeps each node, given that none can take `ask`."""


class LinearSearch:
    """Looks at every node for every ask."""

    def __init__(self, accounts: Iterable[NodeAllocation]) -> None:
        self._accounts: dict[NodeId, NodeAllocation] = {account.node: account for account in accounts}

    def put(self, account: NodeAllocation) -> None:
        self._accounts[account.node] = account

    def drop(self, node: NodeId) -> None:
        del self._accounts[node]

    def touch(self, account: NodeAllocation, doors: tuple[HostPort, ...]) -> None:
        pass  # the accounts themselves are searched

    def best(self, ask: PlacementRequest, copies: ReplicaCounts, *, fullest: bool) -> NodeAllocation | None:
        room = ask.room
        cpu, memory, disk = (
            room.cpu,
            room.memory,
            room.disk,
        )  # `has_room` written out: a call for each node is dear
        found = [
            account
            for account in self._accounts.values()
            if cpu <= account.cpu and memory <= account.memory and disk <= account.disk
        ]
        if ask.architecture or ask.constraints or ask.needs_own:
            wanted = filters.requirement(ask.architecture, ask.constraints, ask.needs_own)
            found = [account for account in found if wanted.holds(account.known)]
        if doors := ask.doors:
            found = [account for account in found if filters.are_ports_free(account, doors)]
        if not found:
            return None
        if copies:
            counts = [copies.get(account, 0) for account in found]
            fewest = min(counts)
            found = [account for account, count in zip(found, counts, strict=True) if count == fewest]
        volumes = [account.volume for account in found]
        volume = min(volumes) if fullest else max(volumes)
        return min(
            (account for account in found if account.volume == volume), key=lambda account: account.node
        )

    def count_refusals(self, ask: PlacementRequest) -> PlacementFailure:
        tally = RejectionTally(ask.room)
        wanted = filters.requirement(ask.architecture, ask.constraints, ask.needs_own)
        doors = ask.doors
        for account in self._accounts.values():
            if account.is_shut or not wanted.holds(account.known):
                tally.refuse(next(filters.rejections(account, ask)))
            elif not account.has_room(ask.room):
                tally.lack(account.cpu, account.memory, account.disk)
            else:
                door = next(door for door in doors if door in account.doors)
                tally.refuse(PortConflict(*door, None))
        return tally.unplaced()

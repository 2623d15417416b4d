"""Searching a small fleet: one look at every node, in plain Python.

This is the meaning of a search; `skerry.schedule.columns` does the same faster for large fleets, and tests
hold the two together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from skerry.model.ids import NodeId
from skerry.schedule import filters
from skerry.schedule.accounts import Account
from skerry.schedule.answers import PortTaken, Unplaced
from skerry.schedule.asks import Ask, Door
from skerry.schedule.tallies import Tally


class Search(Protocol):
    """A way to search the accounts of the nodes that are there; told of every change of them."""

    def put(self, account: Account) -> None:
        """A node came, or its view changed."""

    def drop(self, node: NodeId) -> None:
        """A node left."""

    def touch(self, account: Account, doors: tuple[Door, ...]) -> None:
        """Something that holds `doors` was bound to a node or unbound."""

    def best(self, ask: Ask, *, fullest: bool) -> Account | None:
        """Of the nodes that can take `ask` the fullest, or the emptiest; of equals the first by id."""

    def count_refusals(self, ask: Ask) -> Unplaced:
        """What keeps each node, given that none can take `ask`."""


class Scan:
    """Looks at every node for every ask."""

    def __init__(self, accounts: Iterable[Account]) -> None:
        self._accounts: dict[NodeId, Account] = {account.node: account for account in accounts}

    def put(self, account: Account) -> None:
        self._accounts[account.node] = account

    def drop(self, node: NodeId) -> None:
        del self._accounts[node]

    def touch(self, account: Account, doors: tuple[Door, ...]) -> None:
        pass  # the accounts themselves are searched

    def best(self, ask: Ask, *, fullest: bool) -> Account | None:
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
            found = [account for account in found if filters.are_free(account, doors)]
        if not found:
            return None
        volumes = [account.volume for account in found]
        volume = min(volumes) if fullest else max(volumes)
        return min(
            (account for account in found if account.volume == volume), key=lambda account: account.node
        )

    def count_refusals(self, ask: Ask) -> Unplaced:
        tally = Tally(ask.room)
        wanted = filters.requirement(ask.architecture, ask.constraints, ask.needs_own)
        doors = ask.doors
        for account in self._accounts.values():
            if account.is_shut or not wanted.holds(account.known):
                tally.refuse(next(filters.refusals(account, ask)))
            elif not account.has_room(ask.room):
                tally.lack(account.cpu, account.memory, account.disk)
            else:
                door = next(door for door in doors if door in account.doors)
                tally.refuse(PortTaken(*door, None))
        return tally.unplaced()

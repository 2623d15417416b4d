"""The filters: what keeps a node from taking an ask, asked in a fixed order.

Three of them look only at what a node is, which seldom changes: they are one `Requirement`, whose answers
are kept per set of constraints. The others look at its account. Every no carries its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from skerry.model.room import NOTHING
from skerry.model.workloads import Constraint
from skerry.schedule.accounts import Account
from skerry.schedule.answers import (
    LacksRoom,
    NoAddress,
    NotOwn,
    PortTaken,
    Refusal,
    TakesNothing,
    Verdict,
    WrongArchitecture,
    WrongLabel,
)
from skerry.schedule.asks import Ask, Door, NodeView


class Requirement:
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

    def refusals(self, view: NodeView) -> Iterator[Refusal]:
        if self._architecture and view.architecture != self._architecture:
            yield WrongArchitecture(view.architecture, self._architecture)
        for wanted in self._constraints:
            if not wanted.holds(view.labels):
                has = view.labels.get(wanted.label, "")
                yield WrongLabel(wanted.label, has, wanted.value, wanted.is_equal)
        if self._needs_own and view.is_borrowed:
            yield NotOwn()


@lru_cache(maxsize=256)
def requirement(architecture: str, constraints: tuple[str, ...], needs_own: bool) -> Requirement:
    """The requirement of an ask; asks come in few kinds, and reading one takes longer than checking it."""
    return Requirement(architecture, constraints, needs_own)


def refusals(account: Account, ask: Ask) -> Iterator[Refusal]:
    """Every no of a node to an ask, in the order of the filters; none if it can take it."""
    view = account.known
    yield from requirement(ask.architecture, ask.constraints, ask.needs_own).refusals(view)
    if not view.takes_work:
        yield TakesNothing(view.why_not)
    if not account.has_address:
        yield NoAddress(view.addresses)
    free = account.free()
    lack = free.lack(ask.room)
    if lack != NOTHING:
        yield LacksRoom(lack, free)
    for door in ask.doors:
        if holders := account.doors.get(door):
            yield PortTaken(*door, min(holders))


def judge(account: Account, ask: Ask) -> Verdict:
    """What a node says to an ask."""
    return Verdict(account.node, account.free(), tuple(refusals(account, ask)))


def are_free(account: Account, doors: tuple[Door, ...]) -> bool:
    """True if nobody has any of those ports."""
    return account.doors.keys().isdisjoint(doors)

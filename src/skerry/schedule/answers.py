"""What placement answers: a node, or why none; and for each node what it says.

A refusal is one filter's no, with its numbers; `filter` is the word that tells which. The order of `FILTERS`
is the order in which nodes are asked: a node is counted once, under the first filter that refuses it. Words
for people are made by `skerry.schedule.explaining`.
"""

from __future__ import annotations

import msgspec

from skerry.model.ids import InstanceId, NodeId
from skerry.model.ports import Protocol
from skerry.model.room import Room


class WrongArchitecture(msgspec.Struct, frozen=True, tag_field="filter", tag="architecture"):
    """It is another kind of machine."""

    has: str
    wanted: str


class WrongLabel(msgspec.Struct, frozen=True, tag_field="filter", tag="label"):
    """A constraint on its labels does not hold; a label that is not there is empty."""

    label: str
    has: str
    wanted: str
    is_equal: bool  # False: `wanted` is what it must not be


class NotOwn(msgspec.Struct, frozen=True, tag_field="filter", tag="own"):
    """It is borrowed, and what publishes ports or is lent to others needs a machine of one's own."""


class TakesNothing(msgspec.Struct, frozen=True, tag_field="filter", tag="takes_work"):
    """It takes nothing new at present: cordoned, draining, silent, foreign."""

    why: str


class NoAddress(msgspec.Struct, frozen=True, tag_field="filter", tag="addresses"):
    """It has as many instances as it has addresses."""

    addresses: int


class LacksRoom(msgspec.Struct, frozen=True, tag_field="filter", tag="room"):
    """It has too little room; of several nodes, the least that any lacks and the most that any has free."""

    lack: Room
    free: Room


class PortTaken(msgspec.Struct, frozen=True, tag_field="filter", tag="port"):
    """Another instance has that port of the machine; of several nodes, no holder is named."""

    port: int
    protocol: Protocol
    by: InstanceId | None


Refusal = WrongArchitecture | WrongLabel | NotOwn | TakesNothing | NoAddress | LacksRoom | PortTaken

FILTERS = (WrongArchitecture, WrongLabel, NotOwn, TakesNothing, NoAddress, LacksRoom, PortTaken)


class Verdict(msgspec.Struct, frozen=True):
    """What one node says to an ask: every no, or none."""

    node: NodeId
    free: Room
    refusals: tuple[Refusal, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.refusals


class Placement(msgspec.Struct, frozen=True):
    """The node to take, and how well it suited, from 0 to 1."""

    node: NodeId
    score: float


class Reason(msgspec.Struct, frozen=True):
    """How many nodes were refused for one reason."""

    nodes: int
    refusal: Refusal


class Unplaced(msgspec.Struct, frozen=True):
    """There is no place: how many nodes there are, and what keeps them, the commonest first."""

    nodes: int
    reasons: tuple[Reason, ...]

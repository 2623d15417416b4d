"""What placement answers: a node, or why none; and for each node what it says.

A refusal is one filter's no, with its numbers; `filter` is the word that tells which. The order of `FILTERS`
is the order in which nodes are asked: a node is counted once, under the first filter that refuses it. Words
for people are made by `skerry.schedule.explanations`.
"""

from __future__ import annotations

import msgspec

from skerry.model.ids import InstanceId, NodeId
from skerry.model.ports import Protocol
from skerry.model.resources import Resources


class ArchitectureMismatch(msgspec.Struct, frozen=True, tag_field="filter", tag="architecture"):
    """It is another kind of machine."""

    has: str
    wanted: str


class ConstraintMismatch(msgspec.Struct, frozen=True, tag_field="filter", tag="label"):
    """A constraint on its labels does not hold; a label that is not there is empty."""

    label: str
    has: str
    wanted: str
    is_equal: bool  # False: `wanted` is what it must not be


class OwnNodeRequired(msgspec.Struct, frozen=True, tag_field="filter", tag="own"):
    """It is borrowed, and what publishes ports or is lent to others needs a machine of one's own."""


class Unschedulable(msgspec.Struct, frozen=True, tag_field="filter", tag="takes_work"):
    """It takes nothing new at present: cordoned, draining, silent, foreign."""

    why: str


class AddressesExhausted(msgspec.Struct, frozen=True, tag_field="filter", tag="addresses"):
    """It has as many instances as it has addresses."""

    addresses: int


class InsufficientResources(msgspec.Struct, frozen=True, tag_field="filter", tag="room"):
    """It has too little room; of several nodes, the least that any lacks and the most that any has free."""

    lack: Resources
    free: Resources


class PortConflict(msgspec.Struct, frozen=True, tag_field="filter", tag="port"):
    """Another instance has that port of the machine; of several nodes, no holder is named."""

    port: int
    protocol: Protocol
    by: InstanceId | None


Rejection = (
    ArchitectureMismatch
    | ConstraintMismatch
    | OwnNodeRequired
    | Unschedulable
    | AddressesExhausted
    | InsufficientResources
    | PortConflict
)

FILTERS = (
    ArchitectureMismatch,
    ConstraintMismatch,
    OwnNodeRequired,
    Unschedulable,
    AddressesExhausted,
    InsufficientResources,
    PortConflict,
)


class NodeFeasibility(msgspec.Struct, frozen=True):
    """What one node says to an ask: every no, or none."""

    node: NodeId
    free: Resources
    refusals: tuple[Rejection, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.refusals


class Placement(msgspec.Struct, frozen=True):
    """The node to take, and how well it suited, from 0 to 1."""

    node: NodeId
    score: float


class RejectionCount(msgspec.Struct, frozen=True):
    """How many nodes were refused for one reason."""

    nodes: int
    refusal: Rejection


class PlacementFailure(msgspec.Struct, frozen=True):
    """There is no place: how many nodes there are, and what keeps them, the commonest first."""

    nodes: int
    reasons: tuple[RejectionCount, ...]

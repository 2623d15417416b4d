"""Results of placement: a node, or why none fits; and the rejections of each node.

A rejection is the result of one filter, with its numbers; `filter` names the filter. Nodes are checked in the
order of `FILTERS`: a node is counted once, under the first filter that rejects it.
`skerry.schedule.explanations` makes text of them.
"""

from __future__ import annotations

import msgspec

from skerry.model.enforcement import NodeAbility
from skerry.model.ids import InstanceId, NodeId
from skerry.model.ports import Protocol
from skerry.model.resources import Resources


class NodeMismatch(msgspec.Struct, frozen=True, tag_field="filter", tag="node"):
    """The request is for another node."""

    wanted: str  # its name or id


class ArchitectureMismatch(msgspec.Struct, frozen=True, tag_field="filter", tag="architecture"):
    """The node has another architecture."""

    has: str
    wanted: str


class ConstraintMismatch(msgspec.Struct, frozen=True, tag_field="filter", tag="label"):
    """A constraint on the node's labels does not hold; a label that is not set is empty."""

    label: str
    has: str
    wanted: str
    is_equal: bool  # False: the label must not be `wanted`


class OwnNodeRequired(msgspec.Struct, frozen=True, tag_field="filter", tag="own"):
    """The node is borrowed, and the request publishes ports or is the cell of a contract."""


class ChecksUnsupported(msgspec.Struct, frozen=True, tag_field="filter", tag="checks"):
    """The node runs no health checks, and the request has some."""


class FeatureMissing(msgspec.Struct, frozen=True, tag_field="filter", tag="feature"):
    """The node cannot do what the options of the request need."""

    feature: str


class AbilityMissing(msgspec.Struct, frozen=True, tag_field="filter", tag="ability"):
    """The node runs without root, and cannot give what the request needs."""

    ability: NodeAbility


class PortReserved(msgspec.Struct, frozen=True, tag_field="filter", tag="low_port"):
    """The node runs without root, and its machine lets only root publish that port."""

    port: int
    first: int  # that it can publish


class VolumeElsewhere(msgspec.Struct, frozen=True, tag_field="filter", tag="volume"):
    """A volume of the request is, or must be, on another node; with an empty `node` it does not exist."""

    volume: str
    node: str


class Unschedulable(msgspec.Struct, frozen=True, tag_field="filter", tag="takes_work"):
    """The node takes no new instances now: cordoned, draining, silent, foreign."""

    why: str


class AddressesExhausted(msgspec.Struct, frozen=True, tag_field="filter", tag="addresses"):
    """The node has as many instances as addresses."""

    addresses: int


class InsufficientResources(msgspec.Struct, frozen=True, tag_field="filter", tag="room"):
    """Too little is free; of several nodes, the least that any lacks and the most that any has free."""

    lack: Resources
    free: Resources


class PortConflict(msgspec.Struct, frozen=True, tag_field="filter", tag="port"):
    """Another instance publishes that port of the machine; of several nodes, none is named."""

    port: int
    protocol: Protocol
    by: InstanceId | None


class DevicesUnavailable(msgspec.Struct, frozen=True, tag_field="filter", tag="devices"):
    """Too few devices of a kind, or not the one of that name, are free."""

    device: str  # a kind or class, or the name of one
    wanted: int
    free: int
    present: int  # whoever holds them


class ReplicaLimit(msgspec.Struct, frozen=True, tag_field="filter", tag="replicas"):
    """It has as many replicas of the service as one node may have."""

    limit: int


Rejection = (
    NodeMismatch
    | ArchitectureMismatch
    | ConstraintMismatch
    | OwnNodeRequired
    | ChecksUnsupported
    | AbilityMissing
    | PortReserved
    | FeatureMissing
    | VolumeElsewhere
    | Unschedulable
    | AddressesExhausted
    | InsufficientResources
    | PortConflict
    | DevicesUnavailable
    | ReplicaLimit
)

FILTERS = (
    NodeMismatch,
    ArchitectureMismatch,
    ConstraintMismatch,
    OwnNodeRequired,
    ChecksUnsupported,
    AbilityMissing,
    PortReserved,
    FeatureMissing,
    VolumeElsewhere,
    Unschedulable,
    AddressesExhausted,
    InsufficientResources,
    PortConflict,
    DevicesUnavailable,
    ReplicaLimit,
)


class NodeFeasibility(msgspec.Struct, frozen=True):
    """Whether a request fits on one node: every rejection, or none."""

    node: NodeId
    free: Resources
    rejections: tuple[Rejection, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.rejections


class Placement(msgspec.Struct, frozen=True):
    """The chosen node, its score from 0 to 1, and the chosen devices there, by name."""

    node: NodeId
    score: float
    devices: tuple[str, ...] = ()


class RejectionCount(msgspec.Struct, frozen=True):
    """How many nodes were rejected for one reason."""

    nodes: int
    rejection: Rejection


class PlacementFailure(msgspec.Struct, frozen=True):
    """No node fits: how many nodes there are, and their rejections, the commonest first."""

    nodes: int
    reasons: tuple[RejectionCount, ...]

"""Nodes: the machines that run things, as the control plane knows them.

A node is its registration (facts, labels, resources) and its later reports. Its liveness is decided here by
times, without a clock.
"""

from __future__ import annotations

import enum

import msgspec

from skerry.model import errors, ids
from skerry.model.container_options import NodeFeature
from skerry.model.devices import MAX_DEVICES, check_device
from skerry.model.enforcement import NodeEnforcement
from skerry.model.ids import ContractId, InstanceId, NodeId
from skerry.model.members import ContinuumMember
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.model.statuses import InstanceStatus, NodeStatus

MAX_LABELS = 64
MAX_WARNINGS = 16
MAX_FEATURES = 64
_MAX_WARNING = 1000
# Ids of nodes that are borrowed begin so; those of machines that join are made by their cloud, and do not.
_BORROWED = "borrowed-"


class NodeFacts(msgspec.Struct, frozen=True):
    """What kind of machine it is."""

    architecture: str = ""  # as the Go world writes it: amd64, arm64
    system: str = ""
    kernel: str = ""
    version: str = ""  # of Skerry there
    runtime: str = ""  # of containers, with its version; empty: it runs none
    userns: bool = False  # containers have user namespaces of their own
    warnings: tuple[str, ...] = ()  # security warnings, in plain sentences
    disk_pressure: str = ""  # why its disk takes no writes, in a plain sentence; empty: it does
    runs_checks: bool = False  # of its instances, and reads their metrics; nodes of before run none
    features: tuple[str, ...] = ()  # `NodeFeature`s, and those of versions after this one
    devices: tuple[str, ...] = ()  # by their full names: `nvidia.com/gpu=0`
    enforcement: NodeEnforcement | None = None  # None: not stated, as by nodes of before, which all had root

    def __post_init__(self) -> None:
        if len(self.warnings) > MAX_WARNINGS:
            raise errors.Invalid(f"a node gives at most {MAX_WARNINGS} warnings", field="warnings")
        if len(self.features) > MAX_FEATURES:
            raise errors.Invalid(f"a node has at most {MAX_FEATURES} features", field="features")
        for feature in self.features:
            ids.check_id(feature, "features")
        if len(self.devices) > MAX_DEVICES:
            raise errors.Invalid(f"a node reports at most {MAX_DEVICES} devices", field="devices")
        for device in self.devices:
            check_device(device)
        reasons = () if self.enforcement is None else self.enforcement.reasons
        if len(reasons) > MAX_WARNINGS:
            raise errors.Invalid(f"a node gives at most {MAX_WARNINGS} reasons", field="enforcement")
        for warning in (*self.warnings, *reasons, self.disk_pressure or "-"):
            if len(warning) > _MAX_WARNING or not warning.isprintable():
                raise errors.Invalid(
                    f"a warning is printable and has at most {_MAX_WARNING} characters", field="warnings"
                )


class Liveness(enum.StrEnum):
    """How long a node has been silent."""

    LIVE = "live"
    SUSPECT = "suspect"  # takes nothing new
    LOST = "lost"  # what it ran is replaced


class ReportedInstance(msgspec.Struct, frozen=True):
    """An instance that a foreign node reports. It need not be one of ours."""

    id: InstanceId
    name: str
    status: InstanceStatus
    uri: str = ""
    limit: Resources = NO_RESOURCES
    usage: Resources = NO_RESOURCES


class ForeignReport(msgspec.Struct, frozen=True):
    """The last report of a foreign node, and its time; in the memory of the server that got it."""

    at: float
    usage: Resources | None = None  # None: never reported
    instances: tuple[ReportedInstance, ...] | None = None  # None: never reported


class Node(msgspec.Struct, frozen=True):
    """A machine of this cloud."""

    id: NodeId
    name: str
    registered_at: float
    reported_at: float
    status: NodeStatus = NodeStatus.REGISTERING
    reason: str = ""
    facts: NodeFacts = NodeFacts()
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    resources: Resources = msgspec.field(
        default=NO_RESOURCES, name="room"
    )  # all that may be given away, used or not
    subnet: str = ""  # of its containers, its own for as long as it is registered
    is_cordoned: bool = False  # gets no new instances, by an operator
    drain_by: float | None = None  # gives up what it has, and all that is left at this time
    is_foreign: bool = False  # uses only the calls of Kudo's documents, and takes no orders
    member: ContinuumMember | None = None  # None: it takes no calls of functions

    def __post_init__(self) -> None:
        ids.check_id(self.id)
        ids.check_display_text(self.name, "name")
        if len(self.labels) > MAX_LABELS:
            raise errors.Invalid(f"a node has at most {MAX_LABELS} labels", field="labels")
        for key, value in self.labels.items():
            ids.check_id(key, "labels")
            ids.check_display_text(value, "labels")
        if self.member is not None:
            if self.member.node != self.id or self.member.is_server:
                raise errors.Invalid("a node is a member for itself alone", field="member")
            if self.is_borrowed or self.is_foreign:
                raise errors.Invalid("only a node of this cloud takes calls of functions", field="member")

    @property
    def is_borrowed(self) -> bool:
        """True if it is a bought contract, and so a part of another cloud's machine."""
        return self.id.startswith(_BORROWED)

    @property
    def has_network(self) -> bool:
        """True if its containers are part of this cloud's network. A borrowed node has the feature only if
        both clouds want that."""
        if self.is_borrowed:
            return NodeFeature.NETWORK in self.facts.features
        return not self.is_foreign

    @property
    def is_schedulable(self) -> bool:
        """True if something new may be placed on it."""
        is_open = self.status is NodeStatus.READY and not self.is_cordoned and self.drain_by is None
        return is_open and not self.facts.disk_pressure

    def liveness(self, now: float, *, suspect_after_s: float, lost_after_s: float) -> Liveness:
        """Its liveness at `now`."""
        silent_s = now - self.reported_at
        if silent_s >= lost_after_s:
            return Liveness.LOST
        return Liveness.SUSPECT if silent_s >= suspect_after_s else Liveness.LIVE


def borrowed_id(contract: ContractId) -> NodeId:
    """What the node is called that a bought contract is; `Invalid` if its id is too long for that."""
    return NodeId(ids.check_id(_BORROWED + contract, "contract"))

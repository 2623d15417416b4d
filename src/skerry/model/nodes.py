"""Nodes: the machines that run things, as the control plane knows them.

A node is what it said when it registered (facts, labels, room) and what has been heard of it since. Whether
silence means trouble is a judgement on times, made here without looking at a clock.
"""

from __future__ import annotations

import enum

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import ContractId, NodeId
from skerry.model.members import Member
from skerry.model.room import NOTHING, Room
from skerry.model.statuses import NodeStatus

MAX_LABELS = 64
# Ids of nodes that are borrowed begin so; those of machines that join are made by their cloud, and do not.
_BORROWED = "borrowed-"


class Facts(msgspec.Struct, frozen=True):
    """What kind of machine it is."""

    architecture: str = ""  # as the Go world writes it: amd64, arm64
    system: str = ""
    kernel: str = ""
    version: str = ""  # of Skerry there


class Liveness(enum.StrEnum):
    """How long a node has been silent."""

    LIVE = "live"
    SUSPECT = "suspect"  # takes nothing new
    LOST = "lost"  # what it ran is replaced


class Node(msgspec.Struct, frozen=True):
    """A machine of this cloud."""

    id: NodeId
    name: str
    registered_at: float
    reported_at: float
    status: NodeStatus = NodeStatus.REGISTERING
    reason: str = ""
    facts: Facts = Facts()
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    room: Room = NOTHING  # all that may be given away, used or not
    subnet: str = ""  # of its containers, its own for as long as it is registered
    is_cordoned: bool = False  # takes nothing new, by somebody's word
    drain_by: float | None = None  # gives up what it has, and all that is left at this time
    is_foreign: bool = False  # speaks only the calls of Kudo's documents, and takes no orders
    member: Member | None = None  # None: it takes no calls of functions

    def __post_init__(self) -> None:
        ids.check_id(self.id)
        ids.check_label(self.name, "name")
        if len(self.labels) > MAX_LABELS:
            raise errors.Invalid(f"a node has at most {MAX_LABELS} labels", field="labels")
        for key, value in self.labels.items():
            ids.check_id(key, "labels")
            ids.check_label(value, "labels")
        if self.member is not None:
            if self.member.node != self.id or self.member.is_server:
                raise errors.Invalid("a node is a member for itself alone", field="member")
            if self.is_borrowed or self.is_foreign:
                raise errors.Invalid("only a node of this cloud takes calls of functions", field="member")

    @property
    def is_borrowed(self) -> bool:
        """True if it is a contract that was bought, and so a part of somebody else's machine."""
        return self.id.startswith(_BORROWED)

    @property
    def takes_work(self) -> bool:
        """True if something new may be placed on it."""
        return self.status is NodeStatus.READY and not self.is_cordoned and self.drain_by is None

    def liveness(self, now: float, *, suspect_after_s: float, lost_after_s: float) -> Liveness:
        """What its silence means at `now`."""
        silent_s = now - self.reported_at
        if silent_s >= lost_after_s:
            return Liveness.LOST
        return Liveness.SUSPECT if silent_s >= suspect_after_s else Liveness.LIVE


def borrowed_id(contract: ContractId) -> NodeId:
    """What the node is called that a bought contract is; `Invalid` if its id is too long for that."""
    return NodeId(ids.check_id(_BORROWED + contract, "contract"))

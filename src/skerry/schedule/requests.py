"""What placement is asked: a node as the control plane sees it, and what an instance wants of one.

Made by `skerry.control` from its nodes and instances; read by every other module of this room. Whether a node
takes work, and in which words it does not, is decided by the control plane.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from skerry.model.ids import InstanceId, NodeId, WorkloadId
from skerry.model.ports import PortMapping, Protocol
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.model.workloads import InstanceSpec, WorkloadKind

# A node's subnet is a /24: what is left without the network, the broadcast and the node's own address.
ADDRESSES_PER_NODE = 253

HostPort = tuple[int, Protocol]  # a port of a machine, as others reach it


class PlacementPolicy(enum.StrEnum):
    """Which of the nodes that could take an instance gets it."""

    BINPACK = "binpack"  # the fullest
    SPREAD = "spread"  # the emptiest


class NodeView(msgspec.Struct, frozen=True):
    """A node, as far as placement is concerned."""

    id: NodeId
    room: Resources  # all that may be given away, used or not
    architecture: str = ""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    takes_work: bool = True
    why_not: str = ""  # what follows its name if it takes no work, such as `is cordoned`
    addresses: int = ADDRESSES_PER_NODE  # instances it can have at once
    is_borrowed: bool = False  # a part of somebody else's machine: no ports of it, and it is not lent on


class PlacementRequest(msgspec.Struct, frozen=True):
    """What one instance wants of a node."""

    instance: InstanceId
    room: Resources = NO_RESOURCES
    ports: tuple[PortMapping, ...] = ()
    architecture: str = ""  # empty: any
    constraints: tuple[str, ...] = ()  # as `skerry.model.workloads.Constraint` reads them
    is_lent: bool = False  # a cell for somebody else
    workload: WorkloadId | None = None  # whose copies are spread over nodes; None: it is no copy

    @classmethod
    def of(
        cls, instance: InstanceId, spec: InstanceSpec, workload: WorkloadId | None = None
    ) -> PlacementRequest:
        """What `instance` wants if it runs `spec`; with `workload`, on a node with few copies of that."""
        is_lent = spec.kind is WorkloadKind.CELL
        return cls(instance, spec.room, spec.ports, spec.architecture, spec.constraints, is_lent, workload)

    @property
    def needs_own(self) -> bool:
        """True if only a machine of one's own will do."""
        return self.is_lent or bool(self.ports)

    @property
    def doors(self) -> tuple[HostPort, ...]:
        """The ports of the machine that it takes."""
        return tuple((mapping.source, mapping.protocol) for mapping in self.ports)

    @property
    def shape(self) -> tuple[Any, ...]:
        """All but whose it is: where one of a shape finds no place, no other does. Copies of a workload
        prefer nodes, and refuse none."""
        return (self.room, self.ports, self.architecture, self.constraints, self.is_lent)

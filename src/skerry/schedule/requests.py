"""Input of placement: a node as the control plane sees it, and the request of an instance.

`skerry.control` builds both from its nodes and instances; every other module of this package reads them. The
control plane decides whether a node is schedulable, and the text of the reason if it is not.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from skerry.model.container_options import NodeFeature
from skerry.model.devices import DeviceRequest
from skerry.model.enforcement import NodeAbility, NodeEnforcement
from skerry.model.ids import InstanceId, NodeId
from skerry.model.ports import PortMapping, Protocol
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.model.workloads import InstanceSpec, UserNamespaceMode, WorkloadKind

# A node's subnet is a /24: what is left without the network, the broadcast and the node's own address.
ADDRESSES_PER_NODE = 253
_USERS_PORT: Final = 1024  # from here on every user may listen

HostPort = tuple[int, Protocol]  # a port of the machine, which others connect to


class VolumePlace(NamedTuple):
    """Where a volume of a request is, or must be: the name or id of a node; empty: nowhere, as it does not
    exist."""

    volume: str
    node: str


class RequirementKey(NamedTuple):
    """What facts of a node must be."""

    architecture: str = ""
    constraints: tuple[str, ...] = ()
    needs_own_node: bool = False
    needs_checks: bool = False
    node: str = ""
    features: tuple[str, ...] = ()
    volumes: tuple[VolumePlace, ...] = ()
    abilities: tuple[NodeAbility, ...] = ()
    lowest_port: int = 0  # that it publishes, if not every user may; 0: none


ANY_NODE = RequirementKey()


class PlacementPolicy(enum.StrEnum):
    """Which of the nodes that fit an instance is chosen."""

    BINPACK = "binpack"  # the fullest
    SPREAD = "spread"  # the emptiest


class NodeView(msgspec.Struct, frozen=True):
    """The facts of a node that placement depends on."""

    id: NodeId
    resources: Resources  # allocatable, whether or not it is in use
    architecture: str = ""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    is_schedulable: bool = True
    unschedulable_reason: str = ""  # a predicate such as `is cordoned`
    addresses: int = ADDRESSES_PER_NODE  # most instances at once
    is_borrowed: bool = False  # a contract of another cloud: publishes no ports, and is not leased on
    runs_checks: bool = True  # health checks of its instances; nodes of earlier versions run none
    name: str = ""
    features: tuple[str, ...] = ()  # as `skerry.model.container_options.NodeFeature` names them
    devices: tuple[str, ...] = ()  # by their full names
    weaker: NodeEnforcement | None = None  # what it enforces, if that is less than as root

    @property
    def accepts_guests(self) -> bool:
        """True if it may run what is sold to other clouds."""
        return self.weaker is None or self.weaker.accepts_guests


class PlacementRequest(msgspec.Struct, frozen=True):
    """What one instance requests of a node."""

    instance: InstanceId
    resources: Resources = NO_RESOURCES
    ports: tuple[PortMapping, ...] = ()
    architecture: str = ""  # empty: any
    constraints: tuple[str, ...] = ()  # as `skerry.model.workloads.Constraint` reads them
    is_leased: bool = False  # a cell of a contract, for another cloud
    group: str | None = None  # whose replicas are spread over nodes; None: it has no replicas
    spread: tuple[str, ...] = ()  # labels over whose values they are spread before that, the first first
    max_per_node: int = 0  # replicas of the group on one node; 0: any number
    needs_checks: bool = False  # it has health checks, or a metric to be read
    node: str = ""  # the only one that may take it, by name or id; empty: any may
    features: tuple[str, ...] = ()  # that its node must have
    devices: tuple[DeviceRequest, ...] = ()
    assigned_devices: tuple[str, ...] = ()  # by their full names, once it is bound
    volumes: tuple[VolumePlace, ...] = ()  # that it uses and that are somewhere
    has_address: bool = True  # False: the data of a volume, which only needs disk
    is_host_root: bool = False  # root in it is the node's root

    @classmethod
    def of(
        cls,
        instance: InstanceId,
        spec: InstanceSpec,
        group: str | None = None,
        assigned_devices: tuple[str, ...] = (),
    ) -> PlacementRequest:
        """The request of `instance` with `spec`; with `group`, nodes with few of its replicas are
        preferred."""
        return cls(
            instance,
            spec.resources,
            spec.ports,
            spec.architecture,
            spec.constraints,
            is_leased=spec.kind is WorkloadKind.CELL,
            group=group,
            spread=spec.spread if group is not None else (),
            max_per_node=spec.max_per_node if group is not None else 0,
            needs_checks=bool(spec.checks) or spec.metric is not None,
            node=spec.node,
            features=spec.needed_features,
            devices=spec.devices,
            assigned_devices=assigned_devices,
            is_host_root=spec.userns is UserNamespaceMode.HOST,
        )

    def holding(self, devices: tuple[str, ...]) -> PlacementRequest:
        """This request, bound with these devices."""
        return msgspec.structs.replace(self, assigned_devices=devices) if devices else self

    @property
    def needs_own_node(self) -> bool:
        """True if a borrowed node cannot take it."""
        return self.is_leased or bool(self.ports)

    @property
    def abilities(self) -> tuple[NodeAbility, ...]:
        """What it needs that a node without root does not give."""
        needs = []
        if self.resources.disk:
            needs.append(NodeAbility.DISK_LIMITS)
        if self.volumes or NodeFeature.VOLUMES in self.features:
            needs.append(NodeAbility.VOLUMES)
        if self.devices:
            needs.append(NodeAbility.DEVICES)
        if self.is_host_root:
            needs.append(NodeAbility.HOST_ROOT)
        if self.is_leased:
            needs.append(NodeAbility.GUESTS)
        return tuple(needs)

    @property
    def requirement_key(self) -> RequirementKey:
        """What it requires of the facts of a node, as `filters.requirement` takes it."""
        return RequirementKey(
            self.architecture,
            self.constraints,
            self.needs_own_node,
            self.needs_checks,
            self.node,
            self.features,
            self.volumes,
            self.abilities,
            min((port for port, _ in self.host_ports if port < _USERS_PORT), default=0),
        )

    @property
    def host_ports(self) -> tuple[HostPort, ...]:
        """The ports of the machine that it publishes."""
        return tuple((mapping.source, mapping.protocol) for mapping in self.ports)

    @property
    def shape(self) -> tuple[Any, ...]:
        """All but the instance: if one request of a shape fits nowhere, no other does. The spread of replicas
        is a preference and rejects no node; a limit of replicas does."""
        limit = (self.max_per_node, self.group) if self.max_per_node else None
        return (
            self.resources,
            self.ports,
            self.architecture,
            self.constraints,
            self.is_leased,
            self.needs_checks,
            self.node,
            self.features,
            self.devices,
            self.volumes,
            self.is_host_root,
            limit,
        )

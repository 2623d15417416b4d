"""Volumes: data that outlives the instances that use it.

A volume has a size that holds, and is on one node: the one that its first user was placed on, or the one it
was pinned to. From then on what uses it can be on that node only (`skerry.control.placement`). It is deleted
by an explicit request alone. `skerry.control.volumes` keeps the records, `skerry.node.volumes` the data.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace, NodeId, VolumeId
from skerry.model.mounts import MAX_VOLUME_NAME, check_volume_name
from skerry.model.resources import Gigabytes

UNUSED: Final = "waits for its first user, whose node it will be on"
MAX_SIZE: Final = 8 * 1024  # GB; a file on ext4 may be 16 TB


class VolumeStatus(enum.StrEnum):
    """Where a volume is in its life."""

    UNBOUND = "UNBOUND"  # on no node: its first user decides
    CREATING = "CREATING"  # bound, and its node has not reported it yet
    READY = "READY"
    FAILED = "FAILED"  # its node cannot create it, or does not have it any more
    DELETING = "DELETING"  # until its node has removed it


class VolumeOwner(msgspec.Struct, frozen=True):
    """The template of a service that a volume was made for, and for which copy."""

    service: str  # its name: a service that is created again finds its volumes
    template: str
    index: int


class Volume(msgspec.Struct, frozen=True):
    """A volume as it is stored; its name is its own in its namespace."""

    id: VolumeId
    name: str
    size: Gigabytes
    created_at: float
    namespace: Namespace = DEFAULT_NAMESPACE
    node: NodeId | None = None  # None: not bound yet
    status: VolumeStatus = VolumeStatus.UNBOUND
    reason: str = ""
    since: float = 0.0  # when `status` began
    pin: str = ""  # the only node that it may be bound to, by name or id; empty: any
    constraints: tuple[str, ...] = ()  # on the labels of the node that it is bound to
    owner: VolumeOwner | None = None
    generation: int = 1  # of orders; nodes refuse older ones
    # When an instance was last bound that uses it: written with every binding, so that a deletion and a
    # binding cannot both succeed.
    bound_at: float = 0.0
    has_been_ready: bool = False  # then its node never creates it again
    request_id: str = ""  # of the request that created or deleted it
    operation: str = ""  # that is under way with it (`skerry.model.volume_operations`); one at a time
    is_held: bool = False  # by that operation: nothing may use it meanwhile

    def __post_init__(self) -> None:
        ids.check_id(self.id)
        check_volume_name(self.name)
        ids.check_namespace(self.namespace)
        check_size(self.size)

    @property
    def is_usable(self) -> bool:
        """False while nothing new may use it."""
        return not self.is_deleting and not self.is_held

    @property
    def is_deleting(self) -> bool:
        return self.status is VolumeStatus.DELETING


def check_size(size: int) -> Gigabytes:
    if not 1 <= size <= MAX_SIZE:
        raise errors.Invalid(f"the size of a volume is 1 to {MAX_SIZE} GB, not {size}", field="size")
    return Gigabytes(size)


def volume_name(template: str, index: int) -> str:
    """The name of the volume of one copy of a service."""
    name = f"{template}-{index}"
    if len(name) > MAX_VOLUME_NAME:
        raise errors.Invalid(f"the name of template {template!r} is too long", field="volume_templates")
    return name


class VolumeOrder(msgspec.Struct, frozen=True):
    """The desired state of a volume on its node; a node refuses a lower generation than it has.

    A node keeps volumes that it has no order for: only `is_deleted` removes one.
    """

    id: VolumeId
    name: str
    namespace: Namespace
    size: Gigabytes
    generation: int
    may_create: bool = True  # False: it was there, and a missing one is an error
    is_deleted: bool = False
    receipt: bytes = b""  # for a control plane with a restored store; not read by others
    request_id: str = ""

    @classmethod
    def of(cls, volume: Volume) -> VolumeOrder:
        return cls(
            volume.id,
            volume.name,
            volume.namespace,
            volume.size,
            volume.generation,
            may_create=not volume.has_been_ready,
            is_deleted=volume.is_deleting,
            request_id=volume.request_id,
        )


class VolumeReport(msgspec.Struct, frozen=True):
    """What a node has of a volume."""

    id: VolumeId
    generation: int
    is_ready: bool = True
    is_gone: bool = False  # it was deleted, as ordered
    reason: str = ""  # why it is not ready
    used_bytes: int = 0
    capacity_bytes: int = 0  # what can be written to it, at most
    receipt: bytes = b""  # of the last order for it


class VolumeUsage(msgspec.Struct, frozen=True):
    """How full a volume is."""

    used_bytes: int = 0
    capacity_bytes: int = 0

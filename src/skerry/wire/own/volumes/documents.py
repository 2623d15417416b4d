"""Volumes as JSON: documents that the endpoints return, and the input that they take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from skerry.control.volumes.registry import VolumeSpec
from skerry.model import errors
from skerry.model.mounts import check_volume_name
from skerry.model.volumes import MAX_SIZE, Volume, VolumeStatus, VolumeUsage, check_size
from skerry.wire.option_documents import OptionalField

Epoch = Annotated[float, Meta(description="Seconds since the epoch")]


class OwnerDocument(msgspec.Struct, frozen=True):
    """The template of a service that a volume was made for."""

    service: str
    template: str
    index: int


class VolumeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A volume."""

    id: str
    name: str
    namespace: str
    size: Annotated[int, Meta(description="GB")]
    status: VolumeStatus
    reason: str
    node_id: Annotated[str | None, Meta(description="null: its first user decides on which node it is")]
    node: Annotated[str, Meta(description="The only node that it may be bound to; empty: any")]
    constraints: tuple[str, ...]
    owner: Annotated[OwnerDocument | None, Meta(description="null: it was created by itself")]
    used_bytes: Annotated[int | None, Meta(description="null: not known to this server")]
    capacity_bytes: Annotated[int | None, Meta(description="What can be written to it; null: not known")]
    created_at: Epoch
    since: Annotated[float, Meta(description="When `status` began, seconds since the epoch")]


class VolumeDetails(VolumeDocument, frozen=True, kw_only=True):
    """A volume, and what uses it."""

    used_by: Annotated[tuple[str, ...], Meta(description="Such as `service db`")]


class VolumeInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new volume; `name` and `size` are required."""

    name: str | UnsetType = UNSET
    size: Annotated[int, Meta(description=f"GB, 1 to {MAX_SIZE}")] | UnsetType = UNSET
    kind: Annotated[Literal["volume"], Meta(description="For clients that write it")] | UnsetType = UNSET
    namespace: (
        Annotated[str, Meta(description="Namespace in which it is created, unless the path names it")]
        | UnsetType
    ) = UNSET
    node: OptionalField[Annotated[str, Meta(description="The node that it is to be on, by name or id")]] = (
        UNSET
    )
    constraints: OptionalField[
        Annotated[list[str], Meta(description="On the labels of its node: `zone=edge`, `disk!=slow`")]
    ] = UNSET

    def volume(self) -> tuple[str, VolumeSpec]:
        """Its name and spec; raises `Invalid`."""
        if not isinstance(self.name, str):
            raise errors.Invalid("`name` is needed", field="name")
        if not isinstance(self.size, int):
            raise errors.Invalid("`size` is needed, in GB", field="size")
        pin = self.node if isinstance(self.node, str) else ""
        constraints = tuple(self.constraints) if isinstance(self.constraints, list) else ()
        return check_volume_name(self.name), VolumeSpec(check_size(self.size), pin, constraints)


def volume_document(volume: Volume, usage: VolumeUsage | None) -> VolumeDocument:
    return VolumeDocument(**_fields(volume, usage))


def volume_details(volume: Volume, usage: VolumeUsage | None, used_by: Sequence[str]) -> VolumeDetails:
    return VolumeDetails(**_fields(volume, usage), used_by=tuple(used_by))


def _fields(volume: Volume, usage: VolumeUsage | None) -> dict[str, Any]:
    owner = volume.owner
    return {
        "id": volume.id,
        "name": volume.name,
        "namespace": volume.namespace,
        "size": volume.size,
        "status": volume.status,
        "reason": volume.reason,
        "node_id": volume.node,
        "node": volume.pin,
        "constraints": volume.constraints,
        "owner": None if owner is None else OwnerDocument(owner.service, owner.template, owner.index),
        "used_bytes": None if usage is None else usage.used_bytes,
        "capacity_bytes": None if usage is None else usage.capacity_bytes,
        "created_at": volume.created_at,
        "since": volume.since,
    }

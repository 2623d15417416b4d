"""Volume templates of services: each copy has a volume of its own, by its index. Pure.

The volume `NAME-INDEX` is created with the first copy of its index, and stays when the copy or the service
goes: the next copy of that index, of a service of the same name, has it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from skerry.model.ids import VolumeId
from skerry.model.mounts import Mount, MountKind
from skerry.model.resources import Gigabytes
from skerry.model.volumes import UNUSED, Volume, VolumeOwner, volume_name
from skerry.model.workloads import Instance


def copy_mounts(mounts: Sequence[Mount], index: int) -> tuple[Mount, ...]:
    """The mounts of one copy: templates are its own volumes."""
    return tuple(
        replace(mount, kind=MountKind.VOLUME, source=volume_name(mount.source, index), is_exclusive=True)
        if mount.kind is MountKind.TEMPLATE
        else mount
        for mount in mounts
    )


def template_volume(id: VolumeId, copy: Instance, mount: Mount, now: float) -> Volume:
    """The volume of a copy of a service, for one of its `copy_mounts`."""
    assert copy.owner is not None, "a copy of a service has it as its owner"
    template = mount.source.removesuffix(f"-{copy.owner.index}")
    return Volume(
        id,
        mount.source,
        Gigabytes(mount.size),
        now,
        namespace=copy.namespace,
        since=now,
        reason=UNUSED,
        owner=VolumeOwner(copy.owner.name, template, copy.owner.index),
        request_id=copy.request_id,
    )


def is_of_template(volume: Volume, service: str, template: str) -> bool:
    """True if the volume was made for this template of that service."""
    owner = volume.owner
    return owner is not None and (owner.service, owner.template) == (service, template)

"""What uses a volume: instances, services, jobs and schedules, from memory. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from skerry.control.instance_index import InstanceTable
from skerry.model.ids import Namespace
from skerry.model.mounts import MountKind
from skerry.model.statuses import TERMINAL, DesiredStatus
from skerry.model.volumes import Volume, volume_name
from skerry.model.workloads import InstanceSpec


class TemplateUse(msgspec.Struct, frozen=True):
    """A spec that instances are made from, whose it is, and how many copies it is for."""

    noun: str  # `service`, `job`, `schedule`
    name: str
    namespace: Namespace
    spec: InstanceSpec
    replicas: int = 1


class VolumeUsers:
    """Finds the users of volumes."""

    def __init__(
        self, instances: InstanceTable, templates: Callable[[], Iterable[TemplateUse]] = tuple
    ) -> None:
        """`templates` lists services, jobs and schedules that are not over."""
        self._instances = instances
        self._templates = templates

    def of(self, volume: Volume) -> list[str]:
        """Its users in words, such as `service db`; none if it may be deleted."""
        return [*self._of_templates(volume), *self._of_instances(volume)]

    async def sync(self) -> None:
        """Wait until everything is known that was durable when this was called."""
        await self._instances.sync()

    def _of_instances(self, volume: Volume) -> Iterator[str]:
        for record in self._instances.index:
            instance = record.value
            names_it = instance.namespace == volume.namespace and volume.name in instance.spec.volume_names
            if not names_it and volume.id not in instance.volumes:
                continue
            if instance.observed.status in TERMINAL:
                continue
            # One that is being destroyed may still run on its node.
            if instance.node is None and instance.desired is DesiredStatus.DESTROYED:
                continue
            yield f"instance {instance.spec.name} ({instance.id})"

    def _of_templates(self, volume: Volume) -> Iterator[str]:
        for use in self._templates():
            if use.namespace == volume.namespace and _names(use, volume.name):
                yield f"{use.noun} {use.name}"


def _names(use: TemplateUse, name: str) -> bool:
    if name in use.spec.volume_names:
        return True
    for mount in use.spec.mounts:
        if mount.kind is MountKind.TEMPLATE and name.startswith(f"{mount.source}-"):
            index = name.removeprefix(f"{mount.source}-")
            if (
                index.isdigit()
                and int(index) < use.replicas
                and name == volume_name(mount.source, int(index))
            ):
                return True
    return False

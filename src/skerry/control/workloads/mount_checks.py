"""The check of mounts that registries of specs make: whether the volumes that a spec names exist.

A protocol and its default, so that `skerry.control.instances`, `services` and `jobs` need not know volumes;
`skerry.control.volumes.registry.VolumeRegistry` implements it.
"""

from __future__ import annotations

from typing import Protocol

from skerry.model.ids import Namespace
from skerry.model.workloads import InstanceSpec


class MountChecks(Protocol):
    """Checks specs before they are taken."""

    async def check_mounts(self, spec: InstanceSpec, namespace: Namespace) -> None:
        """Raise unless every volume that instances of this spec use exists."""
        ...

    async def check_templates(
        self, service: str, spec: InstanceSpec, replicas: int, namespace: Namespace
    ) -> None:
        """Raise if a volume that copies of this service would have is somebody else's."""
        ...


class UncheckedMounts:
    """Takes every spec; an instance then waits for its volumes."""

    async def check_mounts(self, spec: InstanceSpec, namespace: Namespace) -> None:
        pass

    async def check_templates(
        self, service: str, spec: InstanceSpec, replicas: int, namespace: Namespace
    ) -> None:
        pass

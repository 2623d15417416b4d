"""The interface of what instances run as, whichever kind they are.

`skerry.node.containers` implements it for containers, which need an image; `skerry.node.guests` for leased
cells, which need none. Both describe what they run as a `ContainerView`. The only decision here is which
backend runs which kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from skerry.model import errors
from skerry.model.cells import CellUsage
from skerry.model.containers import ContainerSpec, ContainerStats, ContainerView
from skerry.model.ids import Namespace
from skerry.model.images import Image, ImageAccess, PullProgress
from skerry.model.workloads import WorkloadKind
from skerry.node.containers.containers import Containers
from skerry.node.secrets.node_secrets import NodeSecrets


class InstanceBackend(Protocol):
    """Creates, runs and removes what instances run as, by name. Methods raise NotFound for an unknown name.

    What it creates survives the agent; after a reboot it still exists, stopped.
    """

    def get(self, name: str) -> ContainerView: ...

    async def create(self, spec: ContainerSpec) -> object:
        """Create it, durably. Raises AlreadyExists, Invalid and others."""
        ...

    async def start(self, name: str) -> object:
        """Start it. It is running on return."""
        ...

    async def stop(self, name: str) -> object:
        """Stop it; does nothing if it is not running."""
        ...

    async def remove(self, name: str, *, force: bool) -> None:
        """Remove it, even while it is running if `force`. Can be repeated after a failure."""
        ...

    async def wait(self, name: str) -> object:
        """Return when it is no longer running. Raises FailedPrecondition if the exit status is unknown."""
        ...

    def usage(self, name: str) -> CellUsage: ...

    async def stats(self, name: str) -> ContainerStats: ...


class ImagePuller(Protocol):
    """Pulls images, and keeps them while an owner needs them."""

    async def ensure(
        self,
        reference: str,
        *,
        access: ImageAccess,
        owner: str,
        on_progress: Callable[[PullProgress], None],
    ) -> Image: ...

    def release(self, owner: str) -> None: ...


class InstanceBackends(msgspec.Struct, frozen=True):
    """All backends of this node."""

    containers: Containers
    images: ImagePuller  # for containers
    cells: InstanceBackend | None = None  # None: this node leases no cells
    secrets: NodeSecrets | None = None  # None: instances with secrets are refused
    # Images for the instances of a namespace; None: `images` for all.
    images_of: Callable[[Namespace], ImagePuller] | None = None

    def puller(self, namespace: Namespace) -> ImagePuller:
        return self.images if self.images_of is None else self.images_of(namespace)

    def of(self, kind: WorkloadKind) -> InstanceBackend:
        """Raises Invalid if there is none."""
        if kind is WorkloadKind.CONTAINER:
            return self.containers
        if self.cells is None:
            raise errors.Invalid("this node leases no cells", field="kind")
        return self.cells

    def every(self) -> tuple[InstanceBackend, ...]:
        return (self.containers,) if self.cells is None else (self.containers, self.cells)

"""Where instances live: what driving them takes, whichever kind they are of.

`skerry.node.containers` is the home of containers, which an image is fetched for; `skerry.node.guests` that
of cells, which have none. Both tell of what they have as of a container. Nothing is decided here but which
home is whose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from skerry.model import errors
from skerry.model.cells import CellUsage
from skerry.model.containers import ContainerSpec, ContainerStats, ContainerView
from skerry.model.images import Image, ImageAccess, PullProgress
from skerry.model.workloads import WorkloadKind
from skerry.node.containers.containers import Containers


class InstanceBackend(Protocol):
    """Has what instances are, by name; all of it raises NotFound for what is not there.

    What it has outlives the agent, and a machine's going down as something that does not run.
    """

    def get(self, name: str) -> ContainerView: ...

    async def create(self, spec: ContainerSpec) -> object:
        """Make it, durably. Raises AlreadyExists, Invalid and others."""
        ...

    async def start(self, name: str) -> object:
        """Run it; it runs when this returns."""
        ...

    async def stop(self, name: str) -> object:
        """End what runs in it; nothing if that has ended."""
        ...

    async def remove(self, name: str, *, force: bool) -> None:
        """Everything of it goes; with `force` also if it runs. What was begun can be repeated."""
        ...

    async def wait(self, name: str) -> object:
        """Return when it does not run any more. Raises FailedPrecondition if nobody knows how it ended."""
        ...

    def usage(self, name: str) -> CellUsage: ...

    async def stats(self, name: str) -> ContainerStats: ...


class ImagePuller(Protocol):
    """Brings images here, and keeps them while somebody needs them."""

    async def ensure(
        self,
        reference: str,
        *,
        access: ImageAccess,
        owner: str,
        on_progress: Callable[[PullProgress], None],
    ) -> Image: ...

    def release(self, owner: str) -> None: ...


@dataclass(frozen=True, slots=True)
class InstanceBackends:
    """All that there are on this node."""

    containers: Containers
    images: ImagePuller  # for containers
    cells: InstanceBackend | None = None  # None: cells cannot be had here

    def of(self, kind: WorkloadKind) -> InstanceBackend:
        """Raises Invalid if there is none."""
        if kind is WorkloadKind.CONTAINER:
            return self.containers
        if self.cells is None:
            raise errors.Invalid("a cell to lend cannot be had here", field="kind")
        return self.cells

    def every(self) -> tuple[InstanceBackend, ...]:
        return (self.containers,) if self.cells is None else (self.containers, self.cells)

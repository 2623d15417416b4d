"""Removes a container completely.

`Containers` holds the lock of the container, whose run has ended. Once begun it is finished, by the next
agent if need be: a mark on disk says so. Files are removed last, and only when nothing is mounted among them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from skerry.model import errors
from skerry.model.cells import Cell, CellOwner
from skerry.node.containers import tree_size
from skerry.node.containers.records import ContainerPaths
from skerry.node.containers.run_teardown import RunTeardown
from skerry.node.containers.state import ContainerDeps, ContainerEntry
from skerry.node.containers.writable_layers import SharedDisk


class ContainerRemoval:
    """Removes containers that are not running."""

    def __init__(self, deps: ContainerDeps, teardown: RunTeardown) -> None:
        self._deps = deps
        self._teardown = teardown

    def mark(self, container: ContainerEntry) -> None:
        """Mark it as being removed."""
        self._deps.records.mark_removing(container.name)
        container.is_removing = True
        self._deps.failpoint("remove.marked")

    async def remove(self, container: ContainerEntry) -> None:
        """Raises Unavailable if something cannot be removed now; then it can be repeated."""
        await self.drop(container.name, container.record.cell, container.shared_disk)
        if container.record.spec.is_isolated:
            self._deps.images.for_guests().tidy(container.record.image)

    async def drop(self, name: str, cell: Cell | None, shared: SharedDisk | None = None) -> None:
        """Remove everything under `name`, also if it is no container; `cell` only if it is exactly this
        one."""
        deps = self._deps
        if cell is not None:
            await self._free(cell)
        failures = await self._teardown.release(name)
        # Reading the mounts takes the kernel long on a machine with many.
        paths = deps.records.paths(name)
        is_mounted = await asyncio.to_thread(deps.overlays.has_mounts, paths.folder, paths.bundle)
        if failures or is_mounted:
            raise errors.Unavailable(
                f"resources of container {name!r} cannot be released, see the log; remove it again later",
                detail="; ".join(map(str, failures)),
            )
        if shared is not None and paths.folder.exists():
            await asyncio.to_thread(deps.disks.remove_shared, paths.layer, shared)
            deps.failpoint("remove.left")
        trash = await asyncio.to_thread(deps.records.discard, name)
        deps.failpoint("remove.discarded")
        if trash is not None:
            await asyncio.to_thread(self.empty, trash)
        deps.images.release(name)
        deps.failpoint("remove.removed")

    def empty(self, folder: Path) -> None:
        """Remove the rest of a container's folder. Waits for the disk."""
        self._deps.disks.remove(ContainerPaths(folder).layer)
        tree_size.remove(folder)

    async def _free(self, cell: Cell) -> None:
        """Free its cell, with everything in it; unless it is somebody else's."""
        cells = self._deps.cells
        try:
            view = cells.get(cell.name)
            if view.cell == cell:
                # No grace: an agent that died may have given it already.
                running = [each.name for each in view.executables if each.exit is None]
                await asyncio.gather(*(cells.kill(cell.name, name) for name in running))
                await cells.free(cell.name, owner=CellOwner.CONTAINER)
        except errors.NotFound:
            pass
        self._deps.failpoint("remove.freed")

"""Removing a container: everything of it, and for good.

`Containers` holds the lock of the container, whose run has ended. Once begun it is finished, by the next
agent if need be: a mark on disk says so. Files go last, and only when nothing is mounted among them.
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
    """Removes containers that do not run."""

    def __init__(self, deps: ContainerDeps, teardown: RunTeardown) -> None:
        self._deps = deps
        self._teardown = teardown

    def mark(self, container: ContainerEntry) -> None:
        """From now on it is being removed."""
        self._deps.records.mark_removing(container.name)
        container.is_removing = True
        self._deps.reached("remove.marked")

    async def remove(self, container: ContainerEntry) -> None:
        """Raises Unavailable if something of it cannot go now; then it can be repeated."""
        await self.drop(container.name, container.record.cell, container.shared_disk)
        if container.record.spec.is_apart:
            self._deps.images.for_guests().tidy(container.record.image)

    async def drop(self, name: str, cell: Cell | None, shared: SharedDisk | None = None) -> None:
        """Remove everything under `name`, also if it is no container; `cell` only if it is exactly this."""
        deps = self._deps
        if cell is not None:
            await self._free(cell)
        failures = await self._teardown.release(name)
        if failures or self._is_mounted(deps.records.place(name).folder):
            raise errors.Unavailable(
                f"what container {name!r} held cannot be given back; the log says why; remove it again later",
                detail="; ".join(map(str, failures)),
            )
        place = deps.records.place(name)
        if shared is not None and place.folder.exists():
            await asyncio.to_thread(deps.disks.leave, place.layer, shared)
            deps.reached("remove.left")
        gone = await asyncio.to_thread(deps.records.discard, name)
        deps.reached("remove.discarded")
        if gone is not None:
            await asyncio.to_thread(self.empty, gone)
        deps.images.release(name)
        deps.reached("remove.removed")

    def empty(self, folder: Path) -> None:
        """Remove what is left of a container's folder. Waits for the disk."""
        self._deps.disks.remove(ContainerPaths(folder).layer)
        tree_size.remove(folder)

    async def _free(self, cell: Cell) -> None:
        """Its cell goes, with what is in it; unless that is somebody else's."""
        cells = self._deps.cells
        try:
            view = cells.get(cell.name)
            if view.cell == cell:
                # What still runs was asked before, if it was to be: by an agent that died of something else.
                running = [each.name for each in view.executables if each.exit is None]
                await asyncio.gather(*(cells.kill(cell.name, name) for name in running))
                await cells.free(cell.name, owner=CellOwner.CONTAINER)
        except errors.NotFound:
            pass
        self._deps.reached("remove.freed")

    def _is_mounted(self, folder: Path) -> bool:
        return any(mount.is_relative_to(folder) for mount in self._deps.overlays.mounted())
